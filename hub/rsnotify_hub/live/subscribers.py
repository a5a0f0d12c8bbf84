"""The live subscribers of each topic, over WebSocket and as event streams.

Theory of operation. A subscriber first *replays* the log (`Replays`). It goes *live* in the same
iteration of the event loop in which its position reaches the end of the log, so that it misses
nothing in between. All live subscribers of a topic that use the same encoding form an `Audience`,
and share the encoded bytes of each commit.

Most subscribers are *quick*: everything sent to them has left their transport, and the hub writes
new data to their sockets at once. A *slow* subscriber has data waiting in its transport. Until that
data is gone, new data waits in the subscriber's own queue, which references the shared bytes. The
hub cuts off a subscriber whose queue grows too long. A slow subscriber therefore costs the others
nothing, and a quick one costs a write. A connection that receives many topics has a single queue
for all of them, and is never quick, because moving each of its topics between quick and slow would
be expensive.

The hub sends a fragment to live subscribers while it is still writing the fragment to the log. This
is safe because the Source has the fragment on its disk, and publishes it again unless the hub
acknowledges it. If the write fails, or the hub stops before it completes, subscribers receive the
fragment twice, and Destinations ignore the duplicate. A subscriber that goes live during the write
receives the fragment at that moment, because its replay did not include it.

An encoding that parses fragments would block the event loop on large ones. Its subscribers do not
receive large fragments early. When these are durable, the subscribers leave the audience and replay
them, which encodes them in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.selection import PushSelection
from rsnotify_hub.config.configuration import WebSocketConfig
from rsnotify_hub.delivery_channel import DeliveryChannel
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.live.connections import ConnectionRole, LiveConnection, SendQueue
from rsnotify_hub.refusals import Refusal
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import LogEntry

logger = logging.getLogger("rsnotify.hub.live")

#: Seconds that a subscriber has to read the data in its transport after the hub cut it off.
CUT_OFF_SECONDS = 10.0
_SOCKETS_ARE_FILES = os.name == "posix"


class LiveChannel(DeliveryChannel):
    """The live subscribers of every topic."""

    def __init__(self, configuration: WebSocketConfig, statistics: Statistics) -> None:
        self._max_bytes = configuration.queue_bytes
        self._max_frames = configuration.queue_frames
        self._statistics = statistics
        self._audiences: dict[str, dict[Encoding, Audience]] = {}
        # The fragments of each topic that were sent early and are still being written.
        self._early: dict[str, Sequence[Fragment]] = {}
        self._open: Counter[tuple[str, DeliveryTransport]] = Counter()

    def deliver_early(self, topic: str, fragments: Sequence[Fragment]) -> None:
        self._early[topic] = fragments
        for audience in self._audiences_of(topic):
            self._send(audience, _sent_early(fragments, audience.encoding))

    def write_failed(self, topic: str) -> None:
        self._early.pop(topic, None)

    def deliver(self, key: str, entries: Sequence[LogEntry]) -> None:
        early = self._early.pop(key, ())
        for audience in self._audiences_of(key):
            sent = {id(fragment) for fragment in _sent_early(early, audience.encoding)}
            fragments = [each.fragment for each in entries if id(each.fragment) not in sent]
            if audience.encoding.needs_thread(fragments):
                self._restart_replays(audience, entries[0].position - 1)
            else:
                self._send(audience, fragments)

    def _audiences_of(self, key: str) -> Sequence[Audience]:
        return tuple(self._audiences.get(key, {}).values())

    def _send(self, audience: Audience, fragments: Sequence[Fragment]) -> None:
        if not fragments:
            return
        data = audience.encoding.encode(fragments)
        count = len(fragments)
        # Subscribers that become slow during the write below already have the data.
        slow = list(audience.slow)
        self.count_delivered(audience.encoding.transport, data, count, len(audience))
        audience.sent += count
        audience.write(data)
        for subscriber in slow:
            self._queue(subscriber, data, count)

    def _queue(self, subscriber: LiveSubscriber, data: bytes, count: int) -> None:
        connection = subscriber.connection
        if not connection.is_paused:
            connection.send(data)
            return
        if connection.queue is None:
            connection.queue = SendQueue(self._max_bytes, self._max_frames)
        ahead = connection.transport.get_write_buffer_size()
        if not connection.queue.put(data, count, ahead=ahead):
            logger.warning("cut off a subscriber of %s that is too slow", subscriber.topic)
            self._statistics.count(subscriber.encoding.transport, DeliveryOutcome.CUT_OFF)
            connection.cut_off(seconds=CUT_OFF_SECONDS)

    def _restart_replays(self, audience: Audience, position: int) -> None:
        """Remove all members, which replay the log after a position and then rejoin."""
        for subscriber in (*audience.quick, *audience.slow):
            self._remove_from_audience(subscriber)
            subscriber.connection.send_queue(everything=True)
            subscriber.replay_after(subscriber, position)

    def count_delivered(
        self, transport: DeliveryTransport, data: bytes, count: int, subscribers: int = 1
    ) -> None:
        self._statistics.deliveries[transport, DeliveryOutcome.DELIVERED] += count * subscribers
        self._statistics.delivered_bytes[transport] += len(data) * subscribers

    def subscribers(self, topic: str) -> int:
        """Return the number of subscribers to a topic, including those that are replaying."""
        return sum(self.subscribers_over(topic, transport) for transport in DeliveryTransport)

    def subscribers_over(self, topic: str, transport: DeliveryTransport) -> int:
        return self._open[topic, transport]

    def enter(self, subscriber: LiveSubscriber) -> None:
        """Count a subscriber whose replay is about to start."""
        self._open[subscriber.topic, subscriber.encoding.transport] += 1

    def join(self, subscriber: LiveSubscriber) -> None:
        """Make a subscriber live after it has received the log up to its end."""
        key, encoding = subscriber.key, subscriber.encoding
        if early := _sent_early(self._early.get(key, ()), encoding):
            data = encoding.encode(early)
            subscriber.connection.send(data)
            self.count_delivered(encoding.transport, data, len(early))
            subscriber.sent += len(early)
        audiences = self._audiences.setdefault(key, {})
        audiences.setdefault(encoding, Audience(encoding)).put(subscriber)

    def leave(self, subscriber: LiveSubscriber) -> None:
        self._remove_from_audience(subscriber)
        count_of = subscriber.topic, subscriber.encoding.transport
        self._open[count_of] -= 1
        if not self._open[count_of]:
            del self._open[count_of]

    def _remove_from_audience(self, subscriber: LiveSubscriber) -> None:
        audiences = self._audiences.get(subscriber.key, {})
        if audience := audiences.get(subscriber.encoding):
            audience.remove(subscriber)
            if not audience:
                del audiences[subscriber.encoding]
        if not audiences:
            self._audiences.pop(subscriber.key, None)

    def sent_live(self, subscriber: LiveSubscriber) -> int:
        """Return the number of fragments sent to a subscriber since it last went live."""
        audience = self._audiences.get(subscriber.key, {}).get(subscriber.encoding)
        return audience.sent_to(subscriber) if audience is not None else 0

    def reclassify(self, subscriber: LiveSubscriber) -> None:
        """Reclassify a live subscriber as quick or slow. Do nothing if it is not live."""
        audience = self._audiences.get(subscriber.key, {}).get(subscriber.encoding)
        if audience is not None and (subscriber in audience.quick or subscriber in audience.slow):
            audience.put(subscriber)


def _sent_early(fragments: Sequence[Fragment], encoding: Encoding) -> Sequence[Fragment]:
    """Return the fragments that are sent early in an encoding: all of them, or none."""
    return () if encoding.needs_thread(fragments) else fragments


class Audience:
    """The live subscribers of one topic that use the same encoding.

    The audience writes directly to the sockets of quick members, which is 10% faster than through
    the transport. The transport handles the data that a socket does not accept, and all errors. A
    member must be removed before its socket is closed; `LiveConnection` reports the end of a
    connection before that.

    Attributes:
        quick: The quick members, and the file descriptors of their sockets.
        sent: The number of fragments sent to the audience. Counting per member would require an
            update of every member for each fragment.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.quick: dict[LiveSubscriber, int] = {}
        self.slow: set[LiveSubscriber] = set()
        self.sent = 0

    def __len__(self) -> int:
        return len(self.quick) + len(self.slow)

    def put(self, member: LiveSubscriber) -> None:
        """Add a member, or reclassify it as quick or slow."""
        self.remove(member)
        member.joined_at = self.sent
        if member.connection.is_paused or member.connection.replay_lock is not None:
            self.slow.add(member)
        else:
            self.quick[member] = _descriptor_of(member.connection.transport)

    def sent_to(self, member: LiveSubscriber) -> int:
        is_member = member in self.quick or member in self.slow
        return self.sent - member.joined_at if is_member else 0

    def remove(self, member: LiveSubscriber) -> None:
        member.sent += self.sent_to(member)
        self.slow.discard(member)
        self.quick.pop(member, None)

    def write(self, data: bytes) -> None:
        """Write to all quick members. A member that this makes slow still gets all of the data."""
        size, write = len(data), os.write
        for member, descriptor in tuple(self.quick.items()):
            try:
                sent = write(descriptor, data)
            except OSError:
                sent = 0
            if sent != size:
                _write_rest(member.connection, data, sent)


def _descriptor_of(transport: asyncio.BaseTransport) -> int:
    """Return the file descriptor of a transport's socket; -1 where sockets are not files."""
    socket = transport.get_extra_info("socket") if _SOCKETS_ARE_FILES else None
    return -1 if socket is None else socket.fileno()


def _write_rest(connection: LiveConnection, data: bytes, sent: int) -> None:
    try:
        connection.transport.write(memoryview(data)[sent:])
    except Exception:
        # The transport has failed and will report that. Other members must still get the data.
        logger.debug("cannot write to a subscriber", exc_info=True)


class Encoding(ABC):
    """Encodes fragments for a transport."""

    def __init__(self, transport: DeliveryTransport) -> None:
        self.transport = transport

    @abstractmethod
    def encode(self, fragments: Sequence[Fragment]) -> bytes:
        """Return the bytes that all subscribers share."""

    def needs_thread(self, fragments: Sequence[Fragment]) -> bool:
        """Return whether `encode` would block the event loop."""
        return False

    async def encode_page(self, fragments: Sequence[Fragment]) -> bytes:
        """Encode fragments read from a log, in a thread if necessary."""
        return self.encode(fragments)


class Opening(Struct, frozen=True):
    """What a subscriber receives before its replay.

    Args:
        since: The instant that the subscriber requested; None for live only.
        select: The selection that the hub granted.
        begins: The start of the log, if it is after `since`. The changes in between are missing.
    """

    topic: str
    since: Instant | None
    select: PushSelection
    through: Instant | None
    audience: int
    begins: Instant | None


@dataclass(slots=True, eq=False, repr=False)
class LiveSubscriber(ConnectionRole):
    """A connection that receives a topic.

    Attributes:
        key: The key of the selection, or the topic if the subscriber receives all of it.
        cancel_replay: Cancels the replay; None if the subscriber is live.
        replay_after: Starts a replay after a position.
        position: The position in the log that the replay has reached.
        sent: The number of fragments sent to the subscriber before it last went live.
        joined_at: The value of the audience's `sent` when the subscriber last joined.
    """

    connection: LiveConnection
    topic: str
    channel: LiveChannel
    encoding: Encoding
    key: str = ""
    leave: Callable[[], None] = lambda: None
    cancel_replay: Callable[[], object] | None = None
    replay_after: Callable[[LiveSubscriber, int], None] = lambda subscriber, position: None
    position: int = 0
    sent: int = 0
    joined_at: int = 0

    def __post_init__(self) -> None:
        self.key = self.key or self.topic

    def receives(self) -> bool:
        return True

    def topic_roles(self) -> Collection[LiveSubscriber]:
        return (self,)

    @property
    def passed(self) -> int:
        return self.sent + self.channel.sent_live(self)

    def replays(self) -> bool:
        return self.cancel_replay is not None

    def remaining(self, end: int) -> int:
        return max(0, end - self.position) if self.replays() else 0

    @abstractmethod
    def opened(self, opening: Opening) -> None:
        """Send the opening."""

    @abstractmethod
    def refused(self, refusal: Refusal) -> None:
        """Close, and send the reason if the transport supports that."""

    @abstractmethod
    def failed(self) -> None:
        """Close after an internal error of the hub."""

    def paused(self) -> None:
        self.channel.reclassify(self)

    resumed = paused

    def lost(self) -> None:
        if self.cancel_replay is not None:
            self.cancel_replay()
        self.channel.leave(self)
        self.leave()
