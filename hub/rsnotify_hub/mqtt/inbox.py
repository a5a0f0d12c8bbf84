"""Accepts what Sources publish through a broker.

The broker decides who may publish what: each channel has an MQTT topic of its own below the inbox,
named by the digest of the channel's URI, and the broker's ACL names its writers. A property of a
message names its channel, and the hub accepts it only on that channel's MQTT topic. A message is
acknowledged once it is durable; until then the broker keeps it.

After an internal error the hub retries a few times, since the cause may pass (no memory, no
thread). If the error remains, the message is lost, and the loss is logged: an unacknowledged
message would come again first with each connection, and block all others. Destinations detect the
gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rsnotify.errors import DocumentError, StorageError
from rsnotify.runtime.mqtt.messages import MqttMessage
from rsnotify.runtime.mqtt.topics import channel_topic
from rsnotify_hub.access.topic_prefixes import is_granted
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.mqtt.requested_selections import RequestedSelections
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.urls import check_url

log = logging.getLogger("rsnotify.hub.mqtt")

T = TypeVar("T")

_XML = "application/xml"

#: The code that counts messages lost by an internal error as refused.
FAULT = "fault"

#: The waits between retries after an internal error, in seconds.
RETRY_SECONDS = (0.1, 0.5, 2.0)


@dataclass(eq=False, repr=False)
class MqttInbox:
    """Handles the messages below a prefix of MQTT topics, and requests for parts of topics.

    Args:
        channels: Topics, or prefixes of topics, that may be published on through the broker.
        prefix: The beginning of the MQTT topics.
        wake: Called with a topic that has something to send.
        check: Raises `NotOwner` if another node handles the messages.
    """

    channels: Sequence[str]
    prefix: str
    topics: TopicLogs
    intake: FragmentIntake
    statistics: Statistics
    requested: RequestedSelections
    wake: Callable[[str], None]
    check: Callable[[], None]

    def __post_init__(self) -> None:
        self._warned: set[Code] = set()
        # With MQTT 3.1.1 a message cannot name its channel.
        self._known = {channel_topic(channel, self.prefix): channel for channel in self.channels}

    @property
    def pattern(self) -> str | None:
        """The pattern of MQTT topics to subscribe to; None if nobody may publish over MQTT."""
        return self.prefix + "+" if self.channels else None

    async def run(
        self, arrived: asyncio.Queue[MqttMessage], acknowledge: Callable[[MqttMessage], None]
    ) -> None:
        """Handle messages as they arrive, many at a time, and acknowledge them in order.

        Raises:
            StorageError: A message could not be stored; it and later ones are not acknowledged.
        """
        while True:
            messages = [await arrived.get()]
            while not arrived.empty():
                messages.append(arrived.get_nowait())
            begun = [(message, await self._begin(message)) for message in messages]
            for message, durable in begun:
                await self._finish(message, durable)
                acknowledge(message)

    async def _begin(self, message: MqttMessage) -> asyncio.Future[None] | None:
        for pause in RETRY_SECONDS:
            try:
                return await self._try(message)
            except StorageError:
                raise
            except Exception as error:
                reason = type(error).__name__
                log.warning("a message over MQTT as %r is tried again: %s", message.topic, reason)
            await asyncio.sleep(pause)
        return await self._finish(message, self._try(message))

    async def _finish(self, message: MqttMessage, work: Awaitable[T] | None) -> T | None:
        """Wait for the rest of the work; an internal error loses the message."""
        try:
            return await work if work is not None else None
        except StorageError:
            raise
        except DocumentError as error:
            self._count_refusal(message, error)
        except Exception:
            self.statistics.refused[FAULT] += 1
            log.exception("a message over MQTT as %r could not be handled", message.topic)
        return None

    async def _try(self, message: MqttMessage) -> asyncio.Future[None] | None:
        try:
            return await self._handle(message)
        except (Refusal, DocumentError) as error:
            self._count_refusal(message, error)
            return None

    async def _handle(self, message: MqttMessage) -> asyncio.Future[None] | None:
        if self.requested.is_request(message):
            self.wake(self.requested.add(message))
            return None
        # A content that arrives late must not replace what another node has published since.
        self.check()
        if message.packet_id is None:
            raise Refusal(Code.BAD_REQUEST, "it was sent with QoS 0: send it with QoS 1")
        channel = self._channel(message)
        limit = self.intake.max_bytes
        if len(message.payload) > limit:
            raise Refusal(Code.INVALID_FRAGMENT, f"it is larger than {limit} bytes")
        fragment = await self.intake.read_content(message.payload, message.content_type or _XML)
        return self.topics.publish(channel, fragment)

    def _count_refusal(self, message: MqttMessage, error: Refusal | DocumentError) -> None:
        code = error.code if isinstance(error, Refusal) else Code.INVALID_FRAGMENT
        self.statistics.refused[code] += 1
        level = self._level(message, code)
        log.log(level, "refused a message over MQTT as %r: %s", message.topic, error)

    def _level(self, message: MqttMessage, code: Code) -> int:
        """Return WARNING for what a Source sent, and for the first request with each code."""
        if not self.requested.is_request(message):
            return logging.WARNING
        level = logging.DEBUG if code in self._warned else logging.WARNING
        self._warned.add(code)
        return level

    def _channel(self, message: MqttMessage) -> str:
        channel = message.channel or self._known.get(message.topic)
        if channel is None:
            raise Refusal(Code.BAD_REQUEST, "it does not name its channel")
        if channel_topic(channel, self.prefix) != message.topic:
            raise Refusal(Code.FORBIDDEN, "it is about a channel of another name")
        check_url(channel, "its channel")
        if not any(is_granted(prefix, channel) for prefix in self.channels):
            raise Refusal(Code.FORBIDDEN, "its channel is not one of mqtt_channels")
        return channel
