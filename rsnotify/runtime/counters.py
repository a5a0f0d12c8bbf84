"""Figures that are counted where things happen, for `/metrics`: durations, and a histogram of lags.

All else is read from the state when it is requested. Counting takes a fraction of a microsecond, so
this module must not import a library for metrics.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable

#: The upper bounds of the buckets of a lag, in seconds: from a local push to a missed day.
LAG_BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0, 3600.0, 86_400.0)


class Histogram:
    """Counts values by size; for one thread, or many values of one moment.

    Args:
        bounds: The upper bound of each bucket but the last, ascending.
        values: The first values.
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
        """Return the upper bound of each bucket, and how many values do not exceed it."""
        total, found = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class Durations:
    """Counts how often something was done, in any thread, and how long it took together."""

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
