"""What two whole hubs say of their cluster: admin API, metrics, dashboard and readiness."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rsnotify.errors import FetchError
from rsnotify_hub.admin.client import AdminClient
from rsnotify_jetstream import jetstream_log, jetstream_store, node_messages
from tests.browser import Browser
from tests.hub.event_streams import live
from tests.hub.helpers import TOPIC, Client, RunHub, callback_server, fragment
from tests.hub.jetstream.hubs import SHARDS, SHORT_LEASES
from tests.nats_servers import NatsCluster, running_nats
from tests.waiting import PATIENCE

LIVE = "document.querySelector('#connection').dataset.state === 'live'"
#: A page whose last poll took long waits five times as long for the next.
POLL = "dispatchEvent(new Event('online'))"
STATES = "[...document.querySelectorAll('#nodes tbody .badge')].map(each => each.textContent)"


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the nodes short leases, and no bridge."""
    opens = partial(jetstream_store.open_jetstream, shards=SHARDS, pace=SHORT_LEASES)
    monkeypatch.setattr(jetstream_store, "open_jetstream", opens)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsCluster]:
    """Servers of the test's own, which it may stop."""
    with running_nats(tmp_path / "nats") as started:
        yield started


@pytest.fixture
async def two(servers: NatsCluster, run_hub: RunHub) -> AsyncIterator[tuple[Client, Client]]:
    """Two nodes that share the shards."""
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(run_hub(store=servers.url)) for _ in range(2)]
        for hub in (one, other):
            await nodes(hub, is_shared)
        yield one, other


def is_shared(found: dict[str, Any]) -> bool:
    rows = [row for row in found["rows"] if row["alive"] and row["shards"]]
    return found["free"] == 0 and len(rows) == 2


def own(found: dict[str, Any]) -> dict[str, Any]:
    """Return the row of the node that has answered."""
    return next(row for row in found["rows"] if row["this"])


async def nodes(hub: Client, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return what a hub says of its nodes as soon as it fulfils a condition."""
    return dict(await hub.admin_until("nodes", condition))


async def ready(hub: Client, status: int) -> str:
    """Return what `/readyz` says as soon as it answers with a status."""
    async with asyncio.timeout(PATIENCE):
        while (answer := await hub.get("readyz"))[0] != status:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)
    return answer[1]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each node wait for the answer of the other."""
    monkeypatch.setattr(node_messages, "SOON_SECONDS", PATIENCE)


@pytest.mark.usefixtures("patient")
async def test_each_node_describes_the_whole_cluster(
    two: tuple[Client, Client], servers: NatsCluster, browser: Browser
):
    one, other = two
    async with AsyncExitStack() as stack:
        for hub in (one, other, one):
            await hub.listen()
            callback = await stack.enter_async_context(callback_server())
            await hub.form(mode="subscribe", topic=TOPIC, callback=callback.url)
        for hub in two:
            await hub.subscriptions(lambda rows: len(rows) == 3)
        await other.accepted(fragment(0, 1))

        for hub in two:
            (topic,) = await hub.topics(bool)
            assert (topic["websockets"], topic["subscriptions"]) == (3, 3)
            status = await hub.admin("GET", "status")
            assert (status["nodes"], status["websockets"], status["subscriptions"]) == (2, 3, 3)
            assert (status["states"]["active"], status["accepted"]) == (3, 1)

            pages = await hub.admin_pages("connections", limit=2)
            assert [page["total"] for page in pages] == [3, 3]
            ids = {each["id"] for page in pages for each in page["connections"]}
            assert len(ids) == 3

            found = await nodes(hub, lambda found: found["rows"][0]["behind"] == 0)
            assert [row["this"] for row in found["rows"]].count(True) == 1
            assert sum(row["shards"] for row in found["rows"]) == found["shards"] == SHARDS
            assert {row["server"] for row in found["rows"]} == set(servers.servers)
            stream = found["stream"]
            assert (stream["connected"], stream["trouble"]) == (True, None)
            assert [(copy["leader"], copy["current"]) for copy in stream["copies"]] == [
                (True, True)
            ]
            assert any("one copy of the log" in warning for warning in stream["warnings"])

            measured = await hub.metrics()
            shards = own(found)["shards"]
            assert measured["shards_owned"] == shards
            assert measured["nodes_alive"] == 2
            assert measured["shards_free"] == measured["stream_behind"] == 0
            assert measured["nats_connected"] == 1
            assert measured['shards_moved_total{how="taken"}'] >= shards
        _, answer = await one.subscribed()
        here = (await one.metrics())['subscriptions{state="active"}'] + 3
        assert answer["audience"] == 2 * here, "the other node has about as many"
        for id in ids:  # those of both nodes
            await other.admin("DELETE", f"connections/{id}")
        assert (await one.admin("GET", "connections"))["total"] == 1

    async with browser.open(one.url) as page:
        await page.until(f"{LIVE} && {STATES}.join() === 'running,running'")
        shown = await page.text("#nodes")
        assert f"2 nodes · {SHARDS} shards" in shown
        assert "(this node)" in shown
        assert "leader, current" in shown
        assert "one copy of the log" in shown
        spoken = await page.spoken()
        for expected in [("table", "Nodes"), ("list", "NATS servers"), ("list", "Warnings")]:
            assert expected in spoken
        assert page.problems == []


async def test_a_node_that_has_lost_nats_says_so_and_what_it_does_not_know(
    two: tuple[Client, Client], servers: NatsCluster, browser: Browser
):
    one, _ = two
    await one.accepted(fragment(0, 1))
    async with browser.open(one.url) as page:
        await page.until(f"{LIVE} && {STATES}.join() === 'running,running'")
        servers.stop()
        for hub in two:
            await nodes(hub, lambda found: not found["stream"]["connected"])
            assert "lost its connection to NATS" in await ready(hub, 503)
        found = await nodes(one, lambda found: found["free"] is None)
        assert (found["stream"]["connected"], found["shards"]) == (False, SHARDS)
        await page.evaluate(POLL)
        await page.until(f"{STATES}.toSorted().join() === 'fenced,unknown'")
        assert "lost its connection to NATS" in await page.text("#nodes .problem")
        await page.until("document.querySelector('#subscriptions .problem').textContent")
        await page.until("document.querySelector('#topics .amount').innerText.includes('1 of 2')")
        assert await page.evaluate(LIVE)
        assert (await one.metrics())["nats_connected"] == 0

        servers.start()
        for hub in two:
            assert await ready(hub, 200) == "ready\n"
            await nodes(hub, is_shared)
        await page.evaluate(POLL)
        await page.until(f"{STATES}.join() === 'running,running'")
        assert page.problems_but("network") == []


@pytest.mark.slow
async def test_a_node_that_reaches_no_majority_of_the_servers_says_so(
    tmp_path: Path, run_hub: RunHub, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jetstream_log, "APPEND_SECONDS", 1)
    with running_nats(tmp_path / "nats", servers=3) as cluster:
        async with run_hub(store=cluster.url) as hub:
            await nodes(hub, lambda found: found["free"] == 0)
            server = (await nodes(hub, bool))["rows"][0]["server"]
            for name in cluster.servers.keys() - {server}:
                cluster.servers[name].stop()
            assert (await hub.publish(fragment(0, 1)))[0] == 503
            async with asyncio.timeout(PATIENCE):
                while "do most of its servers run?" not in await ready(hub, 503):
                    pass
            found = await nodes(hub, lambda found: found["free"] is None)
            assert found["stream"]["connected"]
            assert found["rows"][0]["behind"] is None
            for name in cluster.servers.keys() - {server}:
                cluster.servers[name].start()
            assert await ready(hub, 200) == "ready\n"
            async with asyncio.timeout(PATIENCE):
                while (await hub.publish(fragment(0, 1)))[0] == 503:
                    pass
            assert (await hub.topics(bool))[0]["kept"] == 1


async def test_a_hub_on_one_machine_shows_no_cluster(hub: Client, browser: Browser):
    found = await hub.admin("GET", "nodes")
    assert [(row["this"], row["alive"], row["behind"]) for row in found["rows"]] == [
        (True, True, None)
    ]
    assert (found["shards"], found["free"], found["stream"]) == (0, 0, None)
    assert (await hub.admin("GET", "status"))["nodes"] == 1
    assert "nats" not in (await hub.get("metrics"))[1]
    async with browser.open(hub.url) as page:
        await page.until(LIVE)
        assert await page.evaluate("document.querySelector('#nodes').hidden")
        assert page.problems == []


@pytest.mark.usefixtures("patient")
async def test_a_node_that_is_drained_gives_its_work_and_its_streams_to_another(
    two: tuple[Client, Client],
):
    one, other = two
    async with live(one) as stream:
        await other.accepted(fragment(0, 1))
        last = await stream.expect()
        assert (await one.topics(bool))[0]["event_streams"] == 1
        assert (await other.topics(bool))[0]["event_streams"] == 1
        await one.admin("POST", "drain")
        assert await stream.next() is None
        assert (await one.get(f"events?topic={TOPIC}"))[0] == 503
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await one.websocket()
        assert (await one.get("readyz"))[0] == 503
        await nodes(other, lambda found: own(found)["shards"] == SHARDS)
        assert (await other.get("readyz"))[0] == 200
        with pytest.raises(FetchError, match="no other node can take over"):
            await AdminClient(other.url, None).call("drain")
    await one.accepted(fragment(1, 2))
    async with live(other, headers={"Last-Event-ID": last.id or ""}) as again:
        assert await again.heard(2) == [2]
