"""What a Destination knows of a Source's changes, and how far it may say that it is synced.

    T  <=  known        T: durably applied.  known: every change is known, if not yet applied.
    confirmed <= known  confirmed: every change is known from the standard documents.

A *hole* is a time that no document of the Source covers any more. Knowledge goes on beyond
it, T does not, until a Resource List younger than the hole was compared.
"""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct

from rsnotify.actions import Progress
from rsnotify.coverage import Change, Coverage, Frontier
from rsnotify.datetimes import MICROSECOND, Instant

#: Before every change: T does not exist yet.
EARLIEST = datetime.min.replace(tzinfo=UTC)


class Hole(Struct, frozen=True):
    """A time `(after, ends]` that no Change List covers."""

    after: Instant
    ends: Instant


class Knowledge:
    """The frontiers of one set of resources.

    Args:
        known: Through here every change is known.
        confirmed: Through here the standard documents have said so.
        through: T, if there is one yet.
    """

    def __init__(self, known: Frontier, confirmed: Frontier, through: Instant | None) -> None:
        self.known = known
        self.confirmed = confirmed
        self.hole: Hole | None = None
        self._through = through

    @classmethod
    def of_progress(cls, progress: Progress) -> Knowledge:
        """Go on where an earlier run stopped."""
        known = Frontier.at(progress.through)
        return cls(known, Frontier.at(progress.confirmed, progress.seen), progress.through)

    @classmethod
    def beginning(cls, at: Instant) -> Knowledge:
        """Begin with what a first Resource List of this `at` told."""
        return cls(Frontier.at(at), Frontier.at(at), None)

    def push(self, coverage: Coverage) -> list[Change] | None:
        """Learn from a fragment; return what is new, or None if it does not join."""
        if not coverage.reaches(self.known.instant):
            return None
        fresh = self.known.fresh(coverage)
        if coverage.until is not None:
            self.known.advance(coverage.until, coverage.changes)
        return fresh

    def pull(self, coverage: Coverage) -> list[Change]:
        """Learn from a Change List that joins what is confirmed.

        What push told since then is returned once more: it may have been told wrongly, and
        applying it twice does nothing.
        """
        fresh = self.confirmed.fresh(coverage)
        if coverage.until is not None:
            self.confirmed.advance(coverage.until, coverage.changes)
            self.known.advance(coverage.until, coverage.changes)
        return fresh

    def baseline(self, at: Instant) -> None:
        """Learn that a Resource List of this `at` was compared."""
        self.known.advance(at)
        self.confirmed.advance(at)
        if self.hole is not None and at >= self.hole.ends:
            self.hole = None

    def leave_open(self, begins: Instant) -> None:
        """Go on where the Source's documents begin, and remember the hole before it."""
        after = self.hole.after if self.hole else self.confirmed.instant
        self.hole = Hole(after, begins)
        self.skip(begins)

    def skip(self, begins: Instant) -> None:
        """Go on where the Source's documents begin: nothing can tell what was before."""
        self.known.advance(begins)
        self.confirmed.advance(begins)

    def progress(self, low_water: Instant | None) -> Progress | None:
        """Return what is to be kept; None while there is no T.

        Args:
            low_water: The instant of the earliest change that is known and not applied;
                `EARLIEST` while that is a resource of a baseline, which may have changed at
                any time.
        """
        reached = self.hole.after if self.hole else self.known.instant
        if low_water is None:
            self._through = max(self._through or reached, reached)
        elif low_water > EARLIEST:
            reached = min(reached, low_water - MICROSECOND)
            self._through = max(self._through or reached, reached)
        if self._through is None:
            return None
        if self.confirmed.instant > self._through:
            return Progress(self._through, self._through)
        seen = tuple(self.confirmed.seen.elements())
        return Progress(self._through, self.confirmed.instant, seen)
