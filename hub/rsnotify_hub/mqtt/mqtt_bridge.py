"""The bridge to an MQTT broker. It also accepts the messages that Sources publish at the broker.

The broker decides who may publish what: each channel has its own MQTT topic below the inbox, named
by the digest of the channel's URI, and the broker's ACL lists the writers of that topic. A property
of each message names its channel, and the hub accepts the message only on that channel's MQTT
topic. The hub acknowledges a message when it is durable; until then the broker keeps it
(`MqttInbox`).

Destinations may request parts of topics, which the hub then publishes to the broker as well. Any
client with write access to the MQTT topic for requests may request a part, and MQTT does not
identify senders. The number of parts is therefore limited, and each part has a lease. The parts
survive a restart as the broker's cursors in the store; their leases begin again whenever the hub
starts (`RequestedSelections`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rsnotify.errors import (
    ConfigurationError,
    ConnectionRefused,
    DocumentError,
    StorageError,
    Unavailable,
)
from rsnotify.runtime.mqtt_broker import (
    LEASE,
    MqttMessage,
    channel_topic,
    inbox_prefix,
    parse_broker,
    read_selection_request,
    request_prefix,
)
from rsnotify.runtime.mqtt_connection import CLEAN_START, BrokerConnection, BrokerSession, connect
from rsnotify.runtime.tasks import first_completed
from rsnotify_hub.access.limits import covers
from rsnotify_hub.bridging import BacklogSender, Bridge, BridgeParts, BrokerCursors
from rsnotify_hub.config.configuration import MqttConfig
from rsnotify_hub.filtering import TopicSelection
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.log.topic_log import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import DeliveryTransport, Statistics
from rsnotify_hub.urls import check_url

logger = logging.getLogger("rsnotify.hub.mqtt")

#: Seconds for which the broker keeps the messages of Sources while the hub is down.
SESSION_SECONDS = 7 * 86_400
#: Seconds between two deletions of expired parts of topics.
_CLEAN_UP_SECONDS = 60.0

#: The code under which messages lost to an internal error count as refused.
FAULT = "fault"

#: The waits between retries after an internal error, in seconds.
RETRY_SECONDS = (0.1, 0.5, 2.0)

#: Remaining fraction of the lease at which a selection may be replaced. A Destination that still
#: wants the selection would have renewed it at half of the lease.
_REPLACEABLE = 0.375
_EXPIRED = float("-inf")

_XML = "application/xml"


class MqttBridge(Bridge):
    def __init__(self, config: MqttConfig, parts: BridgeParts) -> None:
        assert config.url is not None
        self._broker = parse_broker(config.url)
        self._config = config
        self._intake = parts.intake
        self._statistics = parts.statistics
        self._filters = parts.filters
        prefix = self._broker.topic_or_prefix
        cursors = BrokerCursors(parts.store, parts.topics, f"{self._broker.url}/{prefix}")
        self._requested = RequestedSelections(prefix, parts.topics, cursors, parts.max_selections)
        super().__init__(DeliveryTransport.MQTT, "MQTT broker", cursors, parts)

    async def start(self) -> None:
        await super().start()
        self._requested.start()

    async def _connect(self) -> None:
        # Connecting would end the owner's session, which has the same client ID.
        self._cursors.check_owner()
        config = self._config
        arrived: asyncio.Queue[MqttMessage] = asyncio.Queue()
        async with connect(
            self._broker,
            config.login,
            session=BrokerSession(config.client_id, SESSION_SECONDS)
            if config.channels
            else CLEAN_START,
            version=config.version,
            on_message=arrived.put_nowait,
            manual_ack=True,
        ) as connection:
            url, version = self._broker.url, connection.version
            logger.info("connected to the MQTT broker %s, in MQTT %s", url, version)
            sender = BacklogSender(
                self.transport,
                partial(self._publish, connection),
                self._requested.of_topic,
                self._topics,
                self._cursors,
                self._filters,
                self._statistics,
                self._retry,
            )
            messages = MqttInbox(
                config.channels,
                inbox_prefix(self._broker.topic_or_prefix),
                self._topics,
                self._intake,
                self._statistics,
                self._requested,
                sender.wake,
                self._cursors.check_owner,
            )
            async with self._sending(sender):
                await self._subscribe(connection, messages)
                self._warned.clear()
                await _run_until_first_ends(
                    connection.lost(),
                    messages.run(arrived, connection.acknowledge),
                    self._clean_up(sender),
                )

    async def _publish(
        self,
        connection: BrokerConnection,
        selection: TopicSelection,
        body: bytes,
        content_type: str,
    ) -> asyncio.Future[None]:
        topic, part = selection.topic, None
        if selection.select:
            part = self._broker.filtered_topic(topic, selection.select)
        return await connection.publish(
            part or self._broker.topic(topic),
            body,
            content_type=content_type,
            channel=topic,
            check=self._cursors.check_owner,
        )

    async def _subscribe(self, connection: BrokerConnection, messages: MqttInbox) -> None:
        if messages.pattern is not None:
            await connection.subscribe(messages.pattern)
            logger.info("accepting what Sources publish as %s", messages.pattern)
        pattern = self._requested.pattern
        if pattern is not None:
            try:
                await connection.subscribe(pattern)
                logger.info("parts of topics can be requested over MQTT as %s", pattern)
            except Unavailable as error:
                # A broker's ACL from before this version does not allow the name. All Destinations
                # then receive whole topics.
                logger.info("no part of a topic can be requested over MQTT: %s", error)

    async def _clean_up(self, sender: BacklogSender) -> None:
        while True:
            for selection in self._requested.expired():
                await self._end(selection, sender)
            await asyncio.sleep(_CLEAN_UP_SECONDS)

    async def _end(self, selection: TopicSelection, sender: BacklogSender) -> None:
        self._requested.remove(selection)
        try:
            await sender.end(selection)
        except ConnectionRefused as error:
            logger.info("a part of %s cannot be deleted yet: %s", selection.topic, error)
            self._requested.restore(selection)
        except BaseException:
            # The connection is lost. The next connection deletes the retained message.
            self._requested.restore(selection)
            raise
        if selection in self._requested.of_topic(selection.topic):
            sender.wake(selection.topic)  # the part was restored, or requested again
            return
        await self._cursors.delete(selection)
        logger.info("a part of %s is no longer published over MQTT", selection.topic)


async def _run_until_first_ends(*works: Coroutine[Any, Any, None]) -> None:
    async with first_completed(*works) as tasks:
        for task in filter(asyncio.Task.done, tasks):
            task.result()


@dataclass(eq=False, repr=False)
class MqttInbox:
    """Handles the messages below a prefix of MQTT topics, and requests for parts of topics.

    After an internal error the hub retries a few times, because the cause may be temporary (no
    memory, no thread). If the error persists, the hub logs it and discards the message: the broker
    would resend an unacknowledged message first on each connection, and it would block all others.
    Destinations detect the gap.

    Args:
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
        # In MQTT 3.1.1 a message cannot name its channel.
        self._known = {channel_topic(channel, self.prefix): channel for channel in self.channels}

    @property
    def pattern(self) -> str | None:
        """The pattern of MQTT topics to subscribe to; None if nobody may publish over MQTT."""
        return self.prefix + "+" if self.channels else None

    async def run(
        self, arrived: asyncio.Queue[MqttMessage], acknowledge: Callable[[MqttMessage], None]
    ) -> None:
        """Handle messages in batches as they arrive, and acknowledge them in order.

        Raises:
            StorageError: A message could not be stored. Neither it nor any later message is
                acknowledged.
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
        """Handle a message, and return a future that is done when its content is durable.

        Return None if there is nothing to wait for.
        """
        for pause in (*RETRY_SECONDS, None):
            try:
                return await self._handle(message)
            except StorageError:
                raise
            except (Refusal, DocumentError) as error:
                self._count_refusal(message, error)
                break
            except Exception as error:
                if pause is None:
                    self._count_fault(message)
                    break
                reason = type(error).__name__
                logger.warning(
                    "a message over MQTT as %r is tried again: %s", message.topic, reason
                )
            await asyncio.sleep(pause)
        return None

    async def _finish(self, message: MqttMessage, durable: asyncio.Future[None] | None) -> None:
        try:
            if durable is not None:
                await durable
        except StorageError:
            raise
        except DocumentError as error:
            self._count_refusal(message, error)
        except Exception:
            self._count_fault(message)

    def _count_fault(self, message: MqttMessage) -> None:
        self.statistics.refused[FAULT] += 1
        logger.exception("a message over MQTT as %r could not be handled", message.topic)

    async def _handle(self, message: MqttMessage) -> asyncio.Future[None] | None:
        if self.requested.is_request(message):
            self.wake(self.requested.add(message))
            return None
        # Content that arrives late must not replace content that another node has published since.
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
        logger.log(level, "refused a message over MQTT as %r: %s", message.topic, error)

    def _level(self, message: MqttMessage, code: Code) -> int:
        """Return WARNING for a Source's message or the first request with a code, else DEBUG."""
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
        if not covers(self.channels, channel):
            raise Refusal(Code.FORBIDDEN, "its channel is not one of mqtt_channels")
        return channel


class RequestedSelections:
    """The leases of the parts that are published to a broker, at most `limit` per topic."""

    def __init__(self, prefix: str, topics: TopicLogs, cursors: BrokerCursors, limit: int) -> None:
        self._prefix = request_prefix(prefix)
        self._topics = topics
        self._cursors = cursors
        self._limit = limit
        self._leases: dict[str, dict[TopicSelection, float]] = {}

    def start(self) -> None:
        """Start new leases for the parts that the broker has a cursor for."""
        self._leases = {}
        for selection in self._cursors.parts():
            self._renew(selection)

    @property
    def pattern(self) -> str | None:
        """The pattern of MQTT topics for requests; None if parts cannot be requested."""
        return self._prefix + "+" if self._limit else None

    def is_request(self, message: MqttMessage) -> bool:
        return message.topic.startswith(self._prefix)

    def of_topic(self, topic: str) -> list[TopicSelection]:
        return [TopicSelection(topic), *self._leases.get(topic, ())]

    def add(self, message: MqttMessage) -> str:
        """Add, renew or refuse the part that a message requests, and return its topic."""
        try:
            request = read_selection_request(message.payload)
        except ConfigurationError as error:
            raise Refusal(Code.BAD_REQUEST, str(error)) from None
        if channel_topic(request.topic, self._prefix) != message.topic:
            raise Refusal(Code.FORBIDDEN, "it is about a channel of another name")
        state = self._topics.state(request.topic)
        if state is None:
            raise Refusal(Code.BAD_REQUEST, "nothing was ever published on its topic")
        selection = TopicSelection(request.topic, request.select)
        parts = self._leases.get(request.topic, {})
        if parts.get(selection, _EXPIRED) < _now():
            self._check_limit(parts)
        if selection not in parts:
            self._cursors.move(selection, max(0, state.position - 1))
            logger.info(
                "a part of %s is now published over MQTT: %r",
                request.topic,
                request.select.canonical_json,
            )
        self._renew(selection)
        return request.topic

    def _check_limit(self, parts: dict[TopicSelection, float]) -> None:
        """Make room for one more part: if a topic is full, expire the part with the oldest lease.

        Refuse the part if no other may be replaced.
        """
        now = _now()
        live = [selection for selection, ends in parts.items() if ends >= now]
        if len(live) < self._limit:
            return
        oldest = min(live, key=parts.__getitem__, default=None)
        # Expired parts may still exist if the broker refuses to delete them.
        is_full = len(parts) >= 2 * self._limit
        if oldest is None or is_full or parts[oldest] > now + LEASE * _REPLACEABLE:
            raise Refusal(Code.TOO_MANY, "its topic has enough parts already")
        parts[oldest] = _EXPIRED

    def _renew(self, selection: TopicSelection) -> None:
        self._leases.setdefault(selection.topic, {})[selection] = _now() + LEASE

    def expired(self) -> list[TopicSelection]:
        now = _now()
        return [
            selection
            for parts in self._leases.values()
            for selection, ends in parts.items()
            if ends < now
        ]

    def remove(self, selection: TopicSelection) -> None:
        parts = self._leases[selection.topic]
        del parts[selection]
        if not parts:
            del self._leases[selection.topic]

    def restore(self, selection: TopicSelection) -> None:
        """Undo `remove`. The part is expired unless it has been requested again."""
        self._leases.setdefault(selection.topic, {}).setdefault(selection, _EXPIRED)


def _now() -> float:
    return asyncio.get_running_loop().time()
