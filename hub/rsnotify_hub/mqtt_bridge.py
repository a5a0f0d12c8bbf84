"""The bridge to an MQTT broker. It also accepts the messages that Sources publish at the broker.

The broker decides who may publish what: each channel has its own MQTT topic below the inbox, named
by the digest of the channel's URI, and the broker's ACL lists the writers of that topic. A property
of each message names its channel, and the hub accepts the message only on that channel's MQTT
topic. The hub acknowledges a message when it is durable; until then the broker keeps it
(`MqttInbox`).

Destinations may request filtered topics, which the hub then publishes to the broker as well. Any
client with write access to the MQTT topic for requests may request one, and MQTT does not identify
senders. The number of filtered topics is therefore limited, and each has a lease. They survive a
restart as the broker's cursors in the store, and their leases restart whenever the hub starts
(`FilteredTopicLeases`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
from rsnotify_hub.access.grants import prefixes_grant
from rsnotify_hub.bridging import BacklogSender, Bridge, BridgeDependencies, BrokerCursors
from rsnotify_hub.config.configuration import MqttConfig
from rsnotify_hub.filtering import TopicSelection
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import DeliveryTransport, Statistics
from rsnotify_hub.topic_log import TopicLogs
from rsnotify_hub.urls import check_url

logger = logging.getLogger("rsnotify.hub.mqtt")

#: How long the broker keeps the messages of Sources while the hub is down, in seconds.
SESSION_SECONDS = 7 * 86_400
#: The interval at which expired filtered topics are deleted, in seconds.
_CLEAN_UP_SECONDS = 60.0

#: The refusal code that counts messages lost to an internal error.
FAULT = "fault"

#: The delays before retries after an internal error, in seconds.
RETRY_SECONDS = (0.1, 0.5, 2.0)

#: Remaining fraction of the lease at which a filtered topic may be replaced. A Destination renews
#: it at half of the lease.
_REPLACEABLE_LEASE = 0.375
_EXPIRED = float("-inf")

_XML = "application/xml"


class MqttBridge(Bridge):
    def __init__(self, config: MqttConfig, dependencies: BridgeDependencies) -> None:
        assert config.url is not None
        self._broker = parse_broker(config.url)
        self._config = config
        self._intake = dependencies.intake
        prefix, topics = self._broker.topic_or_prefix, dependencies.topics
        cursors = BrokerCursors(dependencies.store, topics, f"{self._broker.url}/{prefix}")
        self._leases = FilteredTopicLeases(prefix, topics, cursors, dependencies.max_selections)
        super().__init__(DeliveryTransport.MQTT, "MQTT broker", cursors, dependencies)

    async def start(self) -> None:
        await super().start()
        self._leases.start()

    async def _connect(self) -> None:
        # Connecting would end the session of another owner, which has the same client ID.
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
            publish = partial(self._publish, connection)
            async with self._sending(publish, self._leases.selections) as sender:
                inbox = MqttInbox(
                    config.channels,
                    inbox_prefix(self._broker.topic_or_prefix),
                    self._topics,
                    self._intake,
                    self._statistics,
                    self._leases,
                    sender.wake,
                    self._cursors.check_owner,
                )
                await self._subscribe(connection, inbox)
                self._warned.clear()
                async with first_completed(
                    connection.lost(),
                    inbox.run(arrived, connection.acknowledge),
                    self._clean_up(sender),
                ) as tasks:
                    for task in filter(asyncio.Task.done, tasks):
                        task.result()

    async def _publish(
        self,
        connection: BrokerConnection,
        selection: TopicSelection,
        body: bytes,
        content_type: str,
    ) -> asyncio.Future[None]:
        topic, filtered = selection.topic, None
        if selection.select:
            filtered = self._broker.filtered_topic(topic, selection.select)
        return await connection.publish(
            filtered or self._broker.topic(topic),
            body,
            content_type=content_type,
            channel=topic,
            check=self._cursors.check_owner,
        )

    async def _subscribe(self, connection: BrokerConnection, inbox: MqttInbox) -> None:
        if inbox.pattern is not None:
            await connection.subscribe(inbox.pattern)
            logger.info("accepting messages from Sources on %s", inbox.pattern)
        pattern = self._leases.pattern
        if pattern is not None:
            try:
                await connection.subscribe(pattern)
                logger.info("accepting requests for filtered topics on %s", pattern)
            except Unavailable as error:
                # The broker's ACL may be from a version without filtered topics. All Destinations
                # then receive whole topics.
                logger.info("filtered topics cannot be requested over MQTT: %s", error)

    async def _clean_up(self, sender: BacklogSender) -> None:
        while True:
            for selection in self._leases.expired():
                await self._delete(selection, sender)
            await asyncio.sleep(_CLEAN_UP_SECONDS)

    async def _delete(self, selection: TopicSelection, sender: BacklogSender) -> None:
        """Stop sending a filtered topic, and delete its retained message at the broker."""
        self._leases.remove(selection)
        try:
            async with sender.suspended(selection):
                # An empty message deletes the retained message (MQTT 5 §3.3.1.3).
                await (await sender.publish(selection, b"", _XML))
        except ConnectionRefused as error:
            logger.info("cannot delete a filtered topic of %s: %s", selection.topic, error)
            self._leases.restore(selection)
        except BaseException:
            # The connection is lost. The next connection deletes the retained message.
            self._leases.restore(selection)
            raise
        if selection in self._leases.selections(selection.topic):
            sender.wake(selection.topic)  # the filtered topic was restored, or requested again
            return
        await self._cursors.delete(selection)
        logger.info("stopped publishing a filtered topic of %s over MQTT", selection.topic)


@dataclass(eq=False, repr=False)
class MqttInbox:
    """Handles what Sources publish at the broker, and requests for filtered topics.

    After an internal error the hub retries a few times, because the cause may be temporary (no
    memory, no thread). If the error persists, the hub logs it and discards the message, which would
    otherwise block all others: the broker resends unacknowledged messages first on each connection.
    Destinations detect the gap.

    Args:
        prefix: The prefix of the MQTT topics on which Sources publish.
        wake: Called with a topic that has something to send.
        check_owner: Raises `NotOwner` if another node handles the messages.
    """

    channels: Sequence[str]
    prefix: str
    topics: TopicLogs
    intake: FragmentIntake
    statistics: Statistics
    leases: FilteredTopicLeases
    wake: Callable[[str], None]
    check_owner: Callable[[], None]

    def __post_init__(self) -> None:
        self._warned: set[Code] = set()
        # An MQTT 3.1.1 message cannot name its channel.
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
            StorageError: A message could not be stored. It and all later messages are
                unacknowledged.
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
                logger.warning("retrying a message over MQTT on %r: %s", message.topic, reason)
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
        logger.exception("internal error: discarded a message over MQTT on %r", message.topic)

    async def _handle(self, message: MqttMessage) -> asyncio.Future[None] | None:
        if self.leases.is_request(message):
            self.wake(self.leases.add(message))
            return None
        # A late content must not replace one that another node has published since.
        self.check_owner()
        if message.packet_id is None:
            raise Refusal(Code.BAD_REQUEST, "it was sent with QoS 0: send it with QoS 1")
        channel = self._channel(message)
        limit = self.intake.max_bytes
        if len(message.payload) > limit:
            raise Refusal(Code.INVALID_FRAGMENT, f"it is larger than {limit} bytes")
        fragment = await self.intake.read_publication(message.payload, message.content_type or _XML)
        return self.topics.publish(channel, fragment)

    def _count_refusal(self, message: MqttMessage, error: Refusal | DocumentError) -> None:
        code = error.code if isinstance(error, Refusal) else Code.INVALID_FRAGMENT
        self.statistics.refused[code] += 1
        level = self._level(message, code)
        logger.log(level, "refused a message over MQTT on %r: %s", message.topic, error)

    def _level(self, message: MqttMessage, code: Code) -> int:
        """Return DEBUG for a repeated refusal of requests, which anybody may send, else WARNING."""
        if not self.leases.is_request(message):
            return logging.WARNING
        level = logging.DEBUG if code in self._warned else logging.WARNING
        self._warned.add(code)
        return level

    def _channel(self, message: MqttMessage) -> str:
        channel = message.channel or self._known.get(message.topic)
        if channel is None:
            raise Refusal(Code.BAD_REQUEST, "it does not name its channel")
        if channel_topic(channel, self.prefix) != message.topic:
            raise Refusal(Code.FORBIDDEN, "its MQTT topic belongs to another channel")
        check_url(channel, "its channel")
        if not prefixes_grant(self.channels, channel):
            raise Refusal(Code.FORBIDDEN, "mqtt_channels does not include its channel")
        return channel


class FilteredTopicLeases:
    """The leases of the filtered topics at a broker, at most `limit` per topic."""

    def __init__(self, prefix: str, topics: TopicLogs, cursors: BrokerCursors, limit: int) -> None:
        self._prefix = request_prefix(prefix)
        self._topics = topics
        self._cursors = cursors
        self._limit = limit
        self._leases: dict[str, dict[TopicSelection, float]] = {}

    def start(self) -> None:
        """Start new leases for the filtered topics that the broker has a cursor for."""
        self._leases = {}
        for selection in self._cursors.filtered_topics():
            self._renew(selection)

    @property
    def pattern(self) -> str | None:
        """The pattern of MQTT topics for requests; None if filtered topics are disabled."""
        return self._prefix + "+" if self._limit else None

    def is_request(self, message: MqttMessage) -> bool:
        return message.topic.startswith(self._prefix)

    def selections(self, topic: str) -> list[TopicSelection]:
        """Return a topic and its filtered topics."""
        return [TopicSelection(topic), *self._leases.get(topic, ())]

    def add(self, message: MqttMessage) -> str:
        """Add, renew or refuse the requested filtered topic, and return its topic."""
        try:
            request = read_selection_request(message.payload)
        except ConfigurationError as error:
            raise Refusal(Code.BAD_REQUEST, str(error)) from None
        if channel_topic(request.topic, self._prefix) != message.topic:
            raise Refusal(Code.FORBIDDEN, "its MQTT topic belongs to another channel")
        state = self._topics.state(request.topic)
        if state is None:
            raise Refusal(Code.BAD_REQUEST, "nothing was ever published on its topic")
        selection = TopicSelection(request.topic, request.select)
        leases = self._leases.get(request.topic, {})
        if leases.get(selection, _EXPIRED) < _now():
            self._make_room(leases)
        if selection not in leases:
            self._cursors.move(selection, max(0, state.position - 1))
            logger.info(
                "publishing a filtered topic of %s over MQTT: %r",
                request.topic,
                request.select.canonical_json,
            )
        self._renew(selection)
        return request.topic

    def _make_room(self, leases: dict[TopicSelection, float]) -> None:
        """If a topic is at the limit, expire the lease that ends first, or refuse the request."""
        now = _now()
        live = [selection for selection, ends in leases.items() if ends >= now]
        if len(live) < self._limit:
            return
        oldest = min(live, key=leases.__getitem__, default=None)
        # Expired leases remain if the broker refuses to delete the retained messages.
        is_full = len(leases) >= 2 * self._limit
        if oldest is None or is_full or leases[oldest] > now + LEASE * _REPLACEABLE_LEASE:
            raise Refusal(Code.TOO_MANY, "its topic has too many filtered topics")
        leases[oldest] = _EXPIRED

    def _renew(self, selection: TopicSelection) -> None:
        self._leases.setdefault(selection.topic, {})[selection] = _now() + LEASE

    def expired(self) -> list[TopicSelection]:
        now = _now()
        return [
            selection
            for leases in self._leases.values()
            for selection, ends in leases.items()
            if ends < now
        ]

    def remove(self, selection: TopicSelection) -> None:
        leases = self._leases[selection.topic]
        del leases[selection]
        if not leases:
            del self._leases[selection.topic]

    def restore(self, selection: TopicSelection) -> None:
        """Undo `remove`. The lease is expired, unless there is a new one."""
        self._leases.setdefault(selection.topic, {}).setdefault(selection, _EXPIRED)


def _now() -> float:
    return asyncio.get_running_loop().time()
