"""A Source that publishes at a broker, without a hub."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify.runtime.mqtt_broker import BrokerLogin, MqttMessage, channel_topic, parse_broker
from rsnotify.runtime.mqtt_connection import BrokerSession, connect
from rsnotify_publisher import Publisher, parse_hub
from tests.mosquitto import Mosquitto
from tests.publisher.helpers import BASE, PATIENCE, chain_of, quick_publisher

CHANNEL = BASE + "channel.xml"
AWAY = BrokerSession("a-destination", 3600)


class Listener:
    def __init__(self, broker: Mosquitto) -> None:
        self._broker = parse_broker(broker.url)
        self._arrived = asyncio.Event()
        self.messages: list[MqttMessage] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async with connect(self._broker, session=AWAY, on_message=self._add) as connection:
            await connection.subscribe(channel_topic(CHANNEL))
            yield

    def _add(self, message: MqttMessage) -> None:
        self.messages.append(message)
        self._arrived.set()

    def fragments(self) -> list[Document]:
        bodies = dict.fromkeys(message.payload for message in self.messages)
        found = [read_document(body) for body in bodies]
        return sorted(found, key=lambda fragment: fragment.until)

    def uris(self) -> list[str]:
        return [entry.uri for fragment in self.fragments() for entry in fragment.resources]

    async def until(self, happened: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not happened():
                self._arrived.clear()
                await self._arrived.wait()


@pytest.fixture
def listener(mosquitto: Mosquitto) -> Listener:
    return Listener(mosquitto)


async def test_a_change_reaches_the_broker_at_once(
    tmp_path: Path, mosquitto: Mosquitto, listener: Listener
):
    async with (
        listener.listening(),
        quick_publisher(tmp_path / "state", mosquitto.url) as publisher,
    ):
        change = await publisher.acreated(BASE + "a", length=3)
        await listener.until(lambda: listener.messages)
    (message,) = listener.messages
    assert message.topic == channel_topic(CHANNEL)
    assert (message.content_type, message.channel) == ("application/xml", CHANNEL)
    assert listener.fragments()[0].until == change.datetime


@pytest.mark.parametrize(("version", "how"), [("5", signal.SIGKILL), ("3.1.1", signal.SIGTERM)])
async def test_a_restarted_broker_misses_nothing(
    tmp_path: Path, mosquitto: Mosquitto, listener: Listener, how: signal.Signals, version: str
):
    hub = parse_hub(mosquitto.url, version=version)
    async with quick_publisher(tmp_path / "state", hub) as publisher:
        async with listener.listening():
            for number in range(20):
                await publisher.aupdated(BASE + str(number))
            await listener.until(lambda: len(listener.uris()) == 20)
        await mosquitto.stop(how)
        for number in range(20, 40):
            await publisher.aupdated(BASE + str(number))
        await mosquitto.start()
        async with listener.listening():
            await publisher.aupdated(BASE + "last")
            await listener.until(lambda: BASE + "last" in listener.uris())
            await listener.until(lambda: len(listener.uris()) == 41)
    chain_of(listener.fragments())


async def test_a_restarted_source_sends_what_the_broker_lacks(
    tmp_path: Path, mosquitto: Mosquitto, listener: Listener
):
    async with (
        listener.listening(),
        Publisher(tmp_path / "state", BASE, hubs=[mosquitto.url]) as publisher,
    ):
        await publisher.aupdated(BASE + "a")
        await listener.until(lambda: listener.messages)
    await mosquitto.stop()
    async with quick_publisher(tmp_path / "state", mosquitto.url, grace=0) as publisher:
        await publisher.aupdated(BASE + "b")
    await mosquitto.start()
    async with listener.listening(), Publisher(tmp_path / "state", BASE, hubs=[mosquitto.url]):
        await listener.until(lambda: BASE + "b" in listener.uris())
    chain_of(listener.fragments())


async def test_a_fragment_too_large_for_the_broker_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with Mosquitto(tmp_path / "small", settings="max_packet_size 2000") as broker:
        listener = Listener(broker)
        async with (
            listener.listening(),
            quick_publisher(tmp_path / "state", broker.url, fragment_entries=1) as publisher,
        ):
            await publisher.aupdated(BASE + "x" * 1500)
            await publisher.aupdated(BASE + "y")
            await listener.until(lambda: BASE + "y" in listener.uris())
    assert listener.uris() == [BASE + "y"]
    assert "skipped" in caplog.text


async def test_a_refusing_broker_is_reported_once_and_without_the_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    async with Mosquitto(tmp_path / "strict", users={"source": "right"}) as broker:
        listener = Listener(broker)
        hub = parse_hub(broker.url, login=BrokerLogin(user="source", password="canary"))
        async with quick_publisher(tmp_path / "state", hub, grace=0) as publisher:
            publisher.updated(BASE + "a")
            async with asyncio.timeout(PATIENCE):
                while caplog.text.count("changes wait") < 2:  # two refusals were logged
                    await broker.news()
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    (warning,) = [record.getMessage() for record in warnings]
    assert "it refuses the login of 'source'" in warning
    assert warning.endswith(
        "; correct the MQTT user and password, or the broker's permissions for this user; "
        "changes wait in the journal until it accepts them"
    )
    assert "canary" not in caplog.text + repr(hub)
    assert not listener.messages


def test_the_hubs_in_the_documents_include_the_topic(tmp_path: Path):
    hubs = ["wss+mqtt://broker.example", "mqtts://other.example/own/"]
    documents = Publisher(tmp_path, BASE, hubs=hubs).source.documents
    assert documents.hubs == (
        f"wss+mqtt://broker.example/{channel_topic(CHANNEL)}",
        f"mqtts://other.example/{channel_topic(CHANNEL, 'own/')}",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "mqtt://"},
        {"url": "mqtts://user:canary@broker"},
        {"url": "mqtts://broker", "version": "4"},
        {"url": "mqtts://broker", "login": BrokerLogin(ca="not-there.pem")},
    ],
)
def test_invalid_brokers_are_refused(wrong: dict[str, object]):
    with pytest.raises(ConfigurationError) as error:
        parse_hub(**wrong)
    assert "canary" not in str(error.value)
