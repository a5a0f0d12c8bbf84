"""A Source that is given the URL of its hub alone can be followed over every transport of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.request import urlopen

import aiohttp
import pytest
from aiohttp import web

from rsnotify.format.reader import read_document
from rsnotify_hub.application import create_application
from rsnotify_hub.config.loading import load_configuration
from rsnotify_publisher import Publisher
from tests.mosquitto import Mosquitto
from tests.publisher.helpers import BASE, PATIENCE, QUICK, eventually
from tests.reader import Reader

SOURCE = "http://127.0.0.1:8000/"


def follow_over(via: str, folder: Path, broker: str) -> None:
    with Reader(folder, environment={"RSNOTIFY_HUB_MQTT_URL": broker}) as reader:
        data, copy = folder / "data/one.ttl", folder / "mirror/one.ttl"
        data.parent.mkdir()
        data.write_text("first")
        reader.start("rsnotify hub")
        reader.start(f"rsnotify source data --base-url {SOURCE} --hub http://127.0.0.1:8080/")
        capability_list = reader.adapt(SOURCE) + "capabilitylist.xml"
        eventually(lambda: b"mqtt://" in urlopen(capability_list).read())
        reader.start(f"rsnotify follow {SOURCE} mirror --via {via} --poll 600", copy.exists)
        data.write_text("second")
        eventually(lambda: copy.read_text() == "second")
        reader.end()


@pytest.mark.parametrize("via", ["mqtt", "websocket"])
async def test_one_url_of_a_hub_is_enough(tmp_path: Path, mosquitto: Mosquitto, via: str):
    await asyncio.to_thread(follow_over, via, tmp_path / "here", mosquitto.url)


# A hub that others reach below a path, as behind a proxy that has more to serve.


async def test_a_source_names_it_by_its_base(tmp_path: Path, unused_tcp_port: int):
    base = f"http://127.0.0.1:{unused_tcp_port}/push/"
    configuration = load_configuration(None, data=str(tmp_path / "hub"))
    app = web.Application()
    hub = create_application(configuration, public_url=base, anonymous=True)
    app.add_subapp("/push", hub)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    publisher = Publisher(tmp_path / "source", BASE, hubs=[base], options=QUICK)
    async with (
        asyncio.timeout(PATIENCE),
        AsyncExitStack() as stack,
        aiohttp.ClientSession() as session,
        publisher,
    ):
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
        await publisher.acreated(BASE + "r1", length=3)
        changes: dict[str, str] = {}
        while BASE + "channel.xml" not in changes:
            async with session.get(base + "topics") as answer:
                topics = (await answer.json())["topics"]
            changes = {row["topic"]: row["changes"] for row in topics}
        assert changes[BASE + "channel.xml"].startswith(base + "topics?")
    listed = read_document((publisher.source.documents_folder / "capabilitylist.xml").read_bytes())
    assert {link.href for entry in listed.resources for link in entry.links} >= {
        base + "websub",
        base.replace("http", "ws") + "ws",
    }
