"""The Destinations' side of `GET /ws`: who is live on which topic, and what each still gets.

Theory of operation. A subscriber first *replays* (`replay.py`), then goes *live* in the turn of
the event loop in which its place is the end of the log, so that nothing lies between. Live, all
subscribers of a topic share the bytes of one frame, or of all frames of one commit. Most are
*quick*: all that was sent to them is on its way, and what is new is written at once
(`audience.py`). One that could not take all is *slow* until it has, and what is new waits in a
queue of its own, of shared bytes. A subscriber whose queue grows too long is cut off. So a slow
one costs the others nothing, and a quick one costs a write.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence

from rsnotify_hub.config.configuration import WebSocketConfig
from rsnotify_hub.log.store import LogEntry
from rsnotify_hub.statistics import Outcome, Statistics, Way
from rsnotify_hub.websocket.audience import Audience
from rsnotify_hub.websocket.connection import Connection
from rsnotify_hub.websocket.frames import TRY_AGAIN_LATER, document_frames

log = logging.getLogger("rsnotify.hub.websocket")

_DELIVERED = (Way.WEBSOCKET, Outcome.DELIVERED)
_CUT_OFF = (Way.WEBSOCKET, Outcome.CUT_OFF)

#: How long one that was cut off has to read what its transport holds, in seconds.
_LAST_CHANCE_SECONDS = 10.0


class Subscriber:
    """One connection that listens to a topic (a `Listener`).

    Args:
        connection: The connection.
        topic: The topic.
        channel: All subscribers.
        refuse: Called when it sends more than its first frame.
        key: What it gets, among all that is delivered; the topic itself where that is all of it.
    """

    __slots__ = ("_channel", "_refuse", "connection", "key", "queue", "replaying", "topic")

    def __init__(
        self,
        connection: Connection,
        topic: str,
        channel: WebSocketChannel,
        refuse: Callable[[Connection], None],
        key: str | None = None,
    ) -> None:
        self.connection = connection
        self.topic = topic
        self.key = key or topic
        self.queue: Queue | None = None
        self.replaying: Callable[[], object] | None = None
        self._channel = channel
        self._refuse = refuse

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """Refuse what is more than the first frame."""
        self._refuse(self.connection)

    def paused(self) -> None:
        """Become slow."""
        self._channel.slow_down(self)

    def resumed(self) -> None:
        """Send what waits, and become quick when that was all."""
        if self.queue is None or self.queue.send(self.connection):
            self._channel.speed_up(self)

    def lost(self) -> None:
        """Leave."""
        if self.replaying is not None:
            self.replaying()
        self._channel.leave(self)


class Queue:
    """What waits for a slow subscriber.

    Args:
        max_bytes: How much may, with what its transport holds.
        max_frames: How many frames may.
    """

    __slots__ = ("_max_bytes", "_max_frames", "_waiting", "frames", "size")

    def __init__(self, max_bytes: int, max_frames: int) -> None:
        self._max_bytes = max_bytes
        self._max_frames = max_frames
        self._waiting: deque[tuple[bytes, int]] = deque()
        self.size = 0
        self.frames = 0

    def put(self, data: bytes, count: int, *, ahead: int) -> bool:
        """Add frames.

        Args:
            data: The frames.
            count: How many they are.
            ahead: The bytes that its transport holds.

        Returns:
            False if that would be too much, so that they were not added.
        """
        if ahead + self.size + len(data) > self._max_bytes:
            return False
        if self.frames + count > self._max_frames:
            return False
        self._waiting.append((data, count))
        self.size += len(data)
        self.frames += count
        return True

    def send(self, connection: Connection) -> bool:
        """Send as much as the transport takes; tell whether that was all."""
        while self._waiting and not connection.is_paused:
            data, count = self._waiting.popleft()
            self.size -= len(data)
            self.frames -= count
            connection.send(data)
        return not connection.is_paused


class WebSocketChannel:
    """The live subscribers of every topic (a `Channel`).

    Args:
        configuration: How much may wait for one subscriber.
        statistics: Where deliveries are counted.
    """

    def __init__(self, configuration: WebSocketConfig, statistics: Statistics) -> None:
        self._max_bytes = configuration.queue_bytes
        self._max_frames = configuration.queue_frames
        self._statistics = statistics
        self._audiences: dict[str, Audience[Subscriber]] = {}
        self._open: Counter[str] = Counter()

    def deliver(self, key: str, entries: Sequence[LogEntry]) -> None:
        """Send to everybody who is live (`Channel.deliver`), on a topic or a part of it."""
        audience = self._audiences.get(key)
        if audience is None:
            return
        data = document_frames(entry.fragment for entry in entries)
        count = len(entries)
        # Who becomes slow by this write has got it.
        slow = list(audience.slow)
        self.count(data, count, len(audience))
        audience.write(data)
        for subscriber in slow:
            self._queue(subscriber, data, count)

    def _queue(self, subscriber: Subscriber, data: bytes, count: int) -> None:
        connection = subscriber.connection
        if subscriber.queue is None:
            subscriber.queue = Queue(self._max_bytes, self._max_frames)
        ahead = connection.transport.get_write_buffer_size()
        if not subscriber.queue.put(data, count, ahead=ahead):
            log.warning("a subscriber of %s does not keep up and is cut off", subscriber.topic)
            self._statistics.deliveries[_CUT_OFF] += 1
            # The close comes after the frame under way; its queue is dropped with it.
            connection.close(TRY_AGAIN_LATER, "queue overflow", seconds=_LAST_CHANCE_SECONDS)

    def count(self, data: bytes, count: int, subscribers: int = 1) -> None:
        """Count what is sent to some subscribers."""
        self._statistics.deliveries[_DELIVERED] += count * subscribers
        self._statistics.delivered_bytes[Way.WEBSOCKET] += len(data) * subscribers

    def subscribers(self, topic: str) -> int:
        """Count the subscribers of a topic, those that replay among them."""
        return self._open[topic]

    def queued(self) -> int:
        """Return the bytes that wait in the queues of all subscribers."""
        slow = [each for audience in self._audiences.values() for each in audience.slow]
        return sum(each.queue.size for each in slow if each.queue is not None)

    def enter(self, subscriber: Subscriber) -> None:
        """Take note of a subscriber, which gets nothing yet."""
        self._open[subscriber.topic] += 1

    def join(self, subscriber: Subscriber) -> None:
        """Make a subscriber live."""
        self._audiences.setdefault(subscriber.key, Audience()).put(subscriber)

    def leave(self, subscriber: Subscriber) -> None:
        """Forget a subscriber."""
        topic, key = subscriber.topic, subscriber.key
        if audience := self._audiences.get(key):
            audience.remove(subscriber)
            if not audience:
                del self._audiences[key]
        self._open[topic] -= 1
        if not self._open[topic]:
            del self._open[topic]

    def slow_down(self, subscriber: Subscriber) -> None:
        """Take note that a subscriber, if it is live, is slow."""
        audience = self._audiences.get(subscriber.key)
        if audience is not None and subscriber in audience.quick:
            audience.put(subscriber)

    def speed_up(self, subscriber: Subscriber) -> None:
        """Take note that a subscriber, if it is live, is quick again."""
        audience = self._audiences.get(subscriber.key)
        if audience is not None and subscriber in audience.slow:
            subscriber.queue = None
            audience.put(subscriber)
