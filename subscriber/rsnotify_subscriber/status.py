"""The status of a Destination, and the counters behind it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from math import ceil
from statistics import median
from time import monotonic

from msgspec import Struct

from rsnotify.errors import counted
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.counters import Durations, Histogram
from rsnotify.sync.actions import DocumentKind
from rsnotify.sync.doubts import DoubtKind

#: Seconds for which the lag of an applied change counts.
_LAG_WINDOW = 1.0


class PushState(StrEnum):
    """The state of push: not offered, not connected, or delivering changes."""

    OFF = "off"
    DOWN = "down"
    UP = "up"


class ActivityKind(StrEnum):
    """The kinds of work that may take long. The values can be shown to users."""

    FINDING = "looking for the Source"
    READING = "reading"
    DOWNLOADING = "downloading a package"
    COPYING = "copying"
    COMPARING = "comparing"
    CATCHING_UP = "catching up"
    VERIFYING = "verifying"
    REPAIRING = "repairing"


class SyncActivity(Struct):
    """Work that may take long, and how much of it is done.

    Args:
        kind: The kind of work.
        document: The kind of document being read, such as "Resource List".
        done: The number of resources or files done so far, or of bytes for a download.
        total: The total number of these, or None while unknown.
        is_estimate: Whether `total` is extrapolated from the lists read so far.
        bytes: The number of bytes received or read since this work began.
    """

    kind: ActivityKind
    document: str = ""
    done: int = 0
    total: int | None = None
    is_estimate: bool = False
    bytes: int = 0


class Status(Struct, frozen=True):
    """The status of a subscriber at one moment. Sentences are for users.

    Args:
        resources: The number of resources in the copy.
        applied: The number of changes applied since the start, including those of a baseline.
        copied: The number of these that were resources copied by a baseline.
        pending: The number of resources with changes that are known but not yet applied.
        through: T, the instant up to which every change is applied. None before the first baseline.
        lag_ms: The median age of the changes applied within the last second, in milliseconds. None
            if there were none, or if the copy was catching up.
        lag_p99_ms: The 99th percentile of these ages.
        push: Whether changes arrive by push.
        way: The URIs of the hubs from which changes arrive now, best first.
        level: Whether the copy agrees with the Source's documents.
        doubts: Why the copy may not agree, in sentences. Empty while `level` is true.
        doubt_kinds: The kind of each doubt, for programs.
        behind_since: When the copy stopped being level, ignoring changes that are applied within a
            second. None while it is level.
        limits: Changes that the Source's lists cannot show, in sentences. The copy may miss such a
            change for a while even if `level` is true.
        unconfirmed: The number of resources with unconfirmed changes: no list contains them yet.
        compared: When the copy was last compared with the whole set, by the local clock, or None.
        baseline: Whether a baseline synchronization is in progress.
        in_step: Whether the copy matched the count and digest of the Source's whole set at the last
            comparison (docs/audit.md). None before that, or if they cannot be compared.
        difference: How the copy differed, or why it cannot be compared, as a sentence, or None.
        damaged: The number of resources whose files were found changed or missing since the start.
            They are refetched.
        verified: The number of files read so far by `FollowOptions.verify`, or None when it is not
            running.
        foreign: The number of files in the folder that are not part of the copy, at the last check
            of the folder. `level` ignores them.
        foreign_files: The paths of the first ten of these files.
        error: The last failure that still has an effect, as a sentence, or None.
        received: The number of bytes of documents and content received since the start.
        activity: Current work that may take long, or None.
        source: The URI of the followed Capability List, or of the followed document if there is no
            Capability List. None while it is unknown.
    """

    resources: int = 0
    applied: int = 0
    copied: int = 0
    pending: int = 0
    through: Instant | None = None
    lag_ms: float | None = None
    lag_p99_ms: float | None = None
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
    doubt_kinds: tuple[DoubtKind, ...] = ()
    behind_since: datetime | None = None
    received: int = 0
    activity: SyncActivity | None = None
    source: str | None = None


def foreign_files(count: int, paths: Sequence[str]) -> str:
    """Return a sentence that names files outside the copy: `paths`, out of `count`."""
    more = f" and {count - len(paths)} more" if count > len(paths) else ""
    are = counted(count, "file here is", "files here are")
    return f"{are} not part of the copy: {', '.join(paths)}{more}"


class FollowCounters:
    """Counters for the metrics of a subscriber, or of a whole fleet.

    Attributes:
        lags: The ages of changes when they were applied, in seconds.
        events: The number of events by their type.
        pulls: The number of pulls by the kind of their first document.
        push_losses: The number of connections to hubs that were lost or failed.
        commits: The number and total duration of the state's transactions.
        flushes: The number and total duration of flushes of mirrors.
    """

    def __init__(self) -> None:
        self.lags = Histogram()
        self.copied = 0
        self.events: Counter[type[Struct]] = Counter()
        self.pulls: Counter[DocumentKind] = Counter()
        self.push_losses = 0
        self.fragments = 0
        self.fragment_bytes = 0
        self.commits = Durations()
        self.flushes = Durations()


class StatusCounters:
    """Counts applied changes, and measures their lag."""

    def __init__(self, counters: FollowCounters) -> None:
        self._counters = counters
        self.applied = 0
        self.copied = 0
        self._lags: deque[tuple[float, float]] = deque()

    def count(self, changes: Iterable[Change], *, is_current: bool) -> None:
        """Count changes. Measure their lag if the copy `is_current` rather than catching up."""
        now, at = datetime.now(UTC), monotonic()
        for change in changes:
            self.applied += 1
            if change.resource.change is None:  # an entry of a baseline, which has no lag
                self.copied += 1
                self._counters.copied += 1
            else:
                lag = (now - change.at).total_seconds()
                if is_current:
                    self._lags.append((at, 1000 * lag))
                self._counters.lags.add(max(0.0, lag))
        self._drop_old(at)

    def lag_ms(self) -> float | None:
        """Return the median lag of the last second, in milliseconds."""
        self._drop_old(monotonic())
        return round(median(lag for _, lag in self._lags), 3) if self._lags else None

    def lag_p99_ms(self) -> float | None:
        self._drop_old(monotonic())
        ordered = sorted(lag for _, lag in self._lags)
        return round(ordered[ceil(0.99 * len(ordered)) - 1], 3) if ordered else None

    def _drop_old(self, now: float) -> None:
        while self._lags and now - self._lags[0][0] > _LAG_WINDOW:
            self._lags.popleft()
