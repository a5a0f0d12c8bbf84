"""One connection to a broker: paho-mqtt, which implements the protocol, on the event loop.

Theory of operation. paho is used as a state machine: `loop_read` feeds it what arrived,
`loop_write` lets it send when it has something to send, and `loop_misc`, called once a second,
sends its pings. All of this happens on the event loop, in no other thread. A `BrokerConnection`
never reconnects: its user has a log or a list to continue from, and makes a new connection. So a
lost connection leaves nothing in doubt here.
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
    UnsupportedVersion,
    connection_refusal,
    publish_refusal,
    subscription_refusal,
)
from rsnotify.runtime.mqtt.topics import Broker
from rsnotify.runtime.refusals import ConnectionRefused

#: How long a broker may take to answer, in seconds.
TIMEOUT = 10.0
#: How many messages may be unacknowledged, in either direction (MQTT 5 §3.1.2.11.3).
RECEIVE_MAXIMUM = 100
#: The longest packet that is accepted, in bytes (MQTT 5 §3.1.2.11.4).
MAXIMUM_PACKET_SIZE = 50_000_000

_MISC_SECONDS = 1.0


class BrokerConnection:
    """A connection to a broker; made by `rsnotify.runtime.mqtt.connect.connect`.

    Attributes:
        session_present: Whether the broker had kept the session.
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
        self._set_callbacks()

    def _set_callbacks(self) -> None:
        client = self._client
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_message = lambda _client, _data, found: self._arrived.append(read_message(found))
        client.on_socket_register_write = lambda *_: self._schedule_flush()
        self._stream.on_data = self._read
        self._stream.on_writable = self._schedule_flush

    def _future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(_retrieve_exception)
        return future

    @property
    def version(self) -> str:
        return "5" if self._client.protocol == MQTTProtocolVersion.MQTTv5 else "3.1.1"

    # For users of the connection

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

        `check` is called right before that; nothing is sent if it raises an error.

        Returns:
            A future that is done when the broker has acknowledged the message. It fails with
            `ConnectionRefused`, or with Unavailable when the connection is lost.

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
        """Subscribe to a topic filter with QoS 1; raises Unavailable if the broker does not."""
        self._check_connected()
        rc, mid = self._client.subscribe(topic_filter, qos=1)
        if rc != MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            raise Unavailable(self._broker.url, f"cannot subscribe: {rc.name}")
        suback = self._subacks[mid] = self._future()
        try:
            async with asyncio.timeout(TIMEOUT):
                await suback
        except TimeoutError:
            raise Unavailable(self._broker.url, "it does not answer a subscription") from None

    def unsubscribe(self, topic_filter: str) -> None:
        """End a subscription; messages that the broker has already sent may still arrive."""
        self._client.unsubscribe(topic_filter)

    def acknowledge(self, message: MqttMessage) -> None:
        """Send the PUBACK of a message, so that the broker does not send it again.

        Messages have to be acknowledged in the order in which they arrived (MQTT 5 §4.6).
        """
        if message.packet_id is not None:
            self._client.ack(message.packet_id, 1)

    async def lost(self) -> None:
        """Wait until the connection is lost; raises Unavailable with the reason."""
        await asyncio.shield(self._lost)

    def _check_connected(self) -> None:
        if self._lost.done():
            self._send_quota.release()  # wakes the next caller, which fails the same way
            self._lost.result()

    # Beginning and end

    async def wait_for_connack(self) -> None:
        """Wait until the broker has accepted the connection; raises Unavailable if it does not."""
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
            _settle(future, error)

    # Driving paho

    def _read(self) -> None:
        try:
            while self._stream.readable and self._client.socket() is not None:
                self._client.loop_read()
        except Exception as error:  # paho raises many kinds for malformed packets
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
        self._timer = self._loop.call_later(_MISC_SECONDS, self._misc)
        self._client.loop_misc()

    # Callbacks of paho

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
        _settle(self._connack)

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
        # A WebSocket is closed with a code, which may be an error code.
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
            _settle(puback, publish_refusal(self._broker.url, reason) if refused else None)

    def _on_subscribe(
        self, _client: Client, _data: Any, mid: int, reasons: list[ReasonCode], _properties: Any
    ) -> None:
        suback, reason = self._subacks.pop(mid, None), reasons[0]
        if suback is not None:
            refused = reason.is_failure
            _settle(suback, subscription_refusal(self._broker.url, reason) if refused else None)


def _settle(future: asyncio.Future[None], error: Exception | None = None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _retrieve_exception(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
