"""Backoff with jitter after failures, and the order in which to try alternative services."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from random import Random
from typing import Generic, TypeVar

from msgspec import Struct

from rsnotify.format.datetimes import Instant, parse_http_date

#: Maximum `Retry-After` that clients respect, in seconds.
LONGEST_RETRY_AFTER = 3600.0


class Retry(Struct, frozen=True):
    """Exponential backoff with jitter. Times are in seconds.

    Args:
        first: Maximum wait after the first failure. It doubles with each consecutive failure.
        most: Maximum wait after any number of failures.
    """

    first: float = 0.2
    most: float = 60.0

    def delay(self, failures: int, random: Random, *, at_least: float = 0.0) -> float:
        """Return how long to wait after this many consecutive failures (at least 1).

        The wait is random, between half of the current step and the whole step, so that clients
        that failed together do not retry together. `at_least` is the wait that the server
        requested. It is respected up to an hour.
        """
        step = min(self.most, self.first * 2.0 ** min(failures - 1, 64))
        return max(min(at_least, LONGEST_RETRY_AFTER), step * (0.5 + random.random() / 2))


def parse_retry_after(value: str, now: Instant) -> float | None:
    """Return the number of seconds in a `Retry-After` header; None if it is malformed.

    RFC 9110 §10.2.3 allows a number of seconds or a date.
    """
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:6])
    moment = parse_http_date(value)
    return None if moment is None else max(0.0, (moment - now).total_seconds())


#: Maximum number of failed alternatives to remember.
_MAX_FAILED = 1_000

T = TypeVar("T", bound=Hashable)


class Alternatives(Generic[T]):
    """Remembers which alternatives failed, and when each failed last."""

    def __init__(self) -> None:
        self._failed: dict[T, None] = {}  # the least recently failed first

    def failed(self, alternative: T) -> None:
        """Record a failure, so that the alternative is tried after all others."""
        self._failed.pop(alternative, None)
        self._failed[alternative] = None
        if len(self._failed) > _MAX_FAILED:
            del self._failed[next(iter(self._failed))]

    def order(self, alternatives: Iterable[T]) -> list[T]:
        """Return the alternatives that have not failed, in the given order, then the failed ones.

        The failed ones are sorted by their last failure, least recent first.
        """
        rank = {alternative: number for number, alternative in enumerate(self._failed)}
        return sorted(alternatives, key=lambda one: rank.get(one, -1))
