"""How often each topic changes: a delivery channel that only counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from rsnotify.format.datetimes import Instant
from rsnotify_hub.log.store import LogEntry
from rsnotify_hub.log.topic_log import DeliveryChannel

#: The seconds that a rate is measured over.
WINDOW_SECONDS = 10


class TopicRates(DeliveryChannel):
    """Counts the fragments per second of topics that changed recently."""

    def __init__(self, clock: Callable[[], Instant]) -> None:
        self._clock = clock
        self._counts: dict[str, deque[list[int]]] = {}

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        second = self._second()
        self._forget(before=second - WINDOW_SECONDS)
        counts = self._counts.pop(topic, None) or deque(maxlen=WINDOW_SECONDS + 1)
        self._counts[topic] = counts  # the topic that changed last is the last
        if counts and counts[-1][0] == second:
            counts[-1][1] += len(entries)
        else:
            counts.append([second, len(entries)])

    def rate(self, topic: str) -> float:
        since = self._second() - WINDOW_SECONDS
        counts = self._counts.get(topic, ())
        return sum(count for second, count in counts if second > since) / WINDOW_SECONDS

    def __len__(self) -> int:
        return len(self._counts)

    def _forget(self, *, before: int) -> None:
        while self._counts:
            topic, counts = next(iter(self._counts.items()))
            if counts[-1][0] > before:
                return
            del self._counts[topic]

    def _second(self) -> int:
        return int(self._clock().timestamp())
