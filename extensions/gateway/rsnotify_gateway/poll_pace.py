"""The interval between two checks of an origin.

An origin is checked often while it changes, and rarely while it is quiet.
"""

from __future__ import annotations

from random import Random

from msgspec import Struct

from rsnotify.sync.retry import Retry

#: The factors by which the interval shrinks after a change and grows without one.
_FASTER, _SLOWER = 0.5, 1.5
#: The fraction by which an interval varies, so that origins are not all checked at once.
_JITTER = 0.1
_FIRST_RETRY_SECONDS = 5.0


class PollPace(Struct, frozen=True):
    """The limits of the interval between two checks, in seconds."""

    least: float = 60.0
    most: float = 3600.0

    def next_interval(self, interval: float, *, changed: bool) -> float:
        """Return the next interval: shorter if the last check found changes, otherwise longer."""
        return min(max(interval * (_FASTER if changed else _SLOWER), self.least), self.most)

    def with_jitter(self, interval: float, random: Random) -> float:
        return interval * (1 + _JITTER * (2 * random.random() - 1))

    def after_failure(self, failures: int, random: Random, retry_after: float | None) -> float:
        """Return how long to wait after a number of consecutive failures."""
        retry = Retry(min(_FIRST_RETRY_SECONDS, self.least), max(self.most, self.least))
        return retry.delay(failures, random, at_least=retry_after or 0.0)
