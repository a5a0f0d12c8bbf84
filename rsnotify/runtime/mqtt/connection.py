"""One connection to a broker: paho-mqtt, which knows the protocol, on the event loop.

Theory of operation. paho is a state machine here: what arrives is put into it by `loop_read`, what
it wants to send it writes by `loop_write` when it says so, and `loop_misc` is called now and then
for its pings. All of this happens on the event loop, in no other thread. A `BrokerConnection` is used
until it is lost, and never connects again: whoever uses it has a log or a list to go on from, and
makes a new one. So nothing is kept here that a lost connection could leave in doubt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from websockets.exceptions import ConnectionClosed

from rsnotify.errors import RsnotifyError, Unavailable
from rsnotify.runtime.mqtt.byte_streams import ByteStream
from rsnotify.runtime.mqtt.messages import MqttMessage, publish_properties, read_message
from rsnotify.runtime.mqtt.refusals import (
    ConnectionRefused,
    UnsupportedVersion,
    connection_refusal,
    publish_refusal,
    subscription_refusal,
)
from rsnotify.runtime.mqtt.topics import Broker

#: How long a broker may take to answer, in seconds.
TIMEOUT = 10.0
#: Messages on their way that nobody has acknowledged, in either direction.
RECEIVE_MAXIMUM = 100
#: The longest message that is taken.
MAXIMUM_PACKET_SIZE = 50_000_000

_MISC_SECONDS = 1.0


class BrokerConnection:
    """A connection to a broker; made by `rsnotify.runtime.mqtt.connect.connect`.

    Args:
        broker: The broker.
        client: The protocol, connecting.
        wire: What carries the bytes.
        take: Called with each message.

    Attributes:
        resumed: Whether the broker had kept the session.
    """

    def __init__(
        self, broker: Broker, client: Client, wire: ByteStream, take: Callable[[MqttMessage], None]
    ) -> None:
        self._broker = broker
        self._client = client
        self._wire = wire
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        for future in (self._welcome, self._lost):
            future.add_done_callback(_heard)
        self._published: dict[int, asyncio.Future[None]] = {}
        self._subscribed: dict[int, asyncio.Future[None]] = {}
        self._arrived: list[MqttMessage] = []
        self._room = asyncio.Semaphore(RECEIVE_MAXIMUM)
        self._most = MAXIMUM_PACKET_SIZE
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self.resumed = False
        self._listen()

    def _listen(self) -> None:
        client = self._client
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_message = lambda _client, _data, found: self._arrived.append(read_message(found))
        client.on_socket_register_write = lambda *_: self._flush_soon()
        self._wire.on_data = self._read
        self._wire.on_room = self._flush_soon

    @property
    def version(self) -> str:
        """The version of MQTT that is spoken."""
        return "5" if self._client.protocol == MQTTProtocolVersion.MQTTv5 else "3.1.1"

    # What one does with it

    async def publish(
        self, topic: str, payload: bytes, *, content_type: str, channel: str, retain: bool = True
    ) -> asyncio.Future[None]:
        """Send a message with QoS 1, once there is room for it.

        Args:
            topic: The MQTT topic.
            payload: The bytes.
            content_type: Their media type.
            channel: The URI of the channel.
            retain: Whether the broker keeps it, for who subscribes later.

        Returns:
            A future that is done when the broker has acknowledged it. It fails with `ConnectionRefused`,
            or with Unavailable when the connection is lost.

        Raises:
            ConnectionRefused: The broker has said that it takes nothing as large.
            Unavailable: The connection is lost.
        """
        if len(payload) + len(topic.encode()) + len(channel.encode()) + 64 > self._most:
            raise ConnectionRefused(
                self._broker.url, f"it takes messages of {self._most} bytes at most", too_large=True
            )
        await self._room.acquire()
        self._check()
        properties = publish_properties(content_type, channel) if self.version == "5" else None
        info = self._client.publish(topic, payload, qos=1, retain=retain, properties=properties)
        future: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(_heard)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._room.release()
            raise Unavailable(self._broker.url, f"cannot send: {info.rc.name}")
        self._published[info.mid] = future
        return future

    async def subscribe(self, topic: str) -> None:
        """Ask for the messages of a topic, which may have wildcards, with QoS 1.

        Raises:
            Unavailable: The broker refuses, or does not answer.
        """
        self._check()
        rc, mid = self._client.subscribe(topic, qos=1)
        if rc != MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            raise Unavailable(self._broker.url, f"cannot subscribe: {rc.name}")
        answered = self._subscribed[mid] = self._loop.create_future()
        answered.add_done_callback(_heard)
        try:
            async with asyncio.timeout(TIMEOUT):
                await answered
        except TimeoutError:
            raise Unavailable(self._broker.url, "it does not answer a subscription") from None

    def unsubscribe(self, topic: str) -> None:
        """Ask for the messages of a topic no longer; some may be on their way."""
        self._client.unsubscribe(topic)

    def acknowledge(self, message: MqttMessage) -> None:
        """Say that a message need not come again; in the order in which they came."""
        if message.id is not None:
            self._client.ack(message.id, 1)

    async def lost(self) -> None:
        """Wait until the connection is lost.

        Raises:
            Unavailable: Always: why.
        """
        await asyncio.shield(self._lost)

    def _check(self) -> None:
        if self._lost.done():
            self._room.release()  # wakes the next that waits, to hear the same
            self._lost.result()

    # The life of the connection

    async def begin(self) -> None:
        """Wait until the broker has let one in.

        Raises:
            Unavailable: It did not.
        """
        self._misc()
        await self._welcome

    async def end(self) -> None:
        """Say goodbye, and let go."""
        if not self._lost.done():
            self._client.disconnect()
            self._flush()
        self._fail("the connection was closed")
        await self._wire.closed(1.0)

    def _fail(self, reason: str, error: RsnotifyError | None = None) -> None:
        if self._lost.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        error = error or Unavailable(self._broker.url, reason)
        waiting = (*self._published.values(), *self._subscribed.values(), self._welcome)
        self._published.clear()
        self._subscribed.clear()
        self._lost.set_exception(error)
        self._room.release()
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    # What drives paho

    def _read(self) -> None:
        try:
            while self._wire.readable and self._client.socket() is not None:
                self._client.loop_read()
        except Exception as error:  # paho has many for what is no MQTT
            self._fail(f"it sends what is no MQTT: {type(error).__name__}")
            self._wire.close()
        self._deliver()

    def _deliver(self) -> None:
        arrived, self._arrived = self._arrived, []
        for message in arrived:
            self._take(message)

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._wire.full:
            self._client.loop_write()

    def _misc(self) -> None:
        self._timer = self._loop.call_later(_MISC_SECONDS, self._misc)
        self._client.loop_misc()

    # What paho says

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
        self.resumed = flags.session_present
        self._most = min(
            MAXIMUM_PACKET_SIZE, getattr(properties, "MaximumPacketSize", MAXIMUM_PACKET_SIZE)
        )
        self._room = asyncio.Semaphore(
            min(RECEIVE_MAXIMUM, getattr(properties, "ReceiveMaximum", RECEIVE_MAXIMUM))
        )
        if not self._welcome.done():
            self._welcome.set_result(None)

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
        elif not self._wire.readable:
            self._fail("it does not answer")
        else:
            self._fail_by_end(self._wire.error)

    def _fail_by_end(self, error: Exception | None) -> None:
        said = "it closed the connection"
        if error is not None:
            said = f"the connection broke: {error or type(error).__name__}"
        # A WebSocket is closed with a code, which may be one of an error.
        was_closed = error is None or isinstance(error, ConnectionClosed)
        is_silent = was_closed and not self._welcome.done()
        self._fail(
            said, UnsupportedVersion(self._broker.url, said, told=False) if is_silent else None
        )

    def _on_publish(
        self, _client: Client, _data: Any, mid: int, reason: ReasonCode, _properties: Any
    ) -> None:
        future = self._published.pop(mid, None)
        if future is None:
            return
        self._room.release()
        if future.done():
            return
        if reason.is_failure:
            future.set_exception(publish_refusal(self._broker.url, reason))
        else:
            future.set_result(None)

    def _on_subscribe(
        self, _client: Client, _data: Any, mid: int, reasons: list[ReasonCode], _properties: Any
    ) -> None:
        future = self._subscribed.pop(mid, None)
        if future is None or future.done():
            return
        if reasons[0].is_failure:
            future.set_exception(subscription_refusal(self._broker.url, reasons[0]))
        else:
            future.set_result(None)


def _heard(future: asyncio.Future[None]) -> None:
    """Look at a failure, so that nobody complains where nobody waited for it."""
    if not future.cancelled():
        future.exception()
