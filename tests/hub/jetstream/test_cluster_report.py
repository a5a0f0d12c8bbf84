"""What a node knows of the others, of the shards and of the NATS servers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify_hub.admin import text_tables
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.nodes import CopyInfo, NodeCall, NodeInfo, NodeList, StreamInfo
from rsnotify_jetstream import node_messages
from rsnotify_jetstream.server_check import copies_of
from tests.hub.jetstream.callbacks import callback_ports
from tests.hub.jetstream.hubs import SHARDS, Hubs, owner_of, settled
from tests.hub.readings import hub_readings, scraped
from tests.waiting import PATIENCE, until

HELLO: NodeCall[str, str] = NodeCall("tests.hello", str, str)
STREAM = StreamInfo(
    name="rsnotify-log",
    connected=True,
    trouble=None,
    records=1234,
    bytes=5678,
    copies=(
        CopyInfo(name="n1", leader=True, online=True, current=True, behind=0),
        CopyInfo(name="n2", leader=False, online=True, current=False, behind=12),
        CopyInfo(name="n3", leader=False, online=False, current=False, behind=0),
    ),
    warnings=("set the clocks",),
)
NODE = NodeInfo(
    name="one",
    url="http://one.example/",
    version="1",
    started=datetime(2026, 1, 1, tzinfo=UTC),
    draining=False,
    shards=3,
    behind=7,
    server="n1",
    this=True,
)
NODES = NodeList(
    rows=(
        NODE,
        replace(NODE, name="two", this=False, alive=False, shards=0, behind=None, server=None),
        replace(NODE, name="three", this=False, draining=True),
    ),
    shards=65,
    free=2,
    stream=STREAM,
)
UNKNOWN = float("nan")
#: What a node says that is fenced.
FENCED = NodeList(
    rows=(
        replace(NODE, alive=False, behind=None),
        replace(NODE, name="two", this=False, alive=None),
    ),
    shards=65,
    free=None,
    stream=replace(STREAM, connected=False, trouble="NATS is away"),
)


async def test_a_dead_node_owns_nothing_and_its_shards_are_free_until_others_take_them(
    mortal_hubs: Hubs,
):
    one, two = await mortal_hubs.start_all("one", "two")
    report = one.store
    shards = len(two.shards)
    before = one.store.node.moved["taken"]
    await two.kill()
    await until(lambda: not all(row.alive for row in report.describe().rows))
    found = report.describe()
    (alive, dead) = found.rows
    assert [(row.name, row.this, row.alive) for row in found.rows] == [
        ("one", True, True),
        ("two", False, False),
    ]
    assert (dead.shards, dead.behind, dead.server) == (0, None, None)
    assert found.free is not None
    assert alive.shards + found.free == found.shards == SHARDS + 1
    await until(lambda: report.describe().free == 0)
    await settled([one])
    assert one.store.node.moved["taken"] >= before + shards


async def test_servers_are_checked_again_and_only_what_is_new_is_logged(
    hubs: Hubs, caplog: pytest.LogCaptureFixture
):
    hub = await hubs.start("one")
    report = hub.store
    for _ in range(2):
        await report.check_servers()
    assert caplog.text.count("one copy of the log") == 1
    stream = report.describe().stream
    assert stream is not None
    assert any("one copy of the log" in warning for warning in stream.warnings)


async def test_a_node_with_another_public_url_is_named(hubs: Hubs):
    one, two = await hubs.start_all("one", "two")
    for hub, url in ((one, "https://a.example/"), (two, "https://b.example/")):
        record = hub.store.node.nodes[hub.store.node.id]
        hub.store.node._record = replace(record, url=url)
    await until(lambda: len({each.url for each in one.store.node.nodes.values()} - {""}) == 2)
    await one.store.check_servers()
    stream = one.store.describe().stream
    assert stream is not None
    (warning,) = [text for text in stream.warnings if "public URL" in text]
    assert "a node with the public URL https://b.example/" in warning
    assert "this node, whose public URL is https://a.example/" in warning
    assert "?prefix=NAME" in warning


async def test_other_nodes_are_asked_once_and_those_that_cannot_answer_are_left_out(
    hubs: Hubs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_messages, "SOON_SECONDS", PATIENCE)
    running = await hubs.start_all("one", "two", "three", "four")
    one, two, three, four = running

    async def refuse(name: str) -> str:
        raise Refusal(Code.TOO_MANY, "no")

    async def greet(name: str) -> str:
        return f"hello {name}"

    two.store.nodes.serve(HELLO, greet)
    three.store.nodes.serve(HELLO, refuse)
    # The fourth does not know the question.
    assert await one.store.nodes.ask_others(HELLO, "one") == ["hello one"]
    await four.kill()
    monkeypatch.setattr(node_messages, "SOON_SECONDS", 0.1)
    assert {*await one.store.nodes.ask_others(HELLO, "one")} <= {"hello one"}


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"subscriptions_per_client": 4}, "you have too many"),
        ({"subscriptions_per_host": 4}, "this callback's host"),
        ({"max_subscriptions": 4}, "this hub has too many"),
    ],
)
async def test_limits_on_subscriptions_count_those_of_all_nodes(
    hubs: Hubs, limits: dict[str, int], reason: str
):
    async with callback_ports(0) as callbacks:
        running = await hubs.start_all("one", "two", **limits)
        of_each: list[list[str]] = [[], []]
        while min(map(len, of_each)) < 3:
            url = await callbacks.add()
            of_each[running.index(owner_of(url, running))].append(url)
        first = [*of_each[0][:2], *of_each[1][:2]]
        for url in first:
            await running[0].request(url, client="client")
        await until(lambda: sum(len(hub.urls) for hub in running) == 4)
        for urls in of_each:
            for hub in running:
                with pytest.raises(Refusal, match=reason):
                    await hub.request(urls[2], client="client")
        await running[1].request(first[0], client="client")  # a renewal is none more


def test_the_copies_are_those_that_jetstream_names():
    info: dict[str, Any] = {
        "cluster": {
            "name": "rsnotify",
            "leader": "n2",
            "replicas": [
                {"name": "n1", "current": True, "active": 12},
                {"name": "n3", "current": False, "offline": True, "active": 99, "lag": 12},
            ],
        }
    }
    assert [
        (copy.name, copy.leader, copy.online, copy.current, copy.behind)
        for copy in copies_of(info, "n1")
    ] == [
        ("n2", True, True, True, 0),
        ("n1", False, True, True, 0),
        ("n3", False, False, False, 12),
    ]
    assert [copy.name for copy in copies_of({"cluster": {"replicas": []}}, "n1")] == []
    assert [copy.name for copy in copies_of({}, "alone")] == ["alone"]
    assert list(copies_of({}, None)) == []


def test_nodes_are_printed_with_the_servers_and_what_is_wrong():
    lines = list(text_tables.nodes(NODES))
    assert [line.split()[-1] for line in lines[1:4]] == ["running", "dead", "draining"]
    assert lines[5:] == [
        "2 of 65 shards without a node",
        "stream rsnotify-log: 1,234 records",
        "n1  leader  current",
        "n2  copy    12 behind",
        "n3  copy    offline",
        "warning: set the clocks",
    ]
    lines = list(text_tables.nodes(FENCED))
    assert [line.split()[-1] for line in lines[1:3]] == ["fenced", "unknown"]
    assert "an unknown number of 65 shards without a node" in lines
    assert "in trouble: NATS is away" in lines


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (
            NODES,
            {
                "nodes_alive": 2,
                "shards_owned": 3,
                "shards_free": 2,
                'shards_moved_total{how="lost"}': 4,
                "nats_connected": 1,
                "stream_behind": 7,
                "stream_copies_behind": 2,
            },
        ),
        (
            FENCED,
            {
                "nodes_alive": UNKNOWN,
                "shards_free": UNKNOWN,
                "nats_connected": 0,
                "stream_behind": UNKNOWN,
            },
        ),
    ],
)
def test_the_metrics_of_a_cluster(nodes: NodeList, expected: dict[str, float]):
    found = scraped(hub_readings(nodes=nodes, moved_shards={"lost": 4}))
    assert {name: found[name] for name in expected} == pytest.approx(expected, nan_ok=True)
