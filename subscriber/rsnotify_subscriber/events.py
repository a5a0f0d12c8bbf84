"""The status of a Destination, and the events that an application can observe.

`Subscriber(…, on_event=…)` is called with events, on the event loop, in the order in which they
happened. An applied change is not an event: handlers and `on_committed` receive changes.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from math import ceil
from statistics import median
from time import monotonic

from msgspec import Struct, field

from rsnotify.errors import counted
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.format.offer import Offer
from rsnotify.runtime.counters import Durations, Histogram
from rsnotify.sync.actions import DocumentKind
from rsnotify.sync.doubts import CATCHING_UP, DoubtKind
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.terms import Via

#: The seconds over which lags are measured.
_WINDOW = 1.0


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
        document: The kind of document that is read, such as "Resource List".
        done: The number of resources or files done so far, or of bytes for a download.
        total: The total number of these, as far as known, or None if unknown.
        is_estimate: Whether `total` is extrapolated from the lists read so far.
        bytes: The number of bytes received or read since the start.
    """

    kind: ActivityKind
    document: str = ""
    done: int = 0
    total: int | None = None
    is_estimate: bool = False
    bytes: int = 0


class Status(Struct, frozen=True):
    """The status of a subscriber at one moment.

    Args:
        resources: The number of resources in the copy.
        applied: The number of changes applied since the start, including those of a baseline.
        copied: The number of these that were resources copied by a baseline.
        pending: The number of resources with changes that are known but not yet applied.
        through: T, the instant up to which every change is applied. None before the first baseline.
        lag_ms: The median age of the changes applied within the last second, in milliseconds. None
            if there were none, or if the copy had to catch up, because the ages then only
            show how long it was behind.
        lag_p99_ms: The 99th percentile of these ages.
        push: Whether changes arrive by push.
        way: The hubs from which changes arrive now, best first. Their schemes name the transports.
        level: Whether the copy agrees with the Source's documents, as far as they show.
        doubts: Reasons why the copy may not agree, in sentences. Empty while `level` is true.
        doubt_kinds: The kind of each doubt, for programs.
        behind_since: When the copy stopped being level, ignoring changes that are applied within a
            second. None while it is level.
        limits: Changes that the Source's lists do not show, in sentences. Such a change stays
            unnoticed for a while even if `level` is true.
        unconfirmed: The number of resources with pushed changes that no list has repeated yet.
        compared: When the copy was last compared with the whole set, by the local clock, if ever.
        baseline: Whether a baseline synchronization is in progress.
        in_step: Whether the copy agreed with the count and digest of the Source's whole set when
            they were last compared (docs/audit.md). None if they were not.
        difference: A sentence saying how the copy differed, or why it cannot be compared, or None.
        damaged: The number of resources whose files in the copy were found changed or removed since
            the start. They are refetched.
        verified: The number of files read so far while all files are being read
            (`FollowOptions.verify`), and None otherwise.
        foreign: The number of files in the folder of the copy that are not part of it, as of the
            last comparison of its files with the state. `level` does not cover these files.
        foreign_files: The paths of the first ten of these files.
        error: The last failure that still has an effect, in a sentence. None if there is none.
        received: The number of bytes of documents and content received since the start.
        activity: Current work that may take long, if any, and how much of it is done.
        source: The Capability List of the set that is followed, or the document if there is no
            such list. None while it is unknown.
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
    """Return a sentence saying which files, `paths` and others, are not part of a copy."""
    more = f" and {count - len(paths)} more" if count > len(paths) else ""
    are = counted(count, "file here is", "files here are")
    return f"{are} not part of the copy: {', '.join(paths)}{more}"


class FollowCounters:
    """Counters since the start, for the metrics of one subscriber or of all in a fleet.

    Attributes:
        lags: The ages at which changes were applied, in seconds.
        pulls: The number of pulls by the kind of their first document.
        push_losses: The number of connections to hubs that were lost or could not be made.
        commits: The number and total duration of the state's transactions.
        flushes: The number and total duration of flushes of the files of mirrors.
    """

    def __init__(self) -> None:
        self.lags = Histogram()
        self.copied = 0
        self.events: Counter[type[Event]] = Counter()
        self.pulls: Counter[DocumentKind] = Counter()
        self.push_losses = 0
        self.fragments = 0
        self.fragment_bytes = 0
        self.commits = Durations()
        self.flushes = Durations()


class StatusCounters:
    """Counts applied changes, and measures their age."""

    def __init__(self, counters: FollowCounters) -> None:
        self._counters = counters
        self.applied = 0
        self.copied = 0
        self._lags: deque[tuple[float, float]] = deque()

    def count(self, changes: Iterable[Change], *, is_current: bool) -> None:
        """Count changes. Their ages count as lags if the copy `is_current`, not catching up."""
        now, at = datetime.now(UTC), monotonic()
        for change in changes:
            self.applied += 1
            if change.resource.change is None:  # an entry of a baseline, which has no age
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
        while self._lags and now - self._lags[0][0] > _WINDOW:
            self._lags.popleft()


logger = logging.getLogger("rsnotify.subscriber")

#: Seconds for which changes may be pending before the copy counts as behind.
LATE = 1.0


class PushUp(Struct, frozen=True, tag=True):
    """Changes of a topic arrive from a hub."""

    transport: Via = field(name="way")
    hub: str
    topic: str


class PushDown(Struct, frozen=True, tag=True):
    """Changes of a topic no longer arrive from a hub, or it could not be reached.

    Args:
        reason: The reason, or an empty string if the connection is no longer needed or offered.
        left: The number of other connections over which changes of the topic still arrive.
    """

    transport: Via = field(name="way")
    hub: str
    topic: str
    reason: str
    left: int


class GapSeen(Struct, frozen=True, tag=True):
    """Changes may be missing between T and the first pushed change, so the lists are read."""


class Pulling(Struct, frozen=True, tag=True):
    """The Source's documents are being read, beginning with the first of this kind."""

    kind: DocumentKind = field(name="rung")
    uri: str


class BaselineBegun(Struct, frozen=True, tag=True):
    """The comparison of the whole set with the copy has begun."""


class BaselineComplete(Struct, frozen=True, tag=True):
    """All differences are known. Some may still have to be applied."""


class LevelReached(Struct, frozen=True, tag="Level"):
    """No change up to T is known to be missing."""

    through: Instant | None


class Behind(Struct, frozen=True, tag=True):
    """Changes have been missing, or the copy may have been wrong, for about a second.

    Args:
        pending: The number of resources with changes that are known but not yet applied.
        doubts: Reasons why the copy may differ from the Source's documents.
    """

    pending: int
    doubts: tuple[str, ...] = ()


class Audited(Struct, frozen=True, tag=True):
    """The copy was compared with the count and digest of the whole set (docs/audit.md).

    Args:
        in_step: Whether they agree, or None if they cannot be compared.
        reason: The difference, or why they cannot be compared, in a sentence. Empty if they agree.
    """

    in_step: bool | None
    reason: str = ""


class OfferChanged(Struct, frozen=True, tag=True):
    """The Source offers other documents or hubs than before."""

    before: Offer
    now: Offer


Event = (
    PushUp
    | PushDown
    | GapSeen
    | Pulling
    | BaselineBegun
    | BaselineComplete
    | LevelReached
    | Behind
    | Audited
    | OfferChanged
)


class Announcer:
    """Counts events, and calls the application's `on_event`, if any. Logs exceptions from it.

    Attributes:
        counters: The counters of the subscriber.
        behind_since: See `Status`.
    """

    def __init__(
        self, on_event: Callable[[Event], None] | None, counters: FollowCounters | None = None
    ) -> None:
        self._on_event = on_event
        self.counters = counters or FollowCounters()
        self.behind_since: datetime | None = datetime.now(UTC)

    def set_behind(self) -> None:
        """Record that the copy is not level, ignoring changes that are applied as they arrive."""
        now = datetime.now(UTC)  # which may be earlier than before, if the clock was set back
        self.behind_since = min(self.behind_since or now, now)

    def __call__(self, event: Event) -> None:
        self.counters.events[type(event)] += 1
        if isinstance(event, Pulling):
            self.counters.pulls[event.kind] += 1
        elif isinstance(event, PushDown) and event.reason:
            self.counters.push_losses += 1
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            # The function belongs to the application. Whatever it raises, following continues.
            logger.exception("on_event failed at %s", type(event).__name__)


class EventWatch:
    """Announces the events that follow from a change of the follower's state.

    Changes applied within `LATE` cause no event, because the copy does not count as behind.
    """

    def __init__(self, announce: Announcer, counters: StatusCounters) -> None:
        self._announce = announce
        self._counters = counters
        #: The number of changes applied when the copy was last found to be behind.
        self._behind_from = 0
        #: Whether the copy has been level since the start.
        self.was_level = False
        self._gap = self._baseline = False
        self._level: bool | None = None
        #: When the copy was last found not to be level, and what was known then. None while level.
        self._mark: tuple[float, Instant | None] | None = None
        self._audited = Audited(None)

    def check(self, follower: Follower, now: float, doubt: str = "") -> None:
        """Announce what has changed. Called about once a second, and after each event.

        `now` is the time on any clock that does not jump, and `doubt` a reason why the copy may be
        wrong that the follower does not know.
        """
        has_gap, baselining = follower.state.frontiers.has_push_gap, follower.baselining
        if has_gap and not self._gap:
            self._announce(GapSeen())
        if baselining != self._baseline:
            self._announce(BaselineComplete() if self._baseline else BaselineBegun())
        self._gap, self._baseline = has_gap, baselining
        in_step, difference = follower.in_step, follower.difference
        if in_step is not self._audited.in_step or difference != self._audited.reason:
            self._audited = Audited(in_step, difference)
            self._announce(self._audited)
        if follower.level and not doubt:
            self._mark = self._announce.behind_since = None
            if self._level is not True:
                self._level = self.was_level = True
                self._announce(LevelReached(_through(follower)))
        elif self._mark is None:
            self._mark = (now, follower.known)
        elif now - self._mark[0] >= LATE:
            self._announce_behind(follower, self._mark[1], doubt)
            self._mark = (now, follower.known)

    @property
    def is_level(self) -> bool:
        """Whether the copy is level, ignoring changes that are applied as they arrive."""
        return self._level is True

    @property
    def behind_from(self) -> int | None:
        """The number of changes applied when the copy fell behind, or None if it is not behind."""
        return self._behind_from if self._level is False else None

    def _announce_behind(self, follower: Follower, known: Instant | None, doubt: str) -> None:
        """Announce `Behind`, unless the copy only has to apply changes that have just arrived."""
        through = _through(follower)
        is_newer = known is not None and through is not None and through >= known
        is_expected = is_newer or follower.state.pending.is_deferred
        has_gap = follower.state.frontiers.has_push_gap
        is_underway = follower.pending and not has_gap and is_expected
        if doubt or not is_underway or not CATCHING_UP.issuperset(follower.doubts_by_kind):
            self._announce.set_behind()
        if self._level is not False and not is_underway:
            # Changes applied before the first event were also applied to catch up.
            self._behind_from = 0 if self._level is None else self._counters.applied
            self._level = False
            doubts = follower.doubts + ((doubt,) if doubt else ())
            self._announce(Behind(follower.pending, doubts))


def _through(follower: Follower) -> Instant | None:
    progress = follower.progress
    return progress.through if progress else None
