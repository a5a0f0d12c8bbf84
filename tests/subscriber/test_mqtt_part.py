"""Hearing of a part of a channel from a broker, where a hub behind it makes one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rsnotify.errors import FetchError
from rsnotify.runtime.mqtt_broker import (
    DEFAULT_PREFIX,
    MqttMessage,
    channel_topic,
    parse_broker,
    read_selection_request,
    request_prefix,
)
from rsnotify.runtime.mqtt_connection import BrokerConnection, connect
from rsnotify.selection import PushSelection
from rsnotify_subscriber import MqttOptions
from rsnotify_subscriber.push import mqtt_transport as mqtt
from rsnotify_subscriber.push.mqtt_transport import DEFAULT_MQTT, MqttTransport
from tests.mosquitto import PATIENCE, Mosquitto
from tests.subscriber.hub import anywhere
from tests.subscriber.recording import RecordingListener, receiving

TOPIC = "http://a.example/c"
MAPS = PushSelection(prefixes=("http://a.example/maps/",))
OTHER = PushSelection(prefixes=("http://a.example/other/",))
WHOLE, PART = channel_topic(TOPIC), DEFAULT_PREFIX + MAPS.digest(TOPIC)


class Hub:
    """A publisher from which parts of channels can be requested."""

    def __init__(self, connection: BrokerConnection, asked: asyncio.Queue[MqttMessage]) -> None:
        self._connection = connection
        self._asked = asked

    async def asked(self) -> str:
        """Wait until somebody asks; return the name of the part."""
        async with asyncio.timeout(PATIENCE):
            message = await self._asked.get()
        ask = read_selection_request(message.payload)
        assert message.topic == channel_topic(ask.topic, request_prefix(DEFAULT_PREFIX))
        assert not message.retained
        return DEFAULT_PREFIX + ask.select.digest(ask.topic)

    async def say(self, name: str, body: bytes, *, retain: bool = True) -> None:
        async with asyncio.timeout(PATIENCE):
            options = {"content_type": "application/xml", "channel": TOPIC, "retain": retain}
            await (await self._connection.publish(name, body, **options))


@pytest.fixture
async def hub(mosquitto: Mosquitto) -> AsyncIterator[Hub]:
    asked: asyncio.Queue[MqttMessage] = asyncio.Queue()
    async with connect(parse_broker(mosquitto.url), on_message=asked.put_nowait) as connection:
        await connection.subscribe(request_prefix(DEFAULT_PREFIX) + "+")
        yield Hub(connection, asked)


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt, "RETAINED_WAIT", 0.1)


@pytest.fixture
def long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt, "RETAINED_WAIT", PATIENCE)


def transport_to(
    url: str,
    options: MqttOptions = DEFAULT_MQTT,
    select: PushSelection = MAPS,
    unasked: set[str] | None = None,
) -> MqttTransport:
    unasked = set() if unasked is None else unasked
    return MqttTransport(
        parse_broker(url),
        TOPIC,
        options,
        allows_any_address=anywhere,
        select=select,
        without_selections=unasked,
    )


async def test_who_is_answered_hears_the_part_and_not_the_whole(
    mosquitto: Mosquitto, hub: Hub, long_wait: None
) -> None:
    await hub.say(WHOLE, b"<whole/>")
    async with receiving(transport_to(mosquitto.url)) as recorder:
        assert await hub.asked() == PART
        await hub.say(PART, b"<part/>")
        await recorder.until_recorded("up", b"<part/>")
        await hub.say(WHOLE, b"<more/>")
        await hub.say(PART, b"<another/>")
        await recorder.until_recorded(b"<another/>")
    assert recorder.events == ["up", b"<part/>", b"<another/>"]


async def test_what_is_retained_of_the_part_shows_where_the_stream_stands(
    mosquitto: Mosquitto, hub: Hub, long_wait: None
) -> None:
    await hub.say(PART, b"<part/>")
    async with receiving(transport_to(mosquitto.url)) as recorder:
        await recorder.until_recorded("up", b"<part/>")
    assert "gap" not in recorder.events


async def test_who_is_not_answered_hears_the_whole(
    mosquitto: Mosquitto, hub: Hub, short_wait: None
) -> None:
    async with receiving(transport_to(mosquitto.url)) as recorder:
        await recorder.until_recorded("up", "gap")
        await hub.say(WHOLE, b"<whole/>")
        await recorder.until_recorded(b"<whole/>")


async def test_who_is_answered_late_does_without_the_whole_from_then_on(
    mosquitto: Mosquitto, hub: Hub, short_wait: None
) -> None:
    await hub.say(WHOLE, b"<whole/>")
    async with receiving(transport_to(mosquitto.url)) as recorder:
        await recorder.until_recorded("up", b"<whole/>")
        await hub.say(PART, b"<part/>")
        await recorder.until_recorded(b"<part/>")
        async with asyncio.timeout(PATIENCE):
            while not mosquitto.count("Received UNSUBSCRIBE"):
                await mosquitto.news()
        await hub.say(WHOLE, b"<more/>")
        await hub.say(PART, b"<another/>")
        await recorder.until_recorded(b"<another/>")
    assert b"<more/>" not in recorder.events


async def test_when_the_part_ends_it_is_asked_for_again_and_the_whole_is_heard_meanwhile(
    mosquitto: Mosquitto, hub: Hub, short_wait: None
) -> None:
    async with receiving(transport_to(mosquitto.url)) as recorder:
        assert await hub.asked() == PART
        await hub.say(PART, b"<part/>")
        await recorder.until_recorded(b"<part/>")
        await hub.say(PART, b"")
        assert await hub.asked() == PART
        await hub.say(WHOLE, b"<whole/>")
        await recorder.until_recorded(b"<whole/>")
    assert b"" not in recorder.events


async def test_it_is_asked_for_again_before_the_lease_ends(
    mosquitto: Mosquitto, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "LEASE", 0.4)
    async with receiving(transport_to(mosquitto.url)) as recorder:
        await hub.asked()
        await hub.say(PART, b"<part/>")
        await recorder.until_recorded(b"<part/>")
        for _ in range(3):
            assert await hub.asked() == PART
    assert recorder.events == ["up", *recorder.events[1:]]


async def test_a_session_of_before_brings_nothing_that_was_asked_for_then(
    mosquitto: Mosquitto, hub: Hub
) -> None:
    options = MqttOptions(session="mine")
    async with receiving(transport_to(mosquitto.url, options, OTHER)) as recorder:
        await hub.asked()
        await hub.say(DEFAULT_PREFIX + OTHER.digest(TOPIC), b"<other/>")
        await recorder.until_recorded(b"<other/>")
    await hub.say(DEFAULT_PREFIX + OTHER.digest(TOPIC), b"<more/>")
    async with receiving(transport_to(mosquitto.url, options)) as recorder:
        await hub.asked()
        await hub.say(PART, b"<part/>")
        await recorder.until_recorded(b"<part/>")
    assert b"<more/>" not in recorder.events


async def test_a_broker_that_ends_the_connection_of_who_asks_is_not_asked_again(
    mosquitto: Mosquitto, hub: Hub, long_wait: None
) -> None:
    unasked: set[str] = set()
    await hub.say(WHOLE, b"<whole/>")
    transport = transport_to(mosquitto.url, unasked=unasked)
    receive = asyncio.create_task(transport.receive(None, RecordingListener()))
    await hub.asked()
    receive.cancel()
    await asyncio.gather(receive, return_exceptions=True)
    assert not unasked, "we ended it"
    receive = asyncio.create_task(transport.receive(None, RecordingListener()))
    await hub.asked()
    await mosquitto.stop()
    with pytest.raises(FetchError):
        await receive
    assert unasked == {mosquitto.url}
    await mosquitto.start()
    async with receiving(transport) as recorder:
        await recorder.until_recorded("up", b"<whole/>")


async def test_a_broker_that_lets_nobody_ask_gives_the_whole(
    tmp_path_factory: pytest.TempPathFactory, short_wait: None
) -> None:
    folder = tmp_path_factory.mktemp("strict")
    async with (
        Mosquitto(folder, acl="topic read rsnotify/#\n") as broker,
        receiving(transport_to(broker.url)) as recorder,
    ):
        await recorder.until_recorded("up", "gap")


async def test_a_hub_that_ends_each_part_at_once_receives_few_requests(
    mosquitto: Mosquitto, hub: Hub
) -> None:
    requests = 0

    async def answer() -> None:
        nonlocal requests
        while True:
            await hub.asked()
            requests += 1
            await hub.say(PART, b"<part/>", retain=False)
            await hub.say(PART, b"", retain=False)

    async with receiving(transport_to(mosquitto.url)):
        answering = asyncio.create_task(answer())
        await asyncio.sleep(3)
        answering.cancel()
    assert 1 < requests <= 6
