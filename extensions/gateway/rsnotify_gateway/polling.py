"""When an origin is checked next: often while it changes, and rarely while it is quiet."""

from __future__ import annotations

from random import Random

from msgspec import Struct

from rsnotify.sync.retry import Retry

#: The factors by which the interval shrinks after a change and grows without one.
_FASTER, _SLOWER = 0.5, 1.5
#: The part of an interval by which it varies, so that origins are not all checked at once.
_JITTER = 0.1
_FIRST_RETRY = 5.0


class PollPace(Struct, frozen=True):
    """The limits of the interval between two checks, in seconds."""

    least: float = 60.0
    most: float = 3600.0

    def next(self, interval: float, *, changed: bool) -> float:
        """Return the interval that follows one after which a check found changes or none."""
        return min(max(interval * (_FASTER if changed else _SLOWER), self.least), self.most)

    def varied(self, interval: float, random: Random) -> float:
        return interval * (1 + _JITTER * (2 * random.random() - 1))

    def after_failure(self, failures: int, random: Random, retry_after: float | None) -> float:
        """Return how long to wait after some failures in a row."""
        retry = Retry(min(_FIRST_RETRY, self.least), max(self.most, self.least))
        return retry.delay(failures, random, at_least=retry_after or 0.0)
