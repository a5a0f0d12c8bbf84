"""What a Destination knows of a Source's changes, and how far it may say that it is synced.

    T  <=  known        T: durably applied.  known: every change is known, if not yet applied.
    confirmed <= known  confirmed: every change is known from the standard documents.

Each method that learns something returns the changes that are new. A fragment that begins
beyond what is known shows a *gap*; it is held until what lies before it is known. A *hole* is a
time that no document of the Source covers any more: knowledge goes on beyond it, T does not,
until a Resource List younger than the hole was compared.
"""

from __future__ import annotations

from copy import copy
from datetime import timedelta

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST, Change, Coverage
from rsnotify.format.datetimes import MICROSECOND, Instant
from rsnotify.format.frontier import Frontier
from rsnotify.format.timestamp_precision import postponed
from rsnotify.sync.actions import Progress
from rsnotify.sync.list_fingerprint import ListFingerprint
from rsnotify.sync.reorder_buffer import ReorderBuffer

#: How far ahead of what is known, and of the time, a fragment may be dated.
LEAP = timedelta(days=1)


class Gap(Struct, frozen=True):
    """A time `(after, ends]` that no Change List covers."""

    after: Instant
    ends: Instant


class SyncFrontiers:
    """The frontiers of one set of resources.

    Args:
        progress: Where an earlier run stopped; None when nothing is known yet.
        hold: How many changes of fragments beyond a gap are kept.
    """

    def __init__(self, progress: Progress | None, hold: int) -> None:
        self._known: Frontier | None = None
        self._confirmed = Frontier.at(EARLIEST)
        self._through: Instant | None = None
        #: Where `confirmed` was when all that had been told by then was applied.
        self._sound = Frontier.at(EARLIEST)
        self._held = ReorderBuffer(hold)
        self.hole: Gap | None = None
        #: A fingerprint of the Change List that was read last.
        self.prefix: ListFingerprint | None = None
        self._sound_prefix: ListFingerprint | None = None
        if progress is not None:
            self.prefix = self._sound_prefix = progress.prefix
            self._through = progress.through
            seen, running = progress.seen, progress.running
            # What a hub repeats of that very instant is not new.
            is_same = progress.through == progress.confirmed
            self._known = Frontier.at(progress.through, seen if is_same else ())
            self._confirmed = Frontier.at(progress.confirmed, seen, running=running)
            self._sound = copy(self._confirmed)

    @property
    def known(self) -> Instant | None:
        """Through here every change is known; None before a first baseline."""
        return self._known.instant if self._known else None

    @property
    def confirmed(self) -> Instant:
        """Through here the standard documents have said so."""
        return self._confirmed.instant

    @property
    def frontier(self) -> Frontier:
        """Where the standard documents have to join."""
        return self._confirmed

    def covers(self, at: Instant) -> bool:
        """Tell whether what speaks of this instant, and no later one, cannot say anything new."""
        return at < self.hole.ends if self.hole else at <= self.confirmed

    @property
    def gap(self) -> bool:
        """Whether something was announced that does not join what is known."""
        return self._held.unexplained(self.known or EARLIEST)

    # Push

    def push(self, coverage: Coverage, today: Instant | None = None) -> list[Change]:
        """Learn from a fragment; one that does not join is held.

        Args:
            coverage: What it covers.
            today: The time by the clock of the Destination, be it wrong.
        """
        if coverage.from_ is None:
            # It proves nothing, so nothing moves; but what it tells is told.
            return self._known.fresh(coverage) if self._known else []
        if self._known is None or not coverage.reaches(self._known.instant):
            self._held.hold(coverage)
            return []
        if self._leaps(self._known, coverage, today):
            self._held.refuse(coverage)
            return []
        return self._join(self._known, coverage) + self.join_held()

    def _leaps(self, known: Frontier, coverage: Coverage, today: Instant | None) -> bool:
        """Whether a fragment is dated so far ahead that only the Source's lists are believed.

        Everything after it would be passed over as old, if it were wrong.
        """
        until = coverage.until
        return until is not None and until > postponed(max(known.instant, today or EARLIEST), LEAP)

    def _join(self, known: Frontier, coverage: Coverage) -> list[Change]:
        fresh = known.fresh(coverage)
        known.learn(coverage)
        return fresh

    def join_held(self) -> list[Change]:
        """Return the changes of the fragments that waited for what is known by now."""
        fresh: list[Change] = []
        while self._known and (coverage := self._held.next(self._known.instant)) is not None:
            fresh += self._join(self._known, coverage)
        return fresh

    def forget_announced(self) -> None:
        """Give up what was announced and does not show in the Source's lists."""
        self._held.clear()

    # Pull and baseline

    def pull(self, coverage: Coverage) -> list[Change]:
        """Advance by a Change List that joins what is confirmed, and return its changes since then.

        What push announced since then is returned once more: it may have been wrong, and applying
        it twice does nothing. `join_held` is to be called next.
        """
        assert self._known is not None
        fresh = self._join(self._confirmed, coverage)
        if coverage.until is not None:
            self._known.advance(coverage.until, coverage.changes)
        return fresh

    def baseline(self, at: Instant) -> None:
        """Advance to an instant whose whole set was compared. `join_held` is to be called next."""
        self.skip(at, over=False)
        self.prefix = self._sound_prefix = None
        if self.hole is not None and at >= self.hole.ends:
            self.hole = None

    def leave_open(self, begins: Instant) -> None:
        """Go on where the Source's documents begin, and remember the hole before it."""
        before = self._confirmed.joint if self._confirmed.running else self.confirmed
        self.hole = Gap(self.hole.after if self.hole else before, begins)
        self.skip(begins)

    def forget(self, to: Instant | None = None) -> None:
        """Know nothing, or go on at an instant, as the time of the Source has gone back."""
        self._known = None if to is None else Frontier.at(to)
        self._confirmed = Frontier.at(to or EARLIEST)
        self._sound = Frontier.at(to or EARLIEST)
        self._through = to
        self._held.clear()
        self.hole = None
        self.prefix = self._sound_prefix = None

    def skip(self, begins: Instant, *, over: bool = True) -> None:
        """Go on where the Source's documents begin: nothing tells what was before."""
        self._known = self._known or Frontier.at(begins)
        self._known.advance(begins)
        self._confirmed.advance(begins, over=over)

    # T

    def progress(self, low_water: Instant | None) -> Progress | None:
        """Return what is to be kept; None while there is no T.

        Args:
            low_water: The instant of the earliest change that is known and not applied;
                `EARLIEST` while that is a resource of a baseline, which may have changed at
                any time.
        """
        if self._known is not None:
            self._through = self._reached(low_water)
            self._sound = self._confirmed_and_applied(low_water)
            self._sound_prefix = self._prefix_applied(low_water)
        return self._kept(self._through, self._sound, self._sound_prefix)

    def progress_after(self, low_water: Instant | None) -> Progress | None:
        """Return what `progress` will be once that is the earliest change; nothing moves yet."""
        sound = self._confirmed_and_applied(low_water)
        return self._kept(self._reached(low_water), sound, self._prefix_applied(low_water))

    def _kept(
        self, through: Instant | None, sound: Frontier, prefix: ListFingerprint | None
    ) -> Progress | None:
        if through is None:
            return None
        if sound.instant > through:
            # The next run has to come upon the hole again.
            return Progress(through, min(through, self.hole.after) if self.hole else through)
        seen = tuple(sound.seen.elements())
        return Progress(through, sound.instant, seen, sound.running, prefix)

    def _prefix_applied(self, low_water: Instant | None) -> ListFingerprint | None:
        """Return the fingerprint of the last list of which every change is applied."""
        is_applied = low_water is None or low_water > self.confirmed
        return self.prefix if is_applied else self._sound_prefix

    def _reached(self, low_water: Instant | None) -> Instant | None:
        """Return T, which never goes back; None while there is none."""
        if self._known is None or low_water == EARLIEST:
            return self._through
        reached = self.hole.after if self.hole else self._known.instant
        if low_water is not None:
            reached = min(reached, low_water - MICROSECOND)
        return max(self._through or reached, reached)

    def _confirmed_and_applied(self, low_water: Instant | None) -> Frontier:
        """Return what the next run may take for confirmed.

        T is not held up by what the documents tell of a time that it has passed, be it once more
        or for the first time, as a hub withheld it. But this must come again after a crash.
        """
        if low_water is None or low_water > self.confirmed:
            return copy(self._confirmed)
        sound = copy(self._sound)
        if low_water > EARLIEST:
            sound.advance(low_water - MICROSECOND)
        return sound
