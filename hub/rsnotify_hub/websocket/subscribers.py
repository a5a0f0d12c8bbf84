"""The Destinations' side of `GET /ws`: the live subscribers of each topic.

Theory of operation. A subscriber first *replays* the log (`replay`), then goes *live* in the
iteration of the event loop in which its position is the end of the log, so that nothing is missed
in between. All live subscribers of a topic share the bytes of one frame, or of all frames of one
commit. Most are *quick*: everything sent to them has left their transport, and new data is written
at once (`Audience.write`). A *slow* subscriber has data waiting in its transport, and until that is
gone, new data waits in a queue of its own, of shared bytes. A subscriber whose queue grows too long
is cut off. So a slow subscriber costs the others nothing, and a quick one costs a write.

A fragment is sent to the live subscribers of a topic while the log writes it, because the Source
has it on its disk, and publishes it again unless it is acknowledged. If the write fails, or the hub
ends before, they receive it twice, and Destinations ignore the repetition. A subscriber that goes
live during the write receives the fragment at that moment, since its replay did not have it.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rsnotify_hub.config.configuration import WebSocketConfig
from rsnotify_hub.fragments.fragment import Fragment
from rsnotify_hub.http.direct_writes import descriptor_of
from rsnotify_hub.log.topic_log import DeliveryChannel
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import LogEntry
from rsnotify_hub.websocket.connection import FrameHandler, WebSocketConnection
from rsnotify_hub.websocket.frames import TRY_AGAIN_LATER, document_frames

log = logging.getLogger("rsnotify.hub.websocket")

_DELIVERED = (DeliveryTransport.WEBSOCKET, DeliveryOutcome.DELIVERED)

#: How long a subscriber that was cut off has to read what its transport holds, in seconds.
_CUT_OFF_SECONDS = 10.0


@dataclass(slots=True, eq=False, repr=False)
class WebSocketSubscriber(FrameHandler):
    """A connection that receives a topic.

    Attributes:
        key: The key of its audience; the topic itself if it receives all of it.
        queue: What waits for it while it is slow.
        cancel_replay: Cancels its replay; None once it is live.
    """

    connection: WebSocketConnection
    topic: str
    channel: WebSocketChannel
    refuse: Callable[[WebSocketConnection], None]
    key: str = ""
    leave: Callable[[], None] = lambda: None
    queue: SendQueue | None = None
    cancel_replay: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        self.key = self.key or self.topic

    def received(self, payload: bytes, *, is_text: bool) -> None:
        self.refuse(self.connection)

    def paused(self) -> None:
        self.channel.mark_slow(self)

    def resumed(self) -> None:
        if self.queue is None or self.queue.send(self.connection):
            self.channel.mark_quick(self)

    def lost(self) -> None:
        if self.cancel_replay is not None:
            self.cancel_replay()
        self.channel.leave(self)
        self.leave()


@dataclass(slots=True, eq=False, repr=False)
class SendQueue:
    """The frames that wait for a slow subscriber. The bytes in its transport count as well."""

    max_bytes: int
    max_frames: int
    size: int = 0
    frames: int = 0
    _waiting: deque[tuple[bytes, int]] = field(default_factory=deque)

    def put(self, data: bytes, count: int, *, ahead: int) -> bool:
        """Add frames behind the bytes in the transport; return False if that is too much."""
        if ahead + self.size + len(data) > self.max_bytes:
            return False
        if self.frames + count > self.max_frames:
            return False
        self._waiting.append((data, count))
        self.size += len(data)
        self.frames += count
        return True

    def send(self, connection: WebSocketConnection) -> bool:
        """Send as much as the transport accepts; return whether that was all."""
        while self._waiting and not connection.is_paused:
            data, count = self._waiting.popleft()
            self.size -= len(data)
            self.frames -= count
            connection.send(data)
        return not connection.is_paused


class Audience:
    """The live subscribers of one topic.

    Theory of operation. A member is *quick* while nothing waits in its transport
    (`WebSocketConnection.is_paused` is false). Then its socket can be written to directly, which
    costs a tenth less than a write through the transport. What the socket does not accept, and
    every error, is left to the transport. A member must be removed before its socket is closed;
    `WebSocketConnection` reports its end before that.

    Attributes:
        quick: The quick members, and the file descriptors of their sockets.
        slow: The others.
    """

    def __init__(self) -> None:
        self.quick: dict[WebSocketSubscriber, int] = {}
        self.slow: set[WebSocketSubscriber] = set()

    def __len__(self) -> int:
        return len(self.quick) + len(self.slow)

    def put(self, member: WebSocketSubscriber) -> None:
        """Add a member, or sort it again as quick or slow."""
        self.remove(member)
        if member.connection.is_paused:
            self.slow.add(member)
        else:
            self.quick[member] = descriptor_of(member.connection.transport)

    def remove(self, member: WebSocketSubscriber) -> None:
        self.slow.discard(member)
        self.quick.pop(member, None)

    def write(self, data: bytes) -> None:
        """Write to all quick members. One that becomes slow by it has still got all of the data."""
        size, write = len(data), os.write
        for member, descriptor in tuple(self.quick.items()):
            try:
                sent = write(descriptor, data)
            except OSError:
                sent = 0
            if sent != size:
                _write_rest(member.connection, data, sent)


def _write_rest(connection: WebSocketConnection, data: bytes, sent: int) -> None:
    try:
        connection.transport.write(memoryview(data)[sent:])
    except Exception:
        # Its transport has ended, and reports that soon; the others must still get the data.
        log.debug("a subscriber could not be written to", exc_info=True)


class WebSocketChannel(DeliveryChannel):
    """The live subscribers of every topic (a `DeliveryChannel`)."""

    def __init__(self, configuration: WebSocketConfig, statistics: Statistics) -> None:
        self._max_bytes = configuration.queue_bytes
        self._max_frames = configuration.queue_frames
        self._statistics = statistics
        self._audiences: dict[str, Audience] = {}
        # The fragments of each topic that were sent early, until their write has ended.
        self._early: dict[str, Sequence[Fragment]] = {}
        self._open: Counter[str] = Counter()

    def deliver_early(self, topic: str, fragments: Sequence[Fragment]) -> None:
        self._early[topic] = fragments
        self._send(topic, fragments)

    def write_failed(self, topic: str) -> None:
        self._early.pop(topic, None)

    def deliver(self, key: str, entries: Sequence[LogEntry]) -> None:
        early = self._early.pop(key, ())
        sent = {id(fragment) for fragment in early}
        self._send(key, [each.fragment for each in entries if id(each.fragment) not in sent])

    def _send(self, key: str, fragments: Sequence[Fragment]) -> None:
        audience = self._audiences.get(key)
        if audience is None or not fragments:
            return
        data = document_frames(fragments)
        count = len(fragments)
        # A subscriber that becomes slow by the write below has got the data already.
        slow = list(audience.slow)
        self.count(data, count, len(audience))
        audience.write(data)
        for subscriber in slow:
            self._queue(subscriber, data, count)

    def _queue(self, subscriber: WebSocketSubscriber, data: bytes, count: int) -> None:
        connection = subscriber.connection
        if subscriber.queue is None:
            subscriber.queue = SendQueue(self._max_bytes, self._max_frames)
        ahead = connection.transport.get_write_buffer_size()
        if not subscriber.queue.put(data, count, ahead=ahead):
            log.warning("a subscriber of %s does not keep up and is cut off", subscriber.topic)
            self._statistics.count(DeliveryTransport.WEBSOCKET, DeliveryOutcome.CUT_OFF)
            # The close follows the frame that is being sent; the queue is dropped with it.
            connection.close(TRY_AGAIN_LATER, "queue overflow", seconds=_CUT_OFF_SECONDS)

    def count(self, data: bytes, count: int, subscribers: int = 1) -> None:
        self._statistics.deliveries[_DELIVERED] += count * subscribers
        size = len(data) * subscribers
        self._statistics.delivered_bytes[DeliveryTransport.WEBSOCKET] += size

    def subscribers(self, topic: str) -> int:
        """Return the number of subscribers of a topic, including those that replay."""
        return self._open[topic]

    def queued(self) -> int:
        """Return the number of bytes in the queues of all subscribers."""
        slow = [each for audience in self._audiences.values() for each in audience.slow]
        return sum(each.queue.size for each in slow if each.queue is not None)

    def enter(self, subscriber: WebSocketSubscriber) -> None:
        """Count a subscriber, which receives nothing yet."""
        self._open[subscriber.topic] += 1

    def join(self, subscriber: WebSocketSubscriber) -> None:
        """Make a subscriber live, which has received the log up to its end."""
        if early := self._early.get(subscriber.key):
            data = document_frames(early)
            subscriber.connection.send(data)
            self.count(data, len(early))
        self._audiences.setdefault(subscriber.key, Audience()).put(subscriber)

    def leave(self, subscriber: WebSocketSubscriber) -> None:
        topic, key = subscriber.topic, subscriber.key
        if audience := self._audiences.get(key):
            audience.remove(subscriber)
            if not audience:
                del self._audiences[key]
        self._open[topic] -= 1
        if not self._open[topic]:
            del self._open[topic]

    def mark_slow(self, subscriber: WebSocketSubscriber) -> None:
        """Queue for a subscriber from now on, if it is live."""
        audience = self._audiences.get(subscriber.key)
        if audience is not None and subscriber in audience.quick:
            audience.put(subscriber)

    def mark_quick(self, subscriber: WebSocketSubscriber) -> None:
        """Write to a subscriber at once from now on, if it is live."""
        audience = self._audiences.get(subscriber.key)
        if audience is not None and subscriber in audience.slow:
            subscriber.queue = None
            audience.put(subscriber)
