"""The status of a Destination, in numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from statistics import median

from msgspec import Struct

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.plural import counted

_WINDOW = timedelta(seconds=1)


class PushState(StrEnum):
    """Whether changes arrive by push: none is offered, none is connected, or one is."""

    OFF = "off"
    DOWN = "down"
    UP = "up"


class Status(Struct, frozen=True):
    """The status of a subscriber at one moment.

    Args:
        resources: How many resources the copy has.
        applied: Changes applied since the start, and resources that a baseline copied.
        copied: Of those, the resources that a baseline copied.
        pending: Resources with changes that are known and not yet applied.
        through: T: every change up to here is applied; None before the first baseline.
        lag_ms: The median age at which changes were applied within the last second, in
            milliseconds; None if there were none.
        push: Whether changes arrive by push.
        way: The hubs from which they arrive now, the best first; the scheme of each URI is that
            of the transport.
        level: Whether the copy agrees with the Source's documents, as far as they say.
        doubts: Why it may not, in sentences; empty while `level` is true.
        limits: What the Source's lists do not show, in sentences: such a change stays unseen for a
            while, also if `level` is true.
        unconfirmed: Resources changed by push that no list of the Source has repeated yet.
        compared: When the copy was last compared with the whole set, by the local clock; None if
            it never was.
        baseline: Whether a baseline synchronization is under way.
        in_step: Whether the copy agreed with the count and digest of the Source's whole set when
            they were last compared (docs/audit.md); None if they were not.
        difference: How it differed, or why it cannot be compared, in a sentence; None if neither.
        damaged: Resources whose files were found changed or removed in the copy since the start;
            they are fetched again.
        verified: How many files were read so far while all are (`FollowOptions.verify`); otherwise
            None.
        foreign: How many files in the folder of the copy are not part of it, as found when its
            files were last compared with the state. `level` says nothing of these.
        foreign_files: The paths of the first ten of them.
        error: The last failure that has not been made good since, in a sentence; None if there is
            none.
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
    limits: tuple[str, ...] = ()
    unconfirmed: int = 0
    compared: Instant | None = None
    baseline: bool = False
    in_step: bool | None = None
    difference: str | None = None
    damaged: int = 0
    verified: int | None = None
    foreign: int = 0
    foreign_files: tuple[str, ...] = ()
    error: str | None = None


def foreign_files(count: int, paths: Sequence[str]) -> str:
    """Return in a sentence which files, `paths` and others, are not part of a copy."""
    more = f" and {count - len(paths)} more" if count > len(paths) else ""
    are = counted(count, "file here is", "files here are")
    return f"{are} not part of the copy: {', '.join(paths)}{more}"


class StatusCounters:
    """Counts applied changes, and measures their age."""

    def __init__(self) -> None:
        self.applied = 0
        self.copied = 0
        self._lags: deque[tuple[datetime, float]] = deque()

    def count(self, changes: Iterable[Change]) -> None:
        now = datetime.now(UTC)
        for change in changes:
            self.applied += 1
            if change.resource.change is None:  # an entry of a baseline, which has no age
                self.copied += 1
            else:
                self._lags.append((now, (now - change.at) / timedelta(milliseconds=1)))
        self._drop_old(now)

    def lag_ms(self) -> float | None:
        """Return the median lag of the last second, in milliseconds."""
        self._drop_old(datetime.now(UTC))
        return round(median(lag for _, lag in self._lags), 3) if self._lags else None

    def _drop_old(self, now: datetime) -> None:
        while self._lags and now - self._lags[0][0] > _WINDOW:
            self._lags.popleft()
