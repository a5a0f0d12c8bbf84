"""A Source advertises the broker that its hub states, even while the hub does not respond."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rsnotify.format.model import Capability, Rel
from rsnotify.format.offer import HUB_DOCUMENT
from rsnotify.runtime.mqtt_broker import channel_topic
from rsnotify.sync.retry import Retry
from rsnotify_publisher import Publisher, parse_hub
from rsnotify_publisher.hubs import parse_hubs
from rsnotify_publisher.push import stated_brokers
from tests.cases import case
from tests.publisher.helpers import PATIENCE, QUICK, serving
from tests.publisher.published import read

BROKER = "mqtts://broker.example"
WEBSUB = {"websub": "https://hub.example/websub"}


class StatingHub:
    def __init__(self) -> None:
        self.status = 200
        self.document: Any = {**WEBSUB, "mqtt": BROKER}
        self.requested = asyncio.Event()
        self.answering = asyncio.Event()
        self.answering.set()
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.requested.set()
        await self.answering.wait()
        if isinstance(self.document, bytes):
            return web.Response(status=self.status, body=self.document)
        return web.json_response(self.document, status=self.status)

    async def read(self) -> None:
        self.requested.clear()
        async with asyncio.timeout(PATIENCE):
            await self.requested.wait()


@pytest.fixture
async def hub() -> AsyncIterator[StatingHub]:
    found = StatingHub()
    app = web.Application()
    app.router.add_get("/" + HUB_DOCUMENT, found.answer)
    async with serving(app) as url:
        found.url = url + "/"
        yield found
        found.answering.set()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stated_brokers, "READ_INTERVAL", 0.02)
    monkeypatch.setattr(stated_brokers, "RETRY", Retry(first=0.02, most=0.02))


def advertised(publisher: Publisher) -> list[str]:
    offered = read(publisher, "capabilitylist.xml").resources
    (channel,) = [each for each in offered if each.capability == Capability.CHANGE_NOTIFICATION]
    return [link.href for link in channel.links if link.rel == Rel.HUB]


async def advertises(publisher: Publisher, hub: StatingHub, *brokers: str) -> None:
    while advertised(publisher) != [*derived(hub), *map(topic_at, brokers)]:
        await hub.read()


def topic_at(broker: str) -> str:
    return f"{broker}/rsnotify/54d306916666ab3e3c34bfb25387c3de"


def derived(hub: StatingHub) -> tuple[str, str]:
    return hub.url + "websub", hub.url.replace("http", "ws") + "ws"


@asynccontextmanager
async def publishing(hub: StatingHub, folder: Path) -> AsyncIterator[Publisher]:
    base = "https://source.example/data/"
    async with Publisher(folder, base, hubs=[parse_hub(hub.url)], options=QUICK) as publisher:
        assert await publisher.await_published(PATIENCE)
        yield publisher


async def test_the_broker_of_a_hub_is_advertised_as_long_as_the_hub_states_it(
    hub: StatingHub, tmp_path: Path
):
    async with publishing(hub, tmp_path) as publisher:
        await advertises(publisher, hub, BROKER)
        hub.document = {**WEBSUB, "mqtt": "wss+mqtt://other.example"}
        await advertises(publisher, hub, "wss+mqtt://other.example")
        hub.document = WEBSUB
        await advertises(publisher, hub)


async def test_an_unresponsive_hub_neither_blocks_the_source_nor_changes_the_list(
    hub: StatingHub, tmp_path: Path
):
    async with publishing(hub, tmp_path) as publisher:
        await advertises(publisher, hub, BROKER)
    hub.answering.clear()
    (publisher.source.documents_folder / "capabilitylist.xml").unlink()
    async with publishing(hub, tmp_path) as publisher:
        assert advertised(publisher) == [*derived(hub), topic_at(BROKER)]


async def test_a_hub_that_never_answered_is_advertised_by_its_own_url(
    hub: StatingHub, tmp_path: Path
):
    hub.answering.clear()
    async with publishing(hub, tmp_path) as publisher:
        assert advertised(publisher) == [*derived(hub)]
        hub.answering.set()
        await advertises(publisher, hub, BROKER)


WRONG: list[tuple[int, Any]] = [
    (500, WEBSUB),
    (404, b""),
    (302, WEBSUB),
    (200, b"<html>"),
    (200, b"\xff"),
    (200, b"[" * 50_000),
    (200, []),
    (200, {}),
    (200, {**WEBSUB, "mqtt": 5}),
    (200, {**WEBSUB, "mqtt": "https://broker.example"}),
    (200, {**WEBSUB, "xmpp": "xmpp://broker.example"}),
    (200, {**WEBSUB, "mqtt": "mqtt://user:secret@broker.example"}),
    (200, b'{"websub":"' + b"x" * 100_000 + b'"}'),
]


async def test_errors_and_invalid_documents_change_nothing(hub: StatingHub, tmp_path: Path):
    async with publishing(hub, tmp_path) as publisher:
        for number, (status, document) in enumerate(WRONG):
            with case(number):
                hub.status, hub.document = 200, {**WEBSUB, "mqtt": BROKER}
                await advertises(publisher, hub, BROKER)
                hub.status, hub.document = status, document
                for _ in range(3):  # the first may be older, and the last unanswered
                    await hub.read()
                assert advertised(publisher) == [*derived(hub), topic_at(BROKER)]
                hub.status, hub.document = 200, WEBSUB
                await advertises(publisher, hub)


async def test_an_unreadable_file_is_replaced(hub: StatingHub, tmp_path: Path):
    (tmp_path / "brokers.json").write_text("{")
    async with publishing(hub, tmp_path) as publisher:
        await advertises(publisher, hub, BROKER)
    assert BROKER in (tmp_path / "brokers.json").read_text()


async def test_a_pubsub_service_is_advertised_with_the_node_of_the_channel(
    hub: StatingHub, tmp_path: Path
):
    service = "xmpp:pubsub.example.org"
    hub.document = {**WEBSUB, "mqtt": BROKER, "xmpp": service}
    async with publishing(hub, tmp_path) as publisher:
        node = channel_topic(publisher.source.documents.topic)
        while advertised(publisher)[-1] != f"{service}?;node={node}":
            await hub.read()
        assert topic_at(BROKER) in advertised(publisher)


def test_only_hubs_given_by_their_base_url_have_a_document():
    several = parse_hub("https://one.example/,https://two.example/push/")
    assert several.documents == (
        "https://one.example/" + HUB_DOCUMENT,
        "https://two.example/push/" + HUB_DOCUMENT,
    )
    for url in ("https://hub.example/websub", "wss://hub.example/ws", "wss://hub.example/", BROKER):
        assert parse_hub(url).documents == ()
    (named,) = parse_hubs(["https://hub.example/"], advertise=["https://public.example/"])
    assert named.documents == (), "the user has named what is advertised"
