"""The public tests of publishers at websub.rocks, and all three roles of WebSub together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from rsnotify.format.links import parse_links
from rsnotify.format.model import Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Publisher
from rsnotify_subscriber import FolderMirror, FollowOptions, PushState, Subscriber, Via
from tests.end_to_end.publishing import publishing
from tests.publisher.helpers import PATIENCE
from tests.subscriber.websub.desk import Desk, open_desk

NAMES = [f"r{number}" for number in range(200)]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with open_desk() as opened:
        yield opened


@pytest.fixture
async def publisher(tmp_path: Path, hub: str, unused_tcp_port: int) -> AsyncIterator[Publisher]:
    """A Source in an application, which pushes to the hub by WebSub."""
    async with publishing(tmp_path / "source", unused_tcp_port, hub + "websub") as publisher:
        yield publisher


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_topic_names_itself_and_its_hub_in_its_headers(
    publisher: Publisher, hub: str, method: str
):
    topic = publisher.source.base_url + "channel.xml"
    async with aiohttp.request(method, topic) as response:
        assert response.status == 200
        links = parse_links(response.headers.getall("Link"))
    assert [target for relation, target in links if relation == "self"] == [topic]
    assert [target for relation, target in links if relation == "hub"] == [hub + "websub"]


async def test_who_subscribes_to_a_topic_is_delivered_its_updates(
    publisher: Publisher, desk: Desk, hub: str
):
    topic = publisher.source.base_url + "channel.xml"
    async with desk.receiving(topic) as recorder:
        await desk.subscriptions_at(hub, 1)
        change = await publisher.acreated(publisher.source.base_url + "r1", length=3)
        entries: list[Resource] = []
        while not entries:  # the first may be a heartbeat
            await recorder.until(lambda: recorder.documents)
            entries += read_document(recorder.documents.pop(0)).resources
        (entry,) = entries
        assert (entry.uri, entry.datetime) == (change.uri, change.datetime)
    await desk.subscriptions_at(hub, 0)


async def test_a_destination_follows_a_source_by_websub_alone(
    publisher: Publisher, desk: Desk, tmp_path: Path
):
    base = publisher.source.base_url
    mirror = tmp_path / "mirror"
    async with Subscriber(
        base,
        FolderMirror(mirror),
        state=tmp_path / "state",
        options=FollowOptions(via=Via.WEBSUB, callbacks=desk.callbacks),
    ) as subscriber:
        async with asyncio.timeout(PATIENCE):
            await subscriber.until(lambda status: status.push is PushState.UP)
            for name in NAMES:
                await publisher.acreated(base + name)
            await subscriber.until(lambda status: status.applied == len(NAMES))
            await subscriber.until(lambda status: status.level)
    assert sorted(path.name for path in mirror.iterdir()) == sorted(NAMES)
