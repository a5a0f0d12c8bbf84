"""Hearing of changes from a real broker, that may go away, forget, or be somebody else's."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import ConfigurationError, FetchError, RefusedAddress, Unavailable
from rsnotify.runtime.mqtt_broker import BrokerLogin, parse_broker
from rsnotify.runtime.mqtt_connection import connect
from rsnotify_subscriber import FollowOptions, MqttOptions, PushState, Subscriber, Via
from rsnotify_subscriber.push import mqtt_transport as mqtt
from rsnotify_subscriber.push.mqtt_transport import DEFAULT_MQTT, MqttTransport
from tests.mosquitto import PATIENCE, Mosquitto
from tests.subscriber.destination import Destination
from tests.subscriber.hub import anywhere, nowhere
from tests.subscriber.recording import RecordingListener, receiving
from tests.subscriber.source import SmallSource, path_of, status

TOPIC = "http://a.example/c"


@pytest.fixture
def offered(source: SmallSource, mosquitto: Mosquitto, some_content: None) -> SmallSource:
    source.hubs = [mosquitto.url]
    return source


async def publish(broker: Mosquitto, source: SmallSource) -> None:
    await say(broker, source.latest()[0], source.base + "channel.xml")


async def say(broker: Mosquitto, body: bytes, channel: str = TOPIC) -> None:
    address = parse_broker(broker.url)
    async with asyncio.timeout(PATIENCE), connect(address) as connection:
        options = {"content_type": "application/xml", "channel": channel}
        await (await connection.publish(address.topic(channel), body, **options))


def transport_to(url: str, options: MqttOptions = DEFAULT_MQTT, **other: Any) -> MqttTransport:
    other = {"allows_any_address": anywhere} | other
    return MqttTransport(parse_broker(url), TOPIC, options, **other)


def following(destination: Destination, **options: Any) -> AbstractAsyncContextManager[Subscriber]:
    return destination.following(**{"via": Via.MQTT} | options)


async def test_a_certificate_that_is_just_being_replaced_is_no_end(tmp_path: Path) -> None:
    options = MqttOptions(login=BrokerLogin(ca=str(tmp_path / "ca.pem")))
    transport = transport_to("mqtts://127.0.0.1", options)
    with pytest.raises(Unavailable, match="cannot use the certificates"):
        await transport.receive(None, RecordingListener())


@pytest.mark.parametrize(
    "options",
    [{}, {"mqtt": MqttOptions(version="3.1.1")}, {"via": Via.AUTO}],
    ids=["MQTT 5", "MQTT 3.1.1", "auto"],
)
@pytest.mark.parametrize("is_inline", [False, True])
async def test_a_change_is_applied_without_a_poll_and_inline_content_without_a_get(
    is_inline: bool,
    options: dict[str, Any],
    offered: SmallSource,
    mosquitto: Mosquitto,
    destination: Destination,
) -> None:
    async with following(destination, **options) as subscriber:
        offered.answers["/data/changelist.xml"] = status(503)
        put = offered.put_inline if is_inline else offered.put
        put("new", b"pushed")
        await publish(mosquitto, offered)
        await destination.until(lambda: subscriber.status.applied == 6)
        assert destination.equals_source()
        assert offered.gets[path_of("new")] == (0 if is_inline else 1)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_what_a_broker_missed_is_pulled_when_it_is_back(
    offered: SmallSource, mosquitto: Mosquitto, destination: Destination, how: signal.Signals
) -> None:
    async with following(destination) as subscriber:
        await mosquitto.stop(how)
        await destination.until(lambda: subscriber.status.push is PushState.DOWN)
        offered.put("while-away", b"nobody pushed this")
        await mosquitto.start()
        await destination.until(lambda: subscriber.status.push is PushState.UP)
        offered.put("then", b"this was")
        await publish(mosquitto, offered)
        await destination.until_equal()


async def test_what_is_retained_shows_at_once_where_the_stream_stands(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven: list[asyncio.Task[bool]] = []
    within = mqtt.wait_for_event

    async def noted(event: asyncio.Event, _: float) -> bool:
        proven.append(asyncio.create_task(within(event, PATIENCE)))
        return await proven[-1]

    monkeypatch.setattr(mqtt, "wait_for_event", noted)
    await say(mosquitto, b"<retained/>")
    async with receiving(transport_to(mosquitto.url)) as recorder:
        await recorder.until_recorded("up", b"<retained/>")
        assert [await one for one in proven] == [True]
        await say(mosquitto, b"<later/>")
        await recorder.until_recorded(b"<later/>")
    assert "gap" not in recorder.events


async def test_a_session_keeps_what_comes_while_one_is_away(mosquitto: Mosquitto) -> None:
    kept = transport_to(mosquitto.url, MqttOptions(session="mine"))
    async with receiving(kept) as recorder:
        await recorder.until_recorded("up")
    for number in range(3):
        await say(mosquitto, b"<a%d/>" % number)
    async with receiving(kept) as recorder:
        await recorder.until_recorded(b"<a0/>", b"<a1/>", b"<a2/>")
    await say(mosquitto, b"<b/>")
    await say(mosquitto, b"<c/>")
    async with receiving(transport_to(mosquitto.url)) as recorder:
        await recorder.until_recorded("up", b"<c/>")
    assert b"<b/>" not in recorder.events, "without a session only the newest comes"


async def test_what_is_no_fragment_hurts_nobody(
    offered: SmallSource, mosquitto: Mosquitto, destination: Destination
) -> None:
    async with following(destination):
        for body in (b"", b"\xff\x00", b"<urlset", b"x" * 100_000):
            await say(mosquitto, body, offered.base + "channel.xml")
        offered.put("new", b"pushed")
        await publish(mosquitto, offered)
        await destination.until_equal()


async def test_a_broker_at_a_private_address_is_not_dialled_for_a_source(
    offered: SmallSource, mosquitto: Mosquitto, destination: Destination
) -> None:
    elsewhere = mosquitto.url.replace("127.0.0.1", "localhost")
    transport = transport_to(elsewhere, allows_any_address=nowhere)
    with pytest.raises(RefusedAddress, match="not public"):
        await transport.receive(None, RecordingListener())
    assert mosquitto.count("New connection") == 0
    # The user may name any.
    offered.hubs = ["mqtt://nowhere.invalid"]
    async with following(destination, mqtt=MqttOptions(url=elsewhere)):
        offered.put("new", b"pushed")
        await publish(mosquitto, offered)
        await destination.until_equal()


async def test_a_user_and_password_are_shown_to_the_named_broker(
    offered: SmallSource, tmp_path: Path, destination: Destination
) -> None:
    acl = "user reader\ntopic read rsnotify/#\n"
    async with Mosquitto(tmp_path / "strict", users={"reader": "secret"}, acl=acl) as broker:
        login = BrokerLogin(user="reader", password="secret")
        async with following(destination, mqtt=MqttOptions(url=broker.url, login=login)):
            pass
        with pytest.raises(FetchError, match="it refuses a login without a user"):
            await transport_to(broker.url).receive(None, RecordingListener())


async def test_a_login_that_is_refused_is_a_warning_also_after_the_broker_was_away(
    offered: SmallSource,
    tmp_path: Path,
    destination: Destination,
    caplog: pytest.LogCaptureFixture,
) -> None:
    strict = Mosquitto(tmp_path / "strict", users={"reader": "secret"})
    login = BrokerLogin(user="reader", password="wrong")
    options = MqttOptions(url=strict.url, login=login)
    async with destination.subscriber(via=Via.MQTT, mqtt=options) as subscriber:
        await destination.until(lambda: "cannot connect" in str(subscriber.status.error))
        async with strict:
            await destination.until(lambda: "refuses the login" in str(subscriber.status.error))
            assert subscriber.status.push is PushState.DOWN
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert warnings[0].startswith("push is down; polling the lists: ")
    assert warnings[1].startswith("push is refused; polling the lists: ")
    assert len(warnings) == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (MqttOptions(login=BrokerLogin(user="me", password="canary")), "requires the URL"),
        (MqttOptions(login=BrokerLogin(certificate="me.pem")), "requires the URL"),
        (MqttOptions(url="http://broker"), "not a broker"),
        (MqttOptions(version="4"), "not a version"),
        (MqttOptions(login=BrokerLogin(ca="not-there.pem")), "not-there.pem"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    tmp_path: Path, options: MqttOptions, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason) as error:
        Subscriber(
            "http://a.example/", lambda _: None, state=tmp_path, options=FollowOptions(mqtt=options)
        )  # type: ignore[arg-type,return-value]
    assert "canary" not in str(error.value) + repr(options)


async def test_without_a_broker_there_is_no_way(
    source: SmallSource, destination: Destination
) -> None:
    source.hubs = ["https://hub.example/websub", "mqtt://"]
    with pytest.raises(ConfigurationError, match="offers no hub that supports MQTT"):
        await destination.catch_up(via=Via.MQTT)
