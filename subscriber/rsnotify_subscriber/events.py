"""Events: the changes of a Destination's state that an application may follow.

`Subscriber(…, on_event=…)` is called with these, on the event loop, in the order in which they
happened. An applied change is not an event; handlers and `on_committed` receive those.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct, field

from rsnotify.format.datetimes import Instant
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import DocumentKind
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.via import Via

logger = logging.getLogger("rsnotify.subscriber")

#: Seconds for which something may be pending before the copy counts as behind.
LATE = 1.0


class PushUp(Struct, frozen=True, tag=True):
    """Changes of a topic arrive from a hub."""

    transport: Via = field(name="way")
    hub: str
    topic: str


class PushDown(Struct, frozen=True, tag=True):
    """Changes of a topic no longer arrive from a hub, or it could not be reached.

    Args:
        reason: Why; empty where the connection is not needed any more, or not offered.
        left: The number of other connections by which changes of the topic still arrive.
    """

    transport: Via = field(name="way")
    hub: str
    topic: str
    reason: str
    left: int


class GapSeen(Struct, frozen=True, tag=True):
    """Changes may be missing between T and the first pushed change, so the lists are read."""


class Pulling(Struct, frozen=True, tag=True):
    """The Source's documents are read, beginning with the first of this kind."""

    kind: DocumentKind = field(name="rung")
    uri: str


class BaselineBegun(Struct, frozen=True, tag=True):
    """The comparison of the whole set with the copy has begun."""


class BaselineComplete(Struct, frozen=True, tag=True):
    """All differences are known. They need not be applied yet."""


class LevelReached(Struct, frozen=True, tag="Level"):
    """Nothing is known to be missing, up to T."""

    through: Instant | None


class Behind(Struct, frozen=True, tag=True):
    """Something is missing, and has been for about a second.

    Args:
        pending: Resources with changes that are known and not yet applied.
        doubts: Why the copy may differ from the Source's documents.
    """

    pending: int
    doubts: tuple[str, ...] = ()


class Audited(Struct, frozen=True, tag=True):
    """The copy was compared with the count and digest of the whole set (docs/audit.md).

    Args:
        in_step: Whether they agree; None where they cannot be compared.
        reason: The difference, or why they cannot be compared, in a sentence; empty if they agree.
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
    """Calls `on_event`, if the application has one. An exception that it raises is logged."""

    def __init__(self, on_event: Callable[[Event], None] | None) -> None:
        self._on_event = on_event

    def __call__(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            # The function is the application's: whatever it raises, following continues.
            logger.exception("on_event failed at %s", type(event).__name__)


class EventWatch:
    """Announces the events that follow from a change of the follower's state.

    Changes that are applied within `LATE` cause no event, as the copy is not behind meanwhile.
    """

    def __init__(self, announce: Announcer) -> None:
        self._announce = announce
        self._gap = self._baseline = False
        self._level: bool | None = None
        #: When the copy was last found not to be level, and what was known then; None while level.
        self._mark: tuple[float, Instant | None] | None = None
        self._audited = Audited(None)

    def check(self, follower: Follower, now: float, doubt: str = "") -> None:
        """Announce what has changed; called about once a second, and after each event.

        Args:
            follower: The follower.
            now: The time, in seconds of any clock that does not jump.
            doubt: Why the copy may be wrong for a reason that the follower does not know.
        """
        if follower.gap and not self._gap:
            self._announce(GapSeen())
        if follower.baselining != self._baseline:
            self._announce(BaselineComplete() if self._baseline else BaselineBegun())
        self._gap, self._baseline = follower.gap, follower.baselining
        audited = Audited(follower.in_step, follower.difference)
        if audited != self._audited:
            self._audited = audited
            self._announce(audited)
        if follower.level and not doubt:
            self._mark = None
            if self._level is not True:
                self._level = True
                self._announce(LevelReached(_through(follower)))
        elif self._mark is None:
            self._mark = (now, follower.since)
        elif now - self._mark[0] >= LATE:
            self._announce_behind(follower, self._mark[1], doubt)
            self._mark = (now, follower.since)

    def _announce_behind(self, follower: Follower, known: Instant | None, doubt: str) -> None:
        """Announce `Behind`, unless only changes that came meanwhile are still to be applied."""
        through = _through(follower)
        is_newer = known is not None and through is not None and through >= known
        is_underway = follower.pending and not follower.gap and (is_newer or follower.is_deferred)
        if self._level is not False and not is_underway:
            self._level = False
            doubts = follower.doubts + ((doubt,) if doubt else ())
            self._announce(Behind(follower.pending, doubts))


def _through(follower: Follower) -> Instant | None:
    progress = follower.progress
    return progress.through if progress else None
