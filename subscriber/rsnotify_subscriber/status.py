"""How a Destination is doing, in numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from statistics import median

from msgspec import Struct

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant

_WINDOW = timedelta(seconds=1)


class PushState(StrEnum):
    """Whether changes arrive by push: there is none, it is away, or it works."""

    OFF = "off"
    DOWN = "down"
    UP = "up"


class Status(Struct, frozen=True):
    """A moment in the life of a subscriber.

    Args:
        resources: How many are held.
        applied: Changes applied since the start, and resources that a baseline copied.
        copied: Of those, the resources that a baseline copied.
        pending: Resources with changes that are known and not yet applied.
        through: T: every change up to here is applied; None before the first baseline.
        lag_ms: The median age at which changes were applied within the last second, in
            milliseconds; None if there were none.
        push: Whether changes arrive by push.
        way: The hubs from which they arrive now, the best first; the scheme of each URI says how.
        level: Whether the copy is what the Source's documents say, as far as they can tell.
        doubts: Why it may not be, in sentences; empty while `level` is true.
        unconfirmed: Resources changed by push that no list of the Source has repeated yet.
        compared: When the copy was last compared with the whole set, by the clock here; None if
            it never was.
        baseline: Whether a baseline is under way.
        in_step: Whether what is held was what the Source said of its whole set, when that was last
            compared (docs/audit.md); None if it was not.
        difference: In a sentence, what differed, or why it cannot be compared; None if there is
            nothing to tell.
        error: In a sentence, what failed the last time and has not worked since; None if all is
            well.
    """

    resources: int = 0
    applied: int = 0
    copied: int = 0
    pending: int = 0
    through: Instant | None = None
    lag_ms: float | None = None
    push: PushState = PushState.OFF
    way: tuple[str, ...] = ()
    level: bool = False
    doubts: tuple[str, ...] = ()
    unconfirmed: int = 0
    compared: Instant | None = None
    baseline: bool = False
    in_step: bool | None = None
    difference: str | None = None
    error: str | None = None


class StatusCounters:
    """Counts what is applied, and how old it was."""

    def __init__(self) -> None:
        self.applied = 0
        self.copied = 0
        self._lags: deque[tuple[datetime, float]] = deque()

    def note(self, changes: Iterable[Change]) -> None:
        """Count changes that are durable."""
        now = datetime.now(UTC)
        for change in changes:
            self.applied += 1
            if change.resource.change is None:  # it is of a baseline, and has no age
                self.copied += 1
            else:
                self._lags.append((now, (now - change.at) / timedelta(milliseconds=1)))
        self._forget(now)

    def lag_ms(self) -> float | None:
        """Return the median lag of the last second, in milliseconds."""
        self._forget(datetime.now(UTC))
        return round(median(lag for _, lag in self._lags), 3) if self._lags else None

    def _forget(self, now: datetime) -> None:
        while self._lags and now - self._lags[0][0] > _WINDOW:
            self._lags.popleft()
