"""How often topics change, and after which time without a fragment a Source counts as silent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.hub_readings import MAX_SILENCE, source_of
from rsnotify_hub.delivery_channel import DeliveryChannel
from rsnotify_hub.store.interface import LogEntry

#: The period over which a rate is measured, in seconds.
WINDOW_SECONDS = 10

#: A Source counts as silent after this many times its longest pause before a heartbeat, but at
#: least after this time.
_SILENT_PAUSES, _MIN_SILENCE = 3, timedelta(seconds=30)

#: Maximum number of pauses to remember for each Source, and of Sources to remember.
_MAX_PAUSES, _MAX_SOURCES = 10, 10_000


class SilenceLimits:
    """Learns from each Source's heartbeats after which time the Source counts as silent.

    A Source sends a heartbeat whenever it has sent nothing for some interval, which the hub does
    not know. The longest pause before any of the last heartbeats is a good estimate.
    """

    def __init__(self) -> None:
        self._last: dict[str, Instant] = {}
        self._pauses: dict[str, deque[timedelta]] = {}

    def received(self, topic: str, entries: Sequence[LogEntry], now: Instant) -> None:
        source = source_of(topic)
        last = self._last.pop(source, None)
        if last is not None and entries[0].fragment.heartbeat:
            self._pauses.setdefault(source, deque(maxlen=_MAX_PAUSES)).append(now - last)
        self._last[source] = now  # moves the Source to the end of the order
        if len(self._last) > _MAX_SOURCES:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._pauses.pop(oldest, None)

    def limit(self, source: str) -> timedelta:
        """Return the time without a fragment after which the Source counts as silent."""
        pauses = self._pauses.get(source)
        if pauses is None:
            return MAX_SILENCE
        return min(MAX_SILENCE, max(_MIN_SILENCE, _SILENT_PAUSES * max(pauses)))


class TopicRates(DeliveryChannel):
    """Counts the fragments per second of recently changed topics, and updates `silence_limits`."""

    def __init__(self, clock: Callable[[], Instant]) -> None:
        self._clock = clock
        self._counts: dict[str, deque[list[int]]] = {}
        self.silence_limits = SilenceLimits()

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        now = self._clock()
        self.silence_limits.received(topic, entries, now)
        second = int(now.timestamp())
        self._forget(before=second - WINDOW_SECONDS)
        counts = self._counts.pop(topic, None) or deque(maxlen=WINDOW_SECONDS + 1)
        self._counts[topic] = counts  # moves the topic to the end of the order
        if counts and counts[-1][0] == second:
            counts[-1][1] += len(entries)
        else:
            counts.append([second, len(entries)])

    def rate(self, topic: str) -> float:
        now = int(self._clock().timestamp())
        counts = self._counts.get(topic, ())
        # After the clock was set back, some of the seconds are later than now.
        recent = (count for second, count in counts if now - WINDOW_SECONDS < second <= now)
        return sum(recent) / WINDOW_SECONDS

    def __len__(self) -> int:
        return len(self._counts)

    def _forget(self, *, before: int) -> None:
        while self._counts:
            topic, counts = next(iter(self._counts.items()))
            if before < counts[-1][0] <= before + WINDOW_SECONDS:
                return
            del self._counts[topic]
