"""Feeds that name a hub, ours as a process: its deliveries make the gateway read the feed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.gateway.checking import origin
from tests.gateway.origin_server import OriginServer
from tests.gateway.running import RunningGateway
from tests.gateway.test_feeds import SITE, atom
from tests.hub.processes import hub_process
from tests.ports import free_port
from tests.publisher.helpers import PATIENCE

#: Only an announcement makes the gateway read the feed before the test has given up.
RARELY = {"poll": 3600, "poll_most": 3600}


@pytest.fixture
async def site() -> AsyncIterator[OriginServer]:
    async with OriginServer() as server:
        yield server


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.02)


def publish(site: OriginServer, hub: str, entries: Sequence[str]) -> None:
    links = f'<link rel="hub" href="{hub}websub"/><link rel="self" href="{site.url("/feed")}"/>'
    feed = atom([(name, name) for name in entries])
    site.pages["/feed"] = feed.replace(b"<entry>", links.encode() + b"<entry>", 1)


async def ping(site: OriginServer, hub: str) -> None:
    form = {"hub.mode": "publish", "hub.url": site.url("/feed")}
    async with ClientSession() as session, session.post(hub + "websub", data=form) as answer:
        assert answer.status // 100 == 2, await answer.text()


def seen(running: RunningGateway) -> set[str]:
    with running.gateway.watches[0].publisher.source.open_journal() as journal:
        return {one.uri.removeprefix(SITE) for one in journal.resources()}


async def subscribed(site: OriginServer) -> None:
    """Wait for the last reading that a subscription begins with."""
    # The first check, the discovery, and a check when it begins and one when it must have begun.
    await until(lambda: site.requests["/feed"] >= 4)


async def test_a_delivery_of_the_hub_makes_the_gateway_read_the_feed(
    site: OriginServer, tmp_path: Path
) -> None:
    port = free_port()
    arguments = ("--port", str(port), "--allow-private-addresses")
    async with hub_process(tmp_path / "hub", *arguments) as (hub, process):
        publish(site, hub.url, ["a"])
        given = origin("feed", site.url("/feed"), **RARELY)
        async with RunningGateway(tmp_path / "state", [given]) as running:
            await running.until_ready()
            await subscribed(site)
            publish(site, hub.url, ["b", "a"])
            await ping(site, hub.url)
            await until(lambda: seen(running) == {"a", "b"})
            process.kill()
            await process.wait()
            # The subscription is in the hub's store.
            async with hub_process(tmp_path / "hub", *arguments) as (back, _):
                publish(site, back.url, ["c", "b", "a"])
                await ping(site, back.url)
                await until(lambda: seen(running) == {"a", "b", "c"})


async def test_a_feed_is_polled_while_its_hub_is_down(site: OriginServer, tmp_path: Path) -> None:
    publish(site, f"http://127.0.0.1:{free_port()}/", ["a"])
    async with RunningGateway(tmp_path, [origin("feed", site.url("/feed"))]) as running:
        await running.until_ready()
        publish(site, "http://127.0.0.1:1/", ["b", "a"])
        await until(lambda: seen(running) == {"a", "b"})
        assert running.gateway.watches[0].problem is None


async def test_a_feed_without_a_hub_is_read_by_checks_alone(
    site: OriginServer, tmp_path: Path
) -> None:
    site.pages["/feed"] = atom([("a", "a")])
    async with RunningGateway(tmp_path, [origin("feed", site.url("/feed"), **RARELY)]) as running:
        await running.until_ready()
        assert site.requests["/feed"] == 1
