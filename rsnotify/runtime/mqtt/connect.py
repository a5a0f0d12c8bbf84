"""Connecting to a broker, as somebody, with a session or without."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from websockets.exceptions import WebSocketException

from rsnotify.errors import Unavailable
from rsnotify.runtime.mqtt.byte_streams import ByteStream, Dial, open_byte_stream
from rsnotify.runtime.mqtt.connection import (
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    TIMEOUT,
    BrokerConnection,
)
from rsnotify.runtime.mqtt.login import ANONYMOUS, BrokerLogin
from rsnotify.runtime.mqtt.messages import MqttMessage, connect_properties
from rsnotify.runtime.mqtt.refusals import UnsupportedVersion
from rsnotify.runtime.mqtt.topics import Broker

#: Seconds between pings; a broker that has not answered one by the next is gone.
KEEPALIVE = 10

#: A topic, properties and lengths beside the payload of a message.
_HEAD = 65_536


class BrokerSession(Struct, frozen=True):
    """What the broker keeps while one is away: subscriptions, and messages not yet delivered.

    Args:
        client_id: The name of the session, for one connection at a time; empty for none.
        expiry: How long it is kept, in seconds; with MQTT 3.1.1 as long as the broker likes.
    """

    client_id: str = ""
    expiry: int = 0


#: A session that begins and ends with its connection.
CLEAN_START = BrokerSession()

_Enter = Callable[[str], Awaitable[BrokerConnection]]


class _PahoClient(Client):
    """paho, over a wire that is there already."""

    def __init__(self, wire: ByteStream, **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, reconnect_on_failure=False, **options)
        self._wire = wire

    def _create_socket(self) -> Any:
        return self._wire


@asynccontextmanager
async def connect(
    broker: Broker,
    login: BrokerLogin = ANONYMOUS,
    *,
    session: BrokerSession = CLEAN_START,
    version: str = "5",
    dial: Dial | None = None,
    take: Callable[[MqttMessage], None] = lambda _: None,
    by_hand: bool = False,
) -> AsyncIterator[BrokerConnection]:
    """Connect to a broker.

    Args:
        broker: Which.
        login: Who one is.
        session: What the broker keeps while one is away.
        version: The version of MQTT, `5` or `3.1.1`. With 5, a broker that does not know it is
            spoken to in 3.1.1.
        dial: Makes the connection of TCP; None connects to any address.
        take: Called with each message, in the order of the broker.
        by_hand: Whether messages are acknowledged by `BrokerConnection.acknowledge`.

    Returns:
        A context with the connection; leaving it says goodbye.

    Raises:
        Unavailable: The broker cannot be reached, or does not let one in.
        ConfigurationError: A file of the login cannot be used.
    """
    enter = partial(_enter, broker, login, session, dial, take, by_hand)
    look = partial(_enter, broker, login, CLEAN_START, dial, lambda _: None, False)
    try:
        connection = await enter(version)
    except UnsupportedVersion as error:
        if version != "5":
            raise
        connection = await (enter("3.1.1") if error.told else _enter_again(enter, look))
    try:
        yield connection
    finally:
        await connection.end()


async def _enter_again(enter: _Enter, look: _Enter) -> BrokerConnection:
    """Enter where a broker went away without a word when it was spoken to in MQTT 5.

    It may only just have begun, behind a proxy that takes connections before. What is told by 5
    alone would be lost for as long as the connection lasts, so 5 is tried again where there surely
    is a broker.
    """
    try:
        await (await look("3.1.1")).end()
    except Unavailable as error:
        if isinstance(error, UnsupportedVersion):
            raise
    try:
        return await enter("5")
    except UnsupportedVersion:
        return await enter("3.1.1")


async def _enter(
    broker: Broker,
    login: BrokerLogin,
    session: BrokerSession,
    dial: Dial | None,
    take: Callable[[MqttMessage], None],
    by_hand: bool,
    version: str,
) -> BrokerConnection:
    wire = await _wire(broker, login, dial)
    client = _client(wire, login, session, version, by_hand=by_hand)
    connection = BrokerConnection(broker, client, wire, take)
    try:
        async with _answering(broker):
            _send_connect(client, broker, session, version)
            await connection.begin()
    except BaseException:
        await connection.end()
        raise
    return connection


async def _wire(broker: Broker, login: BrokerLogin, dial: Dial | None) -> ByteStream:
    tls = login.context() if broker.tls else None
    try:
        async with _answering(broker):
            return await open_byte_stream(broker, tls, dial, most=MAXIMUM_PACKET_SIZE + _HEAD)
    except ssl.SSLCertVerificationError as error:
        reason = f"its certificate is not to be trusted: {error.verify_message}"
        raise Unavailable(broker.url, reason) from None
    except (OSError, WebSocketException) as error:
        reason = f"cannot connect: {error or type(error).__name__}"
        raise Unavailable(broker.url, reason) from error


@asynccontextmanager
async def _answering(broker: Broker) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(TIMEOUT):
            yield
    except TimeoutError:
        raise Unavailable(broker.url, "no answer in time") from None


def _client(
    wire: ByteStream, login: BrokerLogin, session: BrokerSession, version: str, *, by_hand: bool
) -> Client:
    options: dict[str, Any] = {"protocol": MQTTProtocolVersion.MQTTv5}
    if version != "5":
        options = {
            "protocol": MQTTProtocolVersion.MQTTv311,
            "clean_session": not session.client_id,
        }
    client = _PahoClient(wire, client_id=session.client_id, manual_ack=by_hand, **options)
    client.max_inflight_messages_set(0)  # the window is ours
    if login.user is not None:
        client.username_pw_set(login.user, login.password)
    return client


def _send_connect(client: Client, broker: Broker, session: BrokerSession, version: str) -> None:
    more: dict[str, Any] = {}
    if version == "5":
        properties = connect_properties(
            expiry=session.expiry if session.client_id else 0,
            most=MAXIMUM_PACKET_SIZE,
            window=RECEIVE_MAXIMUM,
        )
        more = {"clean_start": not session.client_id, "properties": properties}
    client.connect(broker.host, broker.port, KEEPALIVE, **more)
