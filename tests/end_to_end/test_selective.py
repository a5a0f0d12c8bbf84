"""A Destination that follows a part of a set is pushed that part, by a hub or by its broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from rsnotify.runtime.mqtt_broker import DEFAULT_PREFIX, BrokerLogin, channel_topic
from rsnotify.selection import Selection, push_selection_for
from rsnotify.sync.pace import Pace
from rsnotify_publisher import Publisher, application
from rsnotify_subscriber import FolderMirror, FollowOptions, MqttOptions, PushState, Subscriber, Via
from tests.end_to_end.conftest import running_hub
from tests.mosquitto import Mosquitto
from tests.publisher.helpers import PATIENCE, QUICK, serving

ACL = (Path(__file__).resolve().parents[2] / "hub/mosquitto/acl").read_text()
USERS = {"hub": "one", "subscriber": "two"}
LOGIN = BrokerLogin(user="subscriber", password=USERS["subscriber"])
#: Polls bring nothing.
PACE = Pace(poll=600.0, poll_with_push=600.0)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Mosquitto]:
    async with Mosquitto(tmp_path / "broker", users=USERS, acl=ACL) as started:
        yield started


@pytest.fixture
async def hub(tmp_path: Path, broker: Mosquitto) -> AsyncIterator[str]:
    login = {"mqtt_url": broker.url, "mqtt_user": "hub", "mqtt_password": USERS["hub"]}
    async with running_hub(tmp_path / "hub", **login) as url:
        yield url


class Source:
    """A Publisher in an application, which counts the GETs of what it has."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.base = publisher.source.base_url
        self.gets: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.gets.append(request.path)
        return web.Response(text=f"the content of {request.path}")


@pytest.fixture
async def source(tmp_path: Path, hub: str, unused_tcp_port: int) -> AsyncIterator[Source]:
    base = f"http://127.0.0.1:{unused_tcp_port}/"
    socket = hub.replace("http:", "ws:") + "ws"
    publisher = Publisher(tmp_path / "source", base, hubs=[socket], options=QUICK)
    source, app = Source(publisher), application(publisher)
    app.router.add_get("/{folder:maps|other}/{name}", source.answer)
    async with serving(app, unused_tcp_port):
        await publisher.acreated(base + "maps/a")
        await publisher.acreated(base + "other/a")
        assert await asyncio.to_thread(publisher.wait_published, PATIENCE)
        yield source


@asynccontextmanager
async def following(
    source: Source, folder: Path, broker: Mosquitto, via: Via
) -> AsyncIterator[Subscriber]:
    async with Subscriber(
        source.base,
        FolderMirror(folder / "mirror"),
        state=folder / "state",
        options=FollowOptions(
            via=via,
            pace=PACE,
            selection=Selection(only=(source.base + "maps/",)),
            mqtt=MqttOptions(url=broker.url, login=LOGIN) if via is Via.MQTT else MqttOptions(),
        ),
    ) as subscriber:
        async with asyncio.timeout(PATIENCE):
            await subscriber.until(lambda status: status.level)
            await subscriber.until(lambda status: status.push is PushState.UP)
            yield subscriber


@pytest.mark.parametrize("via", [Via.WEBSOCKET, Via.MQTT])
async def test_a_part_is_followed_by_push_alone_and_the_rest_moves_t(
    source: Source, tmp_path: Path, broker: Mosquitto, via: Via
):
    base = source.base
    async with following(source, tmp_path, broker, via) as subscriber:
        for number in range(20):
            await source.publisher.acreated(f"{base}other/r{number}")
            await source.publisher.acreated(f"{base}maps/r{number}")
        last = await source.publisher.aupdated(base + "other/a")
        await subscriber.until(lambda status: status.resources == 21)
        end = last.datetime
        assert end is not None
        await subscriber.until(lambda status: status.through is not None and status.through >= end)
        assert subscriber.status.level
    mirror = tmp_path / "mirror"
    assert len(list((mirror / "maps").iterdir())) == 21
    assert not (mirror / "other").exists()
    assert not [path for path in source.gets if path.startswith("/other")]
    channel = base + "channel.xml"
    part = DEFAULT_PREFIX + push_selection_for(Selection(only=(base + "maps/",))).digest(channel)
    if via is Via.MQTT:
        async with asyncio.timeout(PATIENCE):
            while not broker.count(part):  # what it did it may say a moment later
                await broker.news()
    sent = [line for line in broker.lines if "Sending PUBLISH" in line]
    assert any(part in line for line in sent) is (via is Via.MQTT)
    assert not any(channel_topic(channel) in line for line in sent), "nobody needs the whole"
