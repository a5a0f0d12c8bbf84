"""Feeds that name a hub, ours as a process: its deliveries make the gateway read the feed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

from aiohttp import ClientSession

from rsnotify.runtime.processes import Process
from tests.gateway.checking import origin
from tests.gateway.origin_server import SITE, Site, atom
from tests.gateway.published import until_replayed
from tests.gateway.running import RunningGateway, configuration
from tests.hub.processes import hub_process
from tests.ports import free_port
from tests.waiting import until

#: Only an announcement makes the gateway read the feed before the test has given up.
RARELY = {"poll": 3600, "poll_most": 3600}


def publish(site: Site, hub: str, entries: Sequence[str]) -> None:
    links = f'<link rel="hub" href="{hub}websub"/><link rel="self" href="{site.url("/feed")}"/>'
    feed = atom([(name, name) for name in entries])
    site.pages["/feed"] = feed.replace(b"<entry>", links.encode() + b"<entry>", 1)


async def ping(site: Site, hub: str) -> None:
    form = {"hub.mode": "publish", "hub.url": site.url("/feed")}
    async with ClientSession() as session, session.post(hub + "websub", data=form) as answer:
        assert answer.status // 100 == 2, await answer.text()


def seen(running: RunningGateway) -> set[str]:
    with running.gateway.watches[0].publisher.source.open_journal() as journal:
        return {one.uri.removeprefix(SITE) for one in journal.resources()}


async def subscribed(site: Site) -> None:
    """Wait for the last reading that a subscription begins with."""
    # The first check, the discovery, and a check when it begins and one when it must have begun.
    await until(lambda: site.requests["/feed"] >= 4)


async def test_a_delivery_of_the_hub_makes_the_gateway_read_the_feed(site: Site, tmp_path: Path):
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


async def test_a_feed_is_polled_while_its_hub_is_down(site: Site, tmp_path: Path):
    publish(site, f"http://127.0.0.1:{free_port()}/", ["a"])
    async with RunningGateway(tmp_path, [origin("feed", site.url("/feed"))]) as running:
        await running.until_ready()
        publish(site, "http://127.0.0.1:1/", ["b", "a"])
        await until(lambda: seen(running) == {"a", "b"})
        assert running.gateway.watches[0].problem is None


async def test_a_feed_without_a_hub_is_read_by_checks_alone(site: Site, tmp_path: Path):
    site.pages["/feed"] = atom([("a", "a")])
    async with RunningGateway(tmp_path, [origin("feed", site.url("/feed"), **RARELY)]) as running:
        await running.until_ready()
        assert site.requests["/feed"] == 1


async def test_a_feed_ends_equal_though_its_hub_and_the_gateway_are_killed(
    site: Site, tmp_path: Path
):
    ports = {"hub": free_port(), "gateway": free_port(), "status": free_port()}
    hub_url, url = (f"http://127.0.0.1:{ports[name]}/" for name in ("hub", "gateway"))
    file = tmp_path / "gateway.toml"
    feed = {"name": "one", "type": "feed", "url": site.url("/feed"), **RARELY}
    file.write_text(configuration(ports["gateway"], tmp_path / "state", "500 changes", feed))
    entries: list[str] = []

    def change() -> None:
        entries.insert(0, f"e{len(entries)}")
        publish(site, hub_url, entries)

    change()
    random = Random(5)
    arguments = (tmp_path / "hub", "--port", str(ports["hub"]))
    log = tmp_path / "log"
    command = ("gateway", str(file), "--status-port", str(ports["status"]))
    gateway = await Process.start(*command, log=log)
    try:
        for _ in range(2):
            async with hub_process(*arguments) as (hub, process):
                for _ in range(5):
                    change()
                    await ping(site, hub.url)
                    await asyncio.sleep(random.random() * 0.2)
                await gateway.kill()
                change()
                gateway = await Process.start(*command, log=log)
                await gateway.url()
                process.kill()
                await process.wait()
        async with hub_process(*arguments) as (hub, _), ClientSession() as session:
            wanted = {SITE + entry for entry in entries}
            await until_published(url, wanted)
            change()
            await ping(site, hub.url)
            await until_published(url, wanted | {SITE + entries[0]})
            async with session.get(f"http://127.0.0.1:{ports['status']}/readyz") as answer:
                assert await answer.text() == "ready\n"
    finally:
        assert await gateway.stop() == 0, log.read_text()


async def until_published(url: str, wanted: set[str]) -> None:
    await until_replayed(url, ["one"], lambda sets: set(sets.get("one", ())) == wanted)
