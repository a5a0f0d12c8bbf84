"""Counters for `/metrics` that are updated with each event: durations, and a histogram of lags.

All other metrics are computed on request. Counting must take only a fraction of a microsecond, so
this module does not use a metrics library.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable

#: Upper bounds of the buckets for lags, in seconds, from a local push to a day's outage.
LAG_BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0, 3600.0, 86_400.0)


class Histogram:
    """Counts values by size. Not thread-safe.

    `bounds` are the upper bounds of all buckets except the last, in ascending order.
    """

    def __init__(self, bounds: tuple[float, ...] = LAG_BOUNDS, values: Iterable[float] = ()):
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def __add__(self, other: Histogram) -> Histogram:
        both = Histogram(self.bounds)
        both._counts = [one + two for one, two in zip(self._counts, other._counts, strict=True)]
        both.sum = self.sum + other.sum
        return both

    def buckets(self) -> list[tuple[str, float]]:
        """Return each upper bound with the number of values that do not exceed it."""
        total, found = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class Durations:
    """Counts executions of an operation, and their total duration. Thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self._lock = threading.Lock()

    def __add__(self, other: Durations) -> Durations:
        both = Durations()
        both.count, both.seconds = self.count + other.count, self.seconds + other.seconds
        return both

    def add(self, seconds: float) -> None:
        with self._lock:
            self.count += 1
            self.seconds += seconds
