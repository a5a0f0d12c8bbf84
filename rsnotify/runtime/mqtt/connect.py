"""Connect to a broker: login, session, and the version of MQTT."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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

#: Seconds between pings. The connection is lost if a broker has not answered one by the next.
KEEPALIVE = 10

#: The most that topic, properties and lengths add to the payload of a message, in bytes.
_OVERHEAD = 65_536


class BrokerSession(Struct, frozen=True):
    """What the broker keeps while the client is away: subscriptions, and undelivered messages.

    Args:
        client_id: The name of the session, for one connection at a time; empty for none.
        expiry: The session expiry interval, in seconds. With MQTT 3.1.1 the broker decides.
    """

    client_id: str = ""
    expiry: int = 0


#: A session that begins and ends with its connection (MQTT 5 §3.1.2.4).
CLEAN_START = BrokerSession()


class _PahoClient(Client):
    def __init__(self, stream: ByteStream, **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, reconnect_on_failure=False, **options)
        self._stream = stream

    def _create_socket(self) -> Any:
        return self._stream


@asynccontextmanager
async def connect(
    broker: Broker,
    login: BrokerLogin = ANONYMOUS,
    *,
    session: BrokerSession = CLEAN_START,
    version: str = "5",
    dial: Dial | None = None,
    on_message: Callable[[MqttMessage], None] = lambda _: None,
    manual_ack: bool = False,
) -> AsyncIterator[BrokerConnection]:
    """Connect to a broker, within a context.

    Args:
        broker: The broker.
        login: The user, password and certificates.
        session: What the broker keeps while the client is away.
        version: The version of MQTT, `5` or `3.1.1`. With 5, rsnotify falls back to 3.1.1 for a
            broker that does not know 5.
        dial: Makes the TCP connection; None connects to any address.
        on_message: Called with each message, in the order of the broker.
        manual_ack: Whether the caller acknowledges messages, by `BrokerConnection.acknowledge`.

    Raises:
        Unavailable: The broker cannot be reached, or refuses the connection.
        ConfigurationError: A file of the login cannot be used.
    """
    attempt = _Attempt(broker, login, session, dial, on_message, manual_ack)
    try:
        connection = await attempt.connect(version)
    except UnsupportedVersion as error:
        if version != "5":
            raise
        connection = await (attempt.connect("3.1.1") if error.stated else _connect_again(attempt))
    try:
        yield connection
    finally:
        await connection.disconnect()


async def _connect_again(attempt: _Attempt) -> BrokerConnection:
    """Connect to a broker that closed the connection silently after a CONNECT of MQTT 5.

    The broker may only just have started, behind a proxy that accepts connections earlier.
    Falling back to 3.1.1 would lose the features of 5 for as long as the connection lasts. So
    once a probe shows that a broker answers, 5 is tried again.
    """
    probe = _Attempt(attempt.broker, attempt.login, CLEAN_START, attempt.dial)
    try:
        await (await probe.connect("3.1.1")).disconnect()
    except Unavailable as error:
        if isinstance(error, UnsupportedVersion):
            raise
    try:
        return await attempt.connect("5")
    except UnsupportedVersion:
        return await attempt.connect("3.1.1")


class _Attempt(Struct, frozen=True):
    """A connection to be made, in either version of MQTT."""

    broker: Broker
    login: BrokerLogin
    session: BrokerSession
    dial: Dial | None
    on_message: Callable[[MqttMessage], None] = lambda _: None
    manual_ack: bool = False

    async def connect(self, version: str) -> BrokerConnection:
        stream = await self._open_stream()
        client = self._client(stream, version)
        connection = BrokerConnection(self.broker, client, stream, self.on_message)
        try:
            async with _timeout(self.broker):
                self._send_connect(client, version)
                await connection.wait_for_connack()
        except BaseException:
            await connection.disconnect()
            raise
        return connection

    async def _open_stream(self) -> ByteStream:
        url = self.broker.url
        tls = self.login.context() if self.broker.tls else None
        try:
            async with _timeout(self.broker):
                max_packet = MAXIMUM_PACKET_SIZE + _OVERHEAD
                return await open_byte_stream(self.broker, tls, self.dial, max_packet=max_packet)
        except ssl.SSLCertVerificationError as error:
            reason = f"its certificate is not to be trusted: {error.verify_message}"
            raise Unavailable(url, reason) from None
        except (OSError, WebSocketException) as error:
            raise Unavailable(url, f"cannot connect: {error or type(error).__name__}") from error

    def _client(self, stream: ByteStream, version: str) -> Client:
        options: dict[str, Any] = {"protocol": MQTTProtocolVersion.MQTTv5}
        if version != "5":
            options = {
                "protocol": MQTTProtocolVersion.MQTTv311,
                "clean_session": not self.session.client_id,
            }
        client = _PahoClient(
            stream, client_id=self.session.client_id, manual_ack=self.manual_ack, **options
        )
        client.max_inflight_messages_set(0)  # `BrokerConnection` limits messages in flight
        if self.login.user is not None:
            client.username_pw_set(self.login.user, self.login.password)
        return client

    def _send_connect(self, client: Client, version: str) -> None:
        more: dict[str, Any] = {}
        if version == "5":
            properties = connect_properties(
                session_expiry=self.session.expiry if self.session.client_id else 0,
                maximum_packet_size=MAXIMUM_PACKET_SIZE,
                receive_maximum=RECEIVE_MAXIMUM,
            )
            more = {"clean_start": not self.session.client_id, "properties": properties}
        client.connect(self.broker.host, self.broker.port, KEEPALIVE, **more)


@asynccontextmanager
async def _timeout(broker: Broker) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(TIMEOUT):
            yield
    except TimeoutError:
        raise Unavailable(broker.url, "no answer in time") from None
