"""The way in through a broker: what Sources publish there is taken into the logs.

Who may publish what is the broker's to say: each channel has a topic of its own below the inbox,
named by the digest of the channel's URI, for which the broker's ACL names the writers. A message
says in a property which channel it is about, and is believed only under that channel's name. What
is taken is acknowledged once it is durable; until then the broker keeps it.

What the hub itself stumbles over is tried again some times, since the fault may pass (no memory, no
thread). One that stays costs the message, and is told: not acknowledged it would come again with
each connection, before all others, and nothing would be taken any more. Destinations see the gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rsnotify.errors import DocumentError, StorageError
from rsnotify.runtime.mqtt.messages import MqttMessage
from rsnotify.runtime.mqtt.topics import channel_topic
from rsnotify_hub.access.prefixes import is_granted
from rsnotify_hub.intake import Intake
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.mqtt.asked import Asked
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.urls import check_url

log = logging.getLogger("rsnotify.hub.mqtt")

T = TypeVar("T")

_XML = "application/xml"

#: What is counted as refused, where the hub lost it by a fault of its own.
FAULT = "fault"

#: How long is waited before what the hub stumbled over is tried again, in seconds.
PAUSES = (0.1, 0.5, 2.0)


class Inbox:
    """Takes what is published below a prefix of MQTT topics.

    Args:
        channels: Topics, or prefixes of them, that may be published on like this.
        prefix: What the MQTT topics begin with.
        topics: The logs.
        intake: Reads what was published.
        statistics: Where refusals are counted.
        asked: Takes what asks for a part of a topic.
        wake: Called with the topic, where there is more to send of it then.
        most: The largest that is taken, in bytes.
    """

    def __init__(
        self,
        channels: Sequence[str],
        prefix: str,
        topics: Topics,
        intake: Intake,
        statistics: Statistics,
        asked: Asked,
        wake: Callable[[str], None],
        *,
        most: int,
    ) -> None:
        self._most = most
        self._channels = channels
        self._prefix = prefix
        self._topics = topics
        self._intake = intake
        self._statistics = statistics
        self._asked = asked
        self._wake = wake
        self._warned: set[Code] = set()
        # With MQTT 3.1.1 a message cannot say which channel it is about.
        self._known = {channel_topic(channel, prefix): channel for channel in channels}

    @property
    def pattern(self) -> str | None:
        """Return what to subscribe to; None where nobody may publish like this."""
        return self._prefix + "+" if self._channels else None

    async def take(
        self, arrived: asyncio.Queue[MqttMessage], acknowledge: Callable[[MqttMessage], None]
    ) -> None:
        """Take what arrives, many at a time, and acknowledge it in order.

        Raises:
            StorageError: Something could not be kept; it and what came later is not acknowledged.
        """
        while True:
            messages = [await arrived.get()]
            while not arrived.empty():
                messages.append(arrived.get_nowait())
            taken = [(message, await self._begin(message)) for message in messages]
            for message, durable in taken:
                await self._finish(message, durable)
                acknowledge(message)

    async def _begin(self, message: MqttMessage) -> asyncio.Future[None] | None:
        """Begin to keep a message; None for one that needs no keeping, or cannot be kept."""
        for pause in PAUSES:
            try:
                return await self._try(message)
            except StorageError:
                raise
            except Exception as error:
                reason = type(error).__name__
                log.warning("what came over MQTT as %r is tried again: %s", message.topic, reason)
            await asyncio.sleep(pause)
        return await self._finish(message, self._try(message))

    async def _finish(self, message: MqttMessage, work: Awaitable[T] | None) -> T | None:
        """Do what remains to be done; a fault of ours costs the message, as it stays."""
        try:
            return await work if work is not None else None
        except StorageError:
            raise
        except DocumentError as error:
            self._refused(message, error)
        except Exception:
            self._statistics.refused[FAULT] += 1
            log.exception("what came over MQTT as %r could not be taken", message.topic)
        return None

    async def _try(self, message: MqttMessage) -> asyncio.Future[None] | None:
        try:
            return await self._publish(message)
        except (Refusal, DocumentError) as error:
            self._refused(message, error)
            return None

    async def _publish(self, message: MqttMessage) -> asyncio.Future[None] | None:
        """Begin to keep a message; None for one that needs no keeping."""
        if self._asked.concerns(message):
            self._wake(self._asked.take(message))
            return None
        if message.packet_id is None:
            raise Refusal(Code.BAD_REQUEST, "it was sent with QoS 0: send it with QoS 1")
        channel = self._channel(message)
        if len(message.payload) > self._most:
            raise Refusal(Code.INVALID_FRAGMENT, f"it is larger than {self._most} bytes")
        fragment = await self._intake.read_content(message.payload, message.content_type or _XML)
        return self._topics.publish(channel, fragment)

    def _refused(self, message: MqttMessage, error: Refusal | DocumentError) -> None:
        code = error.code if isinstance(error, Refusal) else Code.INVALID_FRAGMENT
        self._statistics.refused[code] += 1
        level = self._level(message, code)
        log.log(level, "refused what came over MQTT as %r: %s", message.topic, error)

    def _level(self, message: MqttMessage, code: Code) -> int:
        """Warn of what a Source sent; of what somebody asked for once for each kind of refusal."""
        if not self._asked.concerns(message):
            return logging.WARNING
        level = logging.DEBUG if code in self._warned else logging.WARNING
        self._warned.add(code)
        return level

    def _channel(self, message: MqttMessage) -> str:
        channel = message.channel or self._known.get(message.topic)
        if channel is None:
            raise Refusal(Code.BAD_REQUEST, "it does not say which channel it is about")
        if channel_topic(channel, self._prefix) != message.topic:
            raise Refusal(Code.FORBIDDEN, "it is about a channel of another name")
        check_url(channel, "its channel")
        if not any(is_granted(prefix, channel) for prefix in self._channels):
            raise Refusal(Code.FORBIDDEN, "its channel is not one of mqtt_channels")
        return channel
