"""A connection to a real broker: both versions, TLS, WebSocket, sessions, and what is refused."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from rsnotify.errors import ConfigurationError, ConnectionRefused, Unavailable
from rsnotify.runtime.mqtt_broker import BrokerLogin, parse_broker
from rsnotify.runtime.mqtt_connection import BrokerConnection, BrokerSession, connect
from tests.certificates import Authority
from tests.hub.mqtt.listeners import BrokerListener
from tests.mosquitto import PATIENCE, Mosquitto

CHANNEL = "https://source.example/channel.xml"
XML = "application/xml"


async def publish(connection: BrokerConnection, topic: str, payload: bytes) -> None:
    async with asyncio.timeout(PATIENCE):
        await (await connection.publish(topic, payload, content_type=XML, channel=CHANNEL))


@pytest.fixture
async def connection(mosquitto: Mosquitto) -> AsyncIterator[BrokerConnection]:
    async with connect(parse_broker(mosquitto.url)) as opened:
        yield opened


async def lost(connection: BrokerConnection, reason: str = ".") -> None:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Unavailable, match=reason):
            await connection.lost()


@asynccontextmanager
async def subscribed(url: str, topic: str = "#", **options: Any) -> AsyncIterator[BrokerListener]:
    inbox = BrokerListener()
    async with connect(
        parse_broker(url), on_message=inbox.messages.put_nowait, **options
    ) as connection:
        await connection.subscribe(topic)
        yield inbox


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_a_published_message_arrives_and_is_retained(
    mosquitto: Mosquitto, version: str
) -> None:
    broker = parse_broker(mosquitto.url)
    told = (XML, CHANNEL) if version == "5" else (None, None)
    async with connect(broker, version=version) as source:
        async with subscribed(mosquitto.url, version=version) as live:
            await publish(source, "a/b", b"<one/>")
            message = await live.next()
            assert (message.topic, message.payload, message.retained) == ("a/b", b"<one/>", False)
            assert (message.content_type, message.channel) == told
        async with subscribed(mosquitto.url, version=version) as late:
            message = await late.next()
            assert (message.payload, message.retained) == (b"<one/>", True)
            assert (message.content_type, message.channel) == told


async def test_many_large_messages_arrive_complete_and_in_order(mosquitto: Mosquitto) -> None:
    bodies = [bytes([number % 256]) * (number * 1000) for number in range(1, 200)]
    async with subscribed(mosquitto.url) as inbox, connect(parse_broker(mosquitto.url)) as source:
        futures = [
            await source.publish("t", body, content_type=XML, channel=CHANNEL) for body in bodies
        ]
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*futures)
        assert [(await inbox.next()).payload for _ in bodies] == bodies


async def test_it_goes_over_a_websocket_too(tmp_path: Path) -> None:
    async with Mosquitto(tmp_path, websocket=True) as mosquitto:
        url = f"ws+mqtt://127.0.0.1:{mosquitto.websocket_port}"
        async with subscribed(url) as inbox, connect(parse_broker(url)) as source:
            await publish(source, "t", b"x" * 20_000)
            assert (await inbox.next()).payload == b"x" * 20_000


async def test_a_broker_with_a_wrong_certificate_is_refused(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    certificate, key = ours.certificate("broker.example")
    settings = f"cafile {ours.file}\ncertfile {certificate}\nkeyfile {key}"
    async with Mosquitto(tmp_path / "broker", settings=settings) as mosquitto:
        url = mosquitto.url.replace("mqtt:", "mqtts:")
        async with subscribed(url, login=BrokerLogin(ca=ours.file)) as inbox:
            async with connect(parse_broker(url), BrokerLogin(ca=ours.file)) as source:
                await publish(source, "t", b"secret")
            assert (await inbox.next()).payload == b"secret"
        for login in (BrokerLogin(), BrokerLogin(ca=other.file)):
            with pytest.raises(Unavailable, match="an untrusted authority"):
                await enter(url, login=login)
        with pytest.raises(Unavailable, match="its certificate is for another host name"):
            await enter(url.replace("127.0.0.1", "localhost"), login=BrokerLogin(ca=ours.file))


async def test_a_certificate_of_ones_own_is_shown(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certificate("broker.example")
    mine = authority.certificate("hub")
    settings = (
        f"cafile {authority.file}\ncertfile {certificate}\nkeyfile {key}\n"
        "require_certificate true\nuse_identity_as_username true"
    )
    acl = "user hub\ntopic write rsnotify/#\n"
    async with Mosquitto(tmp_path / "broker", settings=settings, acl=acl) as mosquitto:
        url = mosquitto.url.replace("mqtt:", "mqtts:")
        login = BrokerLogin(ca=authority.file, certificate=mine[0], key=mine[1])
        async with connect(parse_broker(url), login) as hub:
            await publish(hub, "rsnotify/x", b"by who the certificate names")
        with pytest.raises(Unavailable):
            await enter(url, login=BrokerLogin(ca=authority.file))


async def enter(url: str, **options: Any) -> None:
    async with connect(parse_broker(url), **options) as connection:
        await connection.subscribe("#")


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_the_error_for_a_refused_login_says_what_to_correct(
    tmp_path: Path, version: str
) -> None:
    async with Mosquitto(tmp_path, users={"hub": "hunter2"}) as mosquitto:
        await enter(
            mosquitto.url, login=BrokerLogin(user="hub", password="hunter2"), version=version
        )
        for login, remedy in (
            (BrokerLogin(), "configure an MQTT user and password"),
            (BrokerLogin(user="hub", password="hunter3"), "correct the MQTT user and password"),
        ):
            with pytest.raises(
                Unavailable, match="it refuses (the|a) login .*; " + remedy
            ) as error:
                await enter(mosquitto.url, login=login, version=version)
            assert error.value.remedy is not None
            assert "hunter" not in str(error.value)
        assert "hunter" not in repr(login)


async def test_a_forbidden_topic_is_an_error_and_the_connection_stays_open(tmp_path: Path) -> None:
    acl = "topic read rsnotify/#\ntopic write mine/#\n"
    async with (
        Mosquitto(tmp_path, acl=acl) as mosquitto,
        connect(parse_broker(mosquitto.url)) as connection,
    ):
        with pytest.raises(ConnectionRefused) as error:
            await publish(connection, "rsnotify/x", b"a lie")
        assert not error.value.is_final
        await publish(connection, "mine/x", b"allowed")


async def test_a_message_that_is_too_large_is_not_sent(tmp_path: Path) -> None:
    async with (
        Mosquitto(tmp_path, settings="max_packet_size 2000") as mosquitto,
        connect(parse_broker(mosquitto.url)) as connection,
    ):
        with pytest.raises(ConnectionRefused) as error:
            await publish(connection, "t", b"x" * 2000)
        assert error.value.is_final
        await publish(connection, "t", b"x" * 1000)


async def test_the_session_keeps_messages_while_the_client_is_away(mosquitto: Mosquitto) -> None:
    session = BrokerSession("a-destination", 3600)
    inbox = BrokerListener()
    broker = parse_broker(mosquitto.url)
    async with connect(broker, session=session, on_message=inbox.messages.put_nowait) as connection:
        assert not connection.session_present
        await connection.subscribe("t")
    async with connect(broker) as source:
        for number in range(5):
            await publish(source, "t", str(number).encode())
    async with connect(broker, session=session, on_message=inbox.messages.put_nowait) as connection:
        assert connection.session_present
        assert [(await inbox.next()).payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_an_unacknowledged_message_is_sent_again(mosquitto: Mosquitto) -> None:
    session = BrokerSession("a-hub", 3600)
    broker = parse_broker(mosquitto.url)
    async with connect(broker) as source:
        inbox = BrokerListener()
        async with connect(
            broker, session=session, on_message=inbox.messages.put_nowait, manual_ack=True
        ) as connection:
            await connection.subscribe("t")
            await publish(source, "t", b"one")
            await publish(source, "t", b"two")
            connection.acknowledge(await inbox.next())
            assert (await inbox.next()).payload == b"two"
        inbox = BrokerListener()
        async with connect(
            broker, session=session, on_message=inbox.messages.put_nowait, manual_ack=True
        ):
            assert (await inbox.next()).payload == b"two"


async def test_a_broker_that_stops_is_missed_at_once(
    connection: BrokerConnection, mosquitto: Mosquitto
) -> None:
    await mosquitto.stop()
    await lost(connection, "it closed the connection")


async def test_a_lost_connection_fails_pending_publications(
    connection: BrokerConnection, mosquitto: Mosquitto
) -> None:
    mosquitto.pause()
    future = await connection.publish("t", b"x", content_type=XML, channel=CHANNEL)
    await mosquitto.stop(signal.SIGKILL)
    await lost(connection)
    with pytest.raises(Unavailable):
        await future
    for _ in range(200):  # also beyond the window
        with pytest.raises(Unavailable):
            await connection.publish("t", b"x", content_type=XML, channel=CHANNEL)


async def test_a_broker_that_answers_nothing_any_more_is_missed(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rsnotify.runtime.mqtt_connection.KEEPALIVE", 1)
    async with connect(parse_broker(mosquitto.url)) as connection:
        mosquitto.pause()
        await lost(connection, "it does not answer")


async def test_a_broker_that_does_not_answer_the_end_of_tls_is_left(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certificate("broker.example")
    settings = f"cafile {authority.file}\ncertfile {certificate}\nkeyfile {key}"
    async with Mosquitto(tmp_path / "broker", settings=settings) as mosquitto:
        url = mosquitto.url.replace("mqtt:", "mqtts:")
        async with connect(parse_broker(url), BrokerLogin(ca=authority.file)):
            mosquitto.pause()
            begun = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - begun < 20  # asyncio waits for 30 seconds


async def test_a_broker_that_does_not_answer_the_end_of_a_websocket_is_left(tmp_path: Path) -> None:
    async def stay(url: str, opened: asyncio.Event) -> None:
        async with connect(parse_broker(url)):
            opened.set()
            await asyncio.Event().wait()

    async with Mosquitto(tmp_path, websocket=True) as mosquitto:
        others = asyncio.all_tasks()
        opened = asyncio.Event()
        url = f"ws+mqtt://127.0.0.1:{mosquitto.websocket_port}"
        staying = asyncio.create_task(stay(url, opened))
        async with asyncio.timeout(PATIENCE):
            await opened.wait()
        mosquitto.pause()
        staying.cancel()
        await asyncio.wait([staying])
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == others


async def test_a_lost_connection_fails_callers_that_wait_for_the_send_quota(
    connection: BrokerConnection, mosquitto: Mosquitto
) -> None:
    async def flood(connection: BrokerConnection) -> None:
        while True:
            await connection.publish("t", b"x", content_type=XML, channel=CHANNEL)

    mosquitto.pause()
    floods = [asyncio.create_task(flood(connection)) for _ in range(5)]
    await mosquitto.stop(signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*floods, return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)


async def test_an_unreachable_broker_is_one_sentence(mosquitto: Mosquitto) -> None:
    await mosquitto.stop()
    with pytest.raises(Unavailable, match=rf"{mosquitto.url}: cannot connect"):
        await enter(mosquitto.url)


async def test_it_connects_by_the_socket_that_it_is_given(mosquitto: Mosquitto) -> None:
    async def dial(host: str, port: int) -> socket.socket:
        assert (host, port) == ("broker.example", 4321)
        return socket.create_connection(("127.0.0.1", mosquitto.port))

    await enter("mqtt://broker.example:4321", dial=dial)


@asynccontextmanager
async def saying(answer: bytes) -> AsyncIterator[str]:
    """A server that sends these bytes to every client."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        if not answer:
            writer.close()
        try:
            await reader.read()  # until the client goes
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def refusing(
    mosquitto: Mosquitto, refuses: Callable[[bytes], bool], refusal: bytes
) -> AsyncIterator[str]:
    """Lead to a broker, but say this to whom it refuses by the version that they speak."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"MQTT")
        level = await reader.readexactly(1)
        if refuses(level):
            writer.write(refusal)
            writer.close()
            return
        inner, outer = await asyncio.open_connection("127.0.0.1", mosquitto.port)
        outer.write(head + level)
        await asyncio.gather(pump(reader, outer), pump(inner, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("refusal", [b"\x20\x02\x00\x01", b""])
async def test_a_broker_of_the_older_version_is_spoken_to_in_it(
    mosquitto: Mosquitto, refusal: bytes
) -> None:
    session = BrokerSession("one", 60)
    async with (
        refusing(mosquitto, lambda level: level != b"\x04", refusal) as url,
        subscribed(url, session=session) as inbox,
        connect(parse_broker(url)) as connection,
    ):
        await publish(connection, "a/b", b"text")
        message = await inbox.next()
    assert (message.topic, message.payload) == ("a/b", b"text")


async def test_a_broker_that_closes_the_websocket_is_spoken_to_in_the_older_version() -> None:
    levels: list[int] = []

    async def refuse(connection: ServerConnection) -> None:
        levels.append((await connection.recv(decode=False))[8])
        await connection.close(1002)

    async with serve(refuse, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")]) as server:
        [(_, port)] = [each.getsockname() for each in server.sockets]
        with pytest.raises(Unavailable):
            await enter(f"ws+mqtt://127.0.0.1:{port}")
    assert levels == [5, 4]


async def test_a_broker_that_had_only_just_begun_is_spoken_to_in_the_newer_version(
    mosquitto: Mosquitto,
) -> None:
    """A proxy takes connections also while there is no broker behind it, and lets go of them."""
    away = iter([True])
    async with (
        refusing(mosquitto, lambda _: next(away, False), b"") as url,
        subscribed(url, session=BrokerSession("one", 60)) as inbox,
        connect(parse_broker(url)) as connection,
    ):
        await publish(connection, "a/b", b"text")
        assert (await inbox.next()).channel == CHANNEL


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x20\x02\x00\x01",  # no version pleases it
        b"\x20\x00",
        b"\x20\x03\x00\x00\xff",
        b"\x30\xff\xff\xff\x7f",  # a message of 256 MB
        b"\x20\x03\x00\x00\x00\x30\x03\x00\x01\xff\x00",  # a topic that is no UTF-8
        b"\xff\xff\xff\xff\xff",
    ],
)
async def test_a_server_that_is_no_broker_is_an_error(answer: bytes) -> None:
    async with saying(answer) as url:
        with pytest.raises(Unavailable):
            async with asyncio.timeout(PATIENCE), connect(parse_broker(url)) as connection:
                await connection.lost()


@pytest.mark.parametrize(
    "login",
    [
        BrokerLogin(password="without a user"),
        BrokerLogin(key="without a certificate"),
        BrokerLogin(ca="not there"),
        BrokerLogin(certificate="not there"),
    ],
)
def test_a_login_that_cannot_work_is_refused_at_once(login: BrokerLogin) -> None:
    with pytest.raises(ConfigurationError, match=r"broker|not there"):
        login.check()
