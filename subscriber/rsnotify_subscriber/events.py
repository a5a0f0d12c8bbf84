"""What an application can be told of: a Destination's state has changed.

`Subscriber(…, on_event=…)` is called with these, on the event loop, in the order in which things
happened. What is applied is no event: handlers and `on_committed` are told of that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import DocumentKind
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.push.choosing import Via

logger = logging.getLogger("rsnotify.subscriber")

#: For how many seconds something may be owed before that is told.
LATE = 1.0


class PushUp(Struct, frozen=True, tag=True):
    """Changes arrive by a way.

    Args:
        way: What is spoken.
        hub: The hub's URI.
        topic: What is heard of.
    """

    way: Via
    hub: str
    topic: str


class PushDown(Struct, frozen=True, tag=True):
    """Changes do not arrive by a way any more, or it could not be opened.

    Args:
        way: What is spoken.
        hub: The hub's URI.
        topic: What is heard of.
        reason: Why; empty where the way is not needed any more, or not offered.
        left: By how many other ways changes of the topic still arrive.
    """

    way: Via
    hub: str
    topic: str
    reason: str
    left: int


class GapSeen(Struct, frozen=True, tag=True):
    """Something may be missing between what is known and what is pushed, so the lists are read."""


class Pulling(Struct, frozen=True, tag=True):
    """The Source's documents are read.

    Args:
        rung: Which kind of them.
        uri: The first of this kind.
    """

    rung: DocumentKind
    uri: str


class BaselineBegun(Struct, frozen=True, tag=True):
    """The whole set is compared with what is held."""


class BaselineComplete(Struct, frozen=True, tag=True):
    """All differences are known. They need not be applied yet."""


class Level(Struct, frozen=True, tag=True):
    """Nothing is known to be missing.

    Args:
        through: T.
    """

    through: Instant | None


class Behind(Struct, frozen=True, tag=True):
    """Something is missing, and has been for about a second.

    Args:
        pending: Resources with changes that are known and not yet applied.
        doubts: Why the copy may not be what the Source's documents say.
    """

    pending: int
    doubts: tuple[str, ...] = ()


class Audited(Struct, frozen=True, tag=True):
    """What is held was compared with what the Source says of the whole set (docs/audit.md).

    Args:
        in_step: Whether they agree; None where they cannot be compared.
        reason: In a sentence, what differs, or why they cannot be compared; empty if they agree.
    """

    in_step: bool | None
    reason: str = ""


class OfferChanged(Struct, frozen=True, tag=True):
    """The Source offers something else than before.

    Args:
        before: What it offered.
        now: What it offers.
    """

    before: Offer
    now: Offer


Event = (
    PushUp
    | PushDown
    | GapSeen
    | Pulling
    | BaselineBegun
    | BaselineComplete
    | Level
    | Behind
    | Audited
    | OfferChanged
)


class Announcer:
    """Calls whoever wants to hear of events. What the callee raises is logged, and no more.

    Args:
        on_event: Is called; None where nobody wants to hear.
    """

    def __init__(self, on_event: Callable[[Event], None] | None) -> None:
        self._on_event = on_event

    def __call__(self, event: Event) -> None:
        """Tell of an event."""
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            # It is not ours: whatever it raises, following goes on.
            logger.exception("on_event failed at %s", type(event).__name__)


#: Tells nobody.
NOBODY = Announcer(None)


class Watch:
    """Tells of what follows from how a follower stands now, and how it stood before.

    What is on its way is not behind: changes that are applied within `LATE` are told by nothing.

    Args:
        announce: Is told.
    """

    def __init__(self, announce: Announcer) -> None:
        self._announce = announce
        self._gap = self._baseline = False
        self._level: bool | None = None
        #: When it was looked at how far it is, and what was known then; None while level.
        self._mark: tuple[float, Instant | None] | None = None
        self._verdict = Audited(None)

    def look(self, follower: Follower, now: float, doubt: str = "") -> None:
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
        verdict = Audited(follower.in_step, follower.difference)
        if verdict != self._verdict:
            self._verdict = verdict
            self._announce(verdict)
        if follower.level and not doubt:
            self._mark = None
            self._tell_level(follower)
        elif self._mark is None:
            self._mark = (now, follower.since)
        elif now - self._mark[0] >= LATE:
            self._tell_behind(follower, self._mark[1], doubt)
            self._mark = (now, follower.since)

    def _tell_level(self, follower: Follower) -> None:
        if self._level is not True:
            self._level = True
            self._announce(Level(_through(follower)))

    def _tell_behind(self, follower: Follower, known: Instant | None, doubt: str) -> None:
        """Tell that it is behind, unless it only has what came meanwhile still to apply."""
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
