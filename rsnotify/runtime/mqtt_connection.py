"""A connection to an MQTT broker, with paho-mqtt on the event loop: login, session, refusals.

Theory of operation. paho serves as a state machine: `loop_read` passes it the received bytes,
`loop_write` sends its pending output, and `loop_misc`, called once a second, sends its pings. All
of this runs on the event loop, without threads. A `BrokerConnection` never reconnects: the caller
opens a new connection, and resumes from its log or a list.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from websockets.exceptions import ConnectionClosed, WebSocketException

from rsnotify.errors import ConnectionRefused, NotPermitted, RsnotifyError, Unavailable
from rsnotify.runtime.mqtt_broker import (
    ANONYMOUS,
    Broker,
    BrokerLogin,
    MqttMessage,
    publish_properties,
    read_message,
)
from rsnotify.runtime.mqtt_streams import ByteStream, Dial, open_byte_stream
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.tasks import retrieve_exception, settle

#: Maximum time to wait for a broker's response, in seconds.
TIMEOUT = 10.0
#: Maximum number of unacknowledged messages in either direction (MQTT 5 §3.1.2.11.3).
RECEIVE_MAXIMUM = 100
#: Maximum size of an incoming packet, in bytes (MQTT 5 §3.1.2.11.4).
MAXIMUM_PACKET_SIZE = 50_000_000

#: Time between two calls of paho's housekeeping, in seconds.
_MISC_INTERVAL = 1.0
#: Time between pings, in seconds. If the broker does not answer a ping before the next one, the
#: connection is lost.
KEEPALIVE = 10

#: Maximum number of bytes that topic, properties and lengths add to the payload of a message.
_MAX_OVERHEAD_BYTES = 65_536


class BrokerSession(Struct, frozen=True):
    """A session, which keeps subscriptions and undelivered messages between connections.

    Args:
        client_id: The name of the session, which only one connection can use at a time; empty for
            no session.
        expiry: The session expiry interval, in seconds. With MQTT 3.1.1, the broker decides.
    """

    client_id: str = ""
    expiry: int = 0


#: A session that begins and ends with its connection (MQTT 5 §3.1.2.4).
CLEAN_START = BrokerSession()


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
    """Open a connection to a broker, and close it at the end of the context.

    `version` is `3.1.1`, or `5`, which falls back to 3.1.1 if the broker does not support 5. `dial`
    opens the TCP connection; None allows any address. `on_message` is called with each message, in
    order. With `manual_ack`, the caller must call `BrokerConnection.acknowledge` for each message.

    Raises:
        Unavailable: The broker cannot be reached, or refuses the connection.
        ConfigurationError: A file named in the login cannot be used.
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
    """Connect again to a broker that closed the connection after an MQTT 5 CONNECT.

    The broker may still be starting behind a proxy that already accepts connections, and a fallback
    to 3.1.1 would last as long as the connection. Therefore, first probe with 3.1.1 whether the
    broker answers, and then try 5 again.
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
    """The parameters of a connection attempt with either version of MQTT."""

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
        tls = self.login.context() if self.broker.tls else None
        max_packet = MAXIMUM_PACKET_SIZE + _MAX_OVERHEAD_BYTES
        try:
            async with _timeout(self.broker):
                return await open_byte_stream(self.broker, tls, self.dial, max_packet=max_packet)
        except (OSError, WebSocketException) as error:
            reason = f"cannot connect: {reason_of(error)}"
            raise Unavailable(self.broker.url, reason) from error

    def _client(self, stream: ByteStream, version: str) -> Client:
        options: dict[str, Any] = {"protocol": MQTTProtocolVersion.MQTTv5}
        if version != "5":
            is_clean = not self.session.client_id
            options = {"protocol": MQTTProtocolVersion.MQTTv311, "clean_session": is_clean}
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
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = self.session.expiry if self.session.client_id else 0
            properties.MaximumPacketSize = MAXIMUM_PACKET_SIZE
            properties.ReceiveMaximum = RECEIVE_MAXIMUM
            more = {"clean_start": not self.session.client_id, "properties": properties}
        client.connect(self.broker.host, self.broker.port, KEEPALIVE, **more)


@asynccontextmanager
async def _timeout(broker: Broker) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(TIMEOUT):
            yield
    except TimeoutError:
        raise Unavailable(broker.url, "no answer in time") from None


class _PahoClient(Client):
    def __init__(self, stream: ByteStream, **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, reconnect_on_failure=False, **options)
        self._stream = stream

    def _create_socket(self) -> Any:
        return self._stream


class BrokerConnection:
    """A connection to a broker, made by `connect`.

    Attributes:
        session_present: Whether the broker had kept the session from an earlier connection.
    """

    def __init__(
        self,
        broker: Broker,
        client: Client,
        stream: ByteStream,
        on_message: Callable[[MqttMessage], None],
    ) -> None:
        self._broker = broker
        self._client = client
        self._stream = stream
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._connack = self._future()
        self._lost = self._future()
        self._pubacks: dict[int, asyncio.Future[None]] = {}
        self._subacks: dict[int, asyncio.Future[None]] = {}
        self._arrived: list[MqttMessage] = []
        self._send_quota = asyncio.Semaphore(RECEIVE_MAXIMUM)
        self._maximum_packet_size = MAXIMUM_PACKET_SIZE
        self._flush_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self.session_present = False
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_message = lambda _client, _data, found: self._arrived.append(read_message(found))
        client.on_socket_register_write = lambda *_: self._schedule_flush()
        stream.on_data = self._read
        stream.on_writable = self._schedule_flush

    def _future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(retrieve_exception)
        return future

    @property
    def version(self) -> str:
        return "5" if self._client.protocol == MQTTProtocolVersion.MQTTv5 else "3.1.1"

    # Methods for users of the connection

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        content_type: str,
        channel: str,
        retain: bool = True,
        check: Callable[[], None] = lambda: None,
    ) -> asyncio.Future[None]:
        """Send a message with QoS 1, as soon as the send quota allows it.

        `check` is called just before the message is sent. If it raises an error, nothing is sent.

        Returns:
            A future that completes when the broker has acknowledged the message. It fails with
            `ConnectionRefused` if the broker refuses the message, and with `Unavailable` if the
            connection is lost.

        Raises:
            ConnectionRefused: The message is larger than the broker accepts.
            Unavailable: The connection is lost.
        """
        if len(payload) + len(topic.encode()) + len(channel.encode()) + 64 > (
            self._maximum_packet_size
        ):
            reason = f"it accepts messages of at most {self._maximum_packet_size} bytes"
            raise ConnectionRefused(self._broker.url, reason, is_final=True)
        await self._send_quota.acquire()
        self._check_connected()
        try:
            check()
        except BaseException:
            self._send_quota.release()
            raise
        properties = publish_properties(content_type, channel) if self.version == "5" else None
        info = self._client.publish(topic, payload, qos=1, retain=retain, properties=properties)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._send_quota.release()
            raise Unavailable(self._broker.url, f"cannot send: {info.rc.name}")
        puback = self._pubacks[info.mid] = self._future()
        return puback

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribe to a topic filter with QoS 1. Raises Unavailable if the broker refuses."""
        self._check_connected()
        rc, mid = self._client.subscribe(topic_filter, qos=1)
        if rc != MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            raise Unavailable(self._broker.url, f"cannot subscribe: {rc.name}")
        suback = self._subacks[mid] = self._future()
        try:
            async with asyncio.timeout(TIMEOUT):
                await suback
        except TimeoutError:
            raise Unavailable(self._broker.url, "no answer to the subscription in time") from None

    def unsubscribe(self, topic_filter: str) -> None:
        """End a subscription. Messages that the broker has already sent may still arrive."""
        self._client.unsubscribe(topic_filter)

    def acknowledge(self, message: MqttMessage) -> None:
        """Send the PUBACK for a message, so that the broker does not send it again.

        Messages must be acknowledged in the order in which they arrived (MQTT 5 §4.6).
        """
        if message.packet_id is not None:
            self._client.ack(message.packet_id, 1)

    async def lost(self) -> None:
        """Wait until the connection is lost, then raise Unavailable with the reason."""
        await asyncio.shield(self._lost)

    def _check_connected(self) -> None:
        if self._lost.done():
            self._send_quota.release()  # wakes the next caller, which fails the same way
            self._lost.result()

    # Connecting and disconnecting

    async def wait_for_connack(self) -> None:
        """Wait until the broker accepts the connection. Raises Unavailable if it refuses."""
        self._misc()
        await self._connack

    async def disconnect(self) -> None:
        if not self._lost.done():
            self._client.disconnect()
            self._flush()
        self._fail("the connection was closed")
        await self._stream.wait_closed(1.0)

    def _fail(self, reason: str, error: RsnotifyError | None = None) -> None:
        if self._lost.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        error = error or Unavailable(self._broker.url, reason)
        waiting = (*self._pubacks.values(), *self._subacks.values(), self._connack)
        self._pubacks.clear()
        self._subacks.clear()
        self._lost.set_exception(error)
        self._send_quota.release()
        for future in waiting:
            settle(future, error)

    # Driving paho

    def _read(self) -> None:
        try:
            while self._stream.readable and self._client.socket() is not None:
                self._client.loop_read()
        except Exception as error:  # paho raises various errors for malformed packets
            self._fail(f"it does not speak MQTT: {type(error).__name__}")
            self._stream.close()
        arrived, self._arrived = self._arrived, []
        for message in arrived:
            self._on_message(message)

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._stream.full:
            self._client.loop_write()

    def _misc(self) -> None:
        self._timer = self._loop.call_later(_MISC_INTERVAL, self._misc)
        self._client.loop_misc()

    # Called by paho

    def _on_connect(
        self,
        _client: Client,
        _data: Any,
        flags: ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.is_failure:
            error = connection_refusal(self._broker.url, self._client.username, reason)
            self._fail(str(reason), error)
            return
        self.session_present = flags.session_present
        size = getattr(properties, "MaximumPacketSize", MAXIMUM_PACKET_SIZE)
        quota = getattr(properties, "ReceiveMaximum", RECEIVE_MAXIMUM)
        self._maximum_packet_size = min(MAXIMUM_PACKET_SIZE, size)
        self._send_quota = asyncio.Semaphore(min(RECEIVE_MAXIMUM, quota))
        settle(self._connack, None)

    def _on_disconnect(
        self,
        _client: Client,
        _data: Any,
        flags: DisconnectFlags,
        reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._fail(f"it ended the connection: {reason}")
        elif not self._stream.readable:
            self._fail("it does not answer")
        else:
            self._fail_at_end_of_stream(self._stream.error)

    def _fail_at_end_of_stream(self, error: Exception | None) -> None:
        reason = "it closed the connection"
        if error is not None:
            reason = f"the connection broke: {error or type(error).__name__}"
        # A WebSocket closes with a code, which may be an error code.
        was_closed = error is None or isinstance(error, ConnectionClosed)
        silent = was_closed and not self._connack.done()
        url = self._broker.url
        self._fail(reason, UnsupportedVersion(url, reason, stated=False) if silent else None)

    def _on_publish(
        self, _client: Client, _data: Any, mid: int, reason: ReasonCode, _properties: Any
    ) -> None:
        puback = self._pubacks.pop(mid, None)
        if puback is not None:
            self._send_quota.release()
            refused = reason.is_failure
            settle(puback, publish_refusal(self._broker.url, reason) if refused else None)

    def _on_subscribe(
        self, _client: Client, _data: Any, mid: int, reasons: list[ReasonCode], _properties: Any
    ) -> None:
        suback, reason = self._subacks.pop(mid, None), reasons[0]
        if suback is not None:
            refused = reason.is_failure
            settle(suback, subscription_refusal(self._broker.url, reason) if refused else None)


_TOO_LARGE = 0x95
_OTHER_VERSION = 0x84
_NOT_AUTHORIZED = 0x87
#: Bad user name or password, not authorized, banned, bad authentication method.
_LOGIN_REFUSED = frozenset({0x86, _NOT_AUTHORIZED, 0x8A, 0x8C})


class UnsupportedVersion(Unavailable):
    """The broker apparently does not support the MQTT version of the CONNECT packet.

    It may state this in its response (`stated`, MQTT 5 §3.2.2.2), or close the connection without a
    response (§3.1.2.2).
    """

    def __init__(self, uri: str, reason: str, *, stated: bool) -> None:
        super().__init__(uri, reason)
        self.stated = stated


def connection_refusal(url: str, user: str | None, reason: ReasonCode) -> Unavailable:
    """Return the error for a refused connection."""
    refusal = f"it refuses the connection: {reason}"
    if reason.value == _OTHER_VERSION:
        return UnsupportedVersion(url, refusal, stated=True)
    if reason.value not in _LOGIN_REFUSED:
        return Unavailable(url, refusal)
    if not user:
        remedy = "configure an MQTT user and password"
        return NotPermitted(url, f"it refuses a login without a user: {reason}", remedy)
    remedy = "correct the MQTT user and password, or the broker's permissions for this user"
    return NotPermitted(url, f"it refuses the login of {user!r}: {reason}", remedy)


def publish_refusal(url: str, reason: ReasonCode) -> ConnectionRefused:
    allow = "configure the broker to let this user publish it"
    return ConnectionRefused(
        url,
        f"it refuses the message: {reason}",
        is_final=reason.value == _TOO_LARGE,
        remedy=allow if reason.value == _NOT_AUTHORIZED else None,
    )


def subscription_refusal(url: str, reason: ReasonCode) -> Unavailable:
    refusal = f"it refuses the subscription: {reason}"
    if reason.value == _NOT_AUTHORIZED:
        return NotPermitted(url, refusal, "configure the broker to let this user subscribe")
    return Unavailable(url, refusal)
