"""How fast each topic changes: a channel that only counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from rsnotify.format.datetimes import Instant
from rsnotify_hub.log.store import LogEntry

#: The seconds that a rate is taken over.
WINDOW_SECONDS = 10


class TopicRates:
    """Counts what becomes durable, second by second, of topics that changed of late.

    Args:
        clock: Tells the current instant.
    """

    def __init__(self, clock: Callable[[], Instant]) -> None:
        self._clock = clock
        self._counts: dict[str, deque[list[int]]] = {}

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        """Count what was appended (`Channel.deliver`)."""
        second = self._second()
        self._forget(before=second - WINDOW_SECONDS)
        counts = self._counts.pop(topic, None) or deque(maxlen=WINDOW_SECONDS + 1)
        self._counts[topic] = counts  # what changed last stands last
        if counts and counts[-1][0] == second:
            counts[-1][1] += len(entries)
        else:
            counts.append([second, len(entries)])

    def subscribers(self, topic: str) -> int:
        """Return 0: nobody listens here (`Channel.subscribers`)."""
        return 0

    def rate(self, topic: str) -> float:
        """Return fragments a second of a topic over the last ten seconds."""
        since = self._second() - WINDOW_SECONDS
        counts = self._counts.get(topic, ())
        return sum(count for second, count in counts if second > since) / WINDOW_SECONDS

    def __len__(self) -> int:
        """Count the topics that are kept in mind."""
        return len(self._counts)

    def _forget(self, *, before: int) -> None:
        """Forget topics that have become quiet."""
        while self._counts:
            topic, counts = next(iter(self._counts.items()))
            if counts[-1][0] > before:
                return
            del self._counts[topic]

    def _second(self) -> int:
        return int(self._clock().timestamp())
