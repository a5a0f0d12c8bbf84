"""A hub with several nodes, by several URLs or addresses of one name, some of which fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.mqtt_broker import is_broker_url
from rsnotify.sync.retry import Retry
from rsnotify_publisher import Publisher, parse_hub
from rsnotify_publisher.push import http_post, websocket
from rsnotify_publisher.push import hub_push as channel_push
from tests.publisher.helpers import (
    BASE,
    QUICK,
    FakeHub,
    chain_of,
    eventually,
    push,
    quick_publisher,
)
from tests.resolving import hanging, not_answering, resolve

NAME = "hub.example"
#: A backoff that is longer than any test.
NEVER = Retry(first=100_000, most=100_000)


@pytest.fixture
async def other(hub: FakeHub) -> AsyncIterator[FakeHub]:
    """A second node, at the same port of another address."""
    node = FakeHub("127.0.0.2", hub.port)
    await node.start()
    yield node
    await node.stop()


@pytest.fixture
def without_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each backoff endless, to show that there was none."""
    monkeypatch.setattr(channel_push, "_RETRY", NEVER)


def path_of(transport: str, node: str) -> str:
    return f"{node}websub" if transport == "websub" else node.replace("http", "ws") + "ws"


def by_name(transport: str, node: FakeHub) -> str:
    return path_of(transport, f"http://{NAME}:{node.port}/")


def joined(transport: str, *nodes: FakeHub) -> str:
    return ",".join(path_of(transport, node.url) for node in nodes)


pytestmark = pytest.mark.parametrize("transport", ["websub", "ws"])


@pytest.mark.usefixtures("without_backoff")
async def test_one_node_is_fed_and_the_next_one_at_once_when_it_dies(
    tmp_path: Path, hub: FakeHub, other: FakeHub, transport: str
):
    async with quick_publisher(tmp_path, joined(transport, hub, other)) as publisher:
        await push(publisher, "before", hub)
        assert not other.headers, "one connection at a time"
        other.through = hub.fragments[-1].until
        await hub.stop()
        for number in range(20):
            await publisher.aupdated(BASE + str(number))
        await other.has(*(BASE + str(number) for number in range(20)))
    chain_of([*hub.fragments, *other.fragments])


@pytest.mark.usefixtures("without_backoff")
async def test_a_node_that_is_unreachable_from_the_start_is_skipped(
    tmp_path: Path, hub: FakeHub, other: FakeHub, transport: str, caplog: pytest.LogCaptureFixture
):
    await hub.stop()
    async with quick_publisher(tmp_path, joined(transport, hub, other)) as publisher:
        await push(publisher, "a", other)
    ours = [one for one in caplog.records if one.name.startswith("rsnotify")]
    (warning,) = [one for one in ours if one.levelno >= logging.WARNING]
    text = warning.getMessage()
    assert path_of(transport, hub.url) in text
    assert text.endswith(f"; sending changes to {path_of(transport, other.url)}")


@pytest.mark.usefixtures("without_backoff")
async def test_a_node_that_answers_5xx_is_replaced_at_once_despite_its_retry_after(
    tmp_path: Path, hub: FakeHub, other: FakeHub, transport: str
):
    hub.refuse_with, hub.retry_after = 503, "3000"
    async with quick_publisher(tmp_path, joined(transport, hub, other)) as publisher:
        await push(publisher, "a", other)
    assert len([one for one in hub.headers if one]) <= 2, "once on each channel"


@pytest.mark.usefixtures("without_backoff")
async def test_an_unresponsive_node_is_replaced(
    tmp_path: Path, hub: FakeHub, transport: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http_post, "RESPONSE_TIMEOUT", 1.0)
    monkeypatch.setattr(websocket, "TIMEOUT", 1.0)
    with hanging("127.0.0.3") as port:
        urls = [f"http://127.0.0.3:{port}/", hub.url]
        async with quick_publisher(
            tmp_path, ",".join(path_of(transport, url) for url in urls)
        ) as publisher:
            await push(publisher, "a", hub)


async def test_unacknowledged_changes_are_sent_to_the_next_node(
    tmp_path: Path, hub: FakeHub, other: FakeHub, transport: str
):
    hub.answering.clear()
    async with quick_publisher(tmp_path, joined(transport, hub, other)) as publisher:
        await publisher.aupdated(BASE + "a")
        await hub.until(lambda: hub.headers if transport == "websub" else hub.fragments)
        hub.refuse_with = 500
        await hub.stop()
        await other.has(BASE + "a")


async def test_the_feed_resumes_with_any_node_that_is_back(
    tmp_path: Path, hub: FakeHub, other: FakeHub, transport: str
):
    async with quick_publisher(tmp_path, joined(transport, hub, other)) as publisher:
        await hub.stop()
        await other.stop()
        await publisher.aupdated(BASE + "a")
        await other.start()
        await other.has(BASE + "a")


async def test_all_nodes_share_one_cursor(
    tmp_path: Path, hub: FakeHub, other: FakeHub, transport: str
):
    options = replace(QUICK, grace=60)
    first = path_of(transport, hub.url)
    async with Publisher(tmp_path, BASE, hubs=[first], options=options) as publisher:
        await push(publisher, "a", hub)
    await hub.stop()
    hubs = [joined(transport, hub, other)]
    async with Publisher(tmp_path, BASE, hubs=hubs, options=options) as publisher:
        await push(publisher, "b", other)
    assert other.uris() == [BASE + "b"]


@pytest.mark.usefixtures("without_backoff")
async def test_a_name_with_a_dead_address_does_not_stop_the_feed(
    tmp_path: Path, hub: FakeHub, other: FakeHub, transport: str, monkeypatch: pytest.MonkeyPatch
):
    resolve(monkeypatch, NAME, "127.0.0.3", "127.0.0.1", "127.0.0.2")
    await hub.stop()
    with not_answering("127.0.0.3", hub.port):
        async with quick_publisher(tmp_path, by_name(transport, hub)) as publisher:
            await push(publisher, "a", other)


async def test_a_node_that_dies_is_replaced_by_another_address_of_its_name(
    tmp_path: Path, hub: FakeHub, other: FakeHub, transport: str, monkeypatch: pytest.MonkeyPatch
):
    resolve(monkeypatch, NAME, "127.0.0.1", "127.0.0.2")
    async with quick_publisher(tmp_path, by_name(transport, hub)) as publisher:
        await push(publisher, "a", hub)
        other.through = hub.fragments[-1].until
        await hub.stop()
        await push(publisher, "b", other)
    chain_of([*hub.fragments, *other.fragments])


async def test_an_address_that_answers_5xx_comes_last_in_the_next_attempt(
    tmp_path: Path, hub: FakeHub, other: FakeHub, transport: str, monkeypatch: pytest.MonkeyPatch
):
    resolve(monkeypatch, NAME, "127.0.0.1", "127.0.0.2")
    hub.refuse_with = 500
    async with quick_publisher(tmp_path, by_name(transport, hub)) as publisher:
        await push(publisher, "a", other)


def test_all_nodes_are_advertised_in_their_order(transport: str):
    nodes = [path_of(transport, f"http://hub{number}.example/") for number in (2, 1, 3)]
    hub = parse_hub(", ".join(nodes), "secret")
    assert (hub.uri, hub.nodes, hub.advertised) == (nodes[0], tuple(nodes), tuple(nodes))
    assert [hub.at(node).nodes for node in nodes] == [(node,) for node in nodes]
    assert hub.at(nodes[1]).headers == hub.headers


@pytest.mark.parametrize(
    "second", ["mqtt://hub.example", "hub2.example", "", "http://h/x", "wss://u:p@h/"]
)
def test_invalid_nodes_and_other_transports_are_refused(transport: str, second: str):
    if transport == "websub" and second == "http://h/x":
        second = "ws://h/x"
    with pytest.raises(ConfigurationError) as raised:
        parse_hub(f"{path_of(transport, 'http://hub.example/')},{second}")
    if is_broker_url(second):
        assert "different transports" in str(raised.value)


@pytest.mark.usefixtures("without_backoff")
async def test_the_next_node_is_not_tried_at_once_if_the_source_is_refused(
    tmp_path: Path, hub: FakeHub, other: FakeHub, transport: str, caplog: pytest.LogCaptureFixture
):
    hub.refuse_with = 403
    async with quick_publisher(tmp_path, joined(transport, hub, other), grace=0) as publisher:
        await publisher.aupdated(BASE + "a")
        await asyncio.to_thread(eventually, lambda: "give the Source a token" in caplog.text)
    assert not other.headers
