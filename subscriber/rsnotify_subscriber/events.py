"""The events that an application can observe.

A `Subscriber` calls its `on_event` with each event, on the event loop. Applied changes are not
events: handlers and `on_committed` receive those.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct, field

from rsnotify.format.datetimes import Instant
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import DocumentKind
from rsnotify.sync.doubts import CATCHING_UP
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.push_options import Via
from rsnotify_subscriber.status import FollowCounters, StatusCounters

logger = logging.getLogger("rsnotify.subscriber")

#: Seconds for which changes may be pending before the copy counts as behind.
BEHIND_AFTER = 1.0


class PushUp(Struct, frozen=True, tag=True):
    """Changes of a topic arrive from a hub."""

    transport: Via = field(name="way")
    hub: str
    topic: str


class PushDown(Struct, frozen=True, tag=True):
    """Changes of a topic no longer arrive from a hub, or the connection failed.

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
    """Changes may be missing between T and the first pushed change. The lists are read next."""


class Pulling(Struct, frozen=True, tag=True):
    """Reading the Source's documents has begun, with a document of this kind."""

    kind: DocumentKind = field(name="rung")
    uri: str


class BaselineBegun(Struct, frozen=True, tag=True):
    """Comparing the whole set with the copy has begun."""


class BaselineComplete(Struct, frozen=True, tag=True):
    """All differences are known. Some may still have to be applied."""


class LevelReached(Struct, frozen=True, tag="Level"):
    """The copy is level: no change up to T is known to be missing."""

    through: Instant | None


class Behind(Struct, frozen=True, tag=True):
    """Changes have been missing, or the copy may have been wrong, for about a second.

    Args:
        pending: The number of resources with changes that are known but not yet applied.
        doubts: Why the copy may differ from the Source's documents, in sentences.
    """

    pending: int
    doubts: tuple[str, ...] = ()


class Audited(Struct, frozen=True, tag=True):
    """The copy was compared with the count and digest of the whole set (docs/audit.md).

    Args:
        in_step: Whether they agree, or None if they cannot be compared.
        reason: How they differ, or why they cannot be compared, as a sentence. Empty if they agree.
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
    """Counts events, and calls the application's `on_event`, logging its exceptions.

    Attributes:
        counters: The counters of the subscriber.
        behind_since: As in `Status`.
    """

    def __init__(
        self, on_event: Callable[[Event], None] | None, counters: FollowCounters | None = None
    ) -> None:
        self._on_event = on_event
        self.counters = counters or FollowCounters()
        self.behind_since: datetime | None = datetime.now(UTC)

    def set_behind(self) -> None:
        """Record that the copy is behind, unless that is recorded already."""
        now = datetime.now(UTC)  # earlier than before if the clock was set back
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
            # An error in the application's function must not stop following.
            logger.exception("on_event failed for %s", type(event).__name__)


class EventWatch:
    """Announces events when the follower's state changes."""

    def __init__(self, announce: Announcer, counters: StatusCounters) -> None:
        self._announce = announce
        self._counters = counters
        #: The number of changes that had been applied when the copy last fell behind.
        self._behind_from = 0
        #: Whether the copy has been level since the start.
        self.was_level = False
        self._gap = self._baseline = False
        self._level: bool | None = None
        #: When the copy was last checked and not level, and the latest known change at that time.
        self._not_level: tuple[float, Instant | None] | None = None
        self._audited = Audited(None)

    def check(self, follower: Follower, now: float, doubt: str = "") -> None:
        """Announce what has changed. Called about once a second, and after each event.

        Args:
            follower: The follower.
            now: The time on a monotonic clock.
            doubt: A doubt that the follower does not know.
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
            self._not_level = self._announce.behind_since = None
            if self._level is not True:
                self._level = self.was_level = True
                self._announce(LevelReached(_through(follower)))
        elif self._not_level is None:
            self._not_level = (now, follower.known)
        elif now - self._not_level[0] >= BEHIND_AFTER:
            self._announce_behind(follower, self._not_level[1], doubt)
            self._not_level = (now, follower.known)

    @property
    def is_level(self) -> bool:
        """Whether the copy is level, ignoring changes that are applied as they arrive."""
        return self._level is True

    @property
    def behind_from(self) -> int | None:
        """The number of changes applied before the copy fell behind, or None if it is not."""
        return self._behind_from if self._level is False else None

    def _announce_behind(self, follower: Follower, known: Instant | None, doubt: str) -> None:
        """Announce `Behind`, unless only changes that have just arrived are pending."""
        through = _through(follower)
        is_newer = known is not None and through is not None and through >= known
        is_expected = is_newer or follower.state.pending.is_deferred
        has_gap = follower.state.frontiers.has_push_gap
        is_underway = follower.pending and not has_gap and is_expected
        if doubt or not is_underway or not CATCHING_UP.issuperset(follower.doubts_by_kind):
            self._announce.set_behind()
        if self._level is not False and not is_underway:
            # At first, all changes so far were applied to catch up.
            self._behind_from = 0 if self._level is None else self._counters.applied
            self._level = False
            doubts = follower.doubts + ((doubt,) if doubt else ())
            self._announce(Behind(follower.pending, doubts))


def _through(follower: Follower) -> Instant | None:
    progress = follower.progress
    return progress.through if progress else None
