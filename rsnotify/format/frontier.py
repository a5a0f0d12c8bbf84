"""A frontier: the instant that progress has reached, and what was seen at that very instant.

Sources with datetimes in whole seconds date several changes alike, and a document that is read
later may have more of them. So changes at the instant are compared by datetime *and* URI
(core §12.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from rsnotify.format.coverage import Change, Coverage
from rsnotify.format.datetimes import Instant
from rsnotify.format.timestamp_precision import is_undecided, just_before

#: Distinguishes the changes of one instant.
ChangeKey = tuple[str, str, str]


def change_key(change: Change) -> ChangeKey:
    """Return what identifies a change among those of the same datetime (core §12.1)."""
    return (change.uri, change.change.value, change.resource.hash or "")


class Frontier(Struct):
    """The instant up to which all changes are known, and which changes were seen at it.

    Args:
        instant: The instant.
        seen: The changes seen at it; a document may list one more than once.
        over: Whether no more changes can be dated with the instant. Where datetimes are in whole
            seconds, the second of an open list's last entry may not be over.
        running: Whether, as far as is known, that second was not over when the last document was
            read, so that more changes may be dated with it since.
    """

    instant: Instant
    seen: Counter[ChangeKey]
    over: bool = True
    running: bool = False

    @classmethod
    def at(
        cls, instant: Instant, seen: Iterable[ChangeKey] = (), *, running: bool = False
    ) -> Frontier:
        """Make a frontier at an instant; it is over if no change was seen at it."""
        counts = Counter(seen)
        return cls(instant, counts, over=not counts, running=running)

    @property
    def joint(self) -> Instant:
        """Where a document has to begin at the latest so that nothing is missing.

        A document that begins at the instant itself lacks the changes dated with it later.
        """
        over = self.over or self.instant.microsecond
        return self.instant if over else just_before(self.instant)

    def fresh(self, coverage: Coverage) -> list[Change]:
        """Return the changes later than the frontier, and those at it that were not yet seen.

        If the document is out of order, this returns every entry: none is proved to be old.
        """
        if not coverage.ordered:
            return list(coverage.changes)
        seen: Counter[ChangeKey] | None = None
        fresh = []
        for change in coverage.changes:
            if change.at > self.instant:
                fresh.append(change)
            elif change.at == self.instant:
                seen = self.seen.copy() if seen is None else seen
                if seen[change_key(change)]:
                    seen[change_key(change)] -= 1
                else:
                    fresh.append(change)
        return fresh

    def undecided(self, coverage: Coverage) -> list[Change]:
        """Return the changes before the frontier whose coarse datetimes may also be after it."""
        at = self.instant
        return [
            change
            for change in coverage.changes
            if change.at < at and change.stated_at.fold and is_undecided(change.stated_at, at)
        ]

    def learn(self, coverage: Coverage) -> list[Change]:
        """Advance to the end of a document that leaves no gap, and return what is `fresh` in it."""
        fresh = self.fresh(coverage)
        if coverage.until is not None:
            running, over = coverage.running, coverage.closed
            self.advance(coverage.until, coverage.changes, over=over, running=running)
        return fresh

    def advance(
        self,
        until: Instant,
        changes: Sequence[Change] = (),
        *,
        over: bool = True,
        running: bool = False,
    ) -> None:
        """Advance to `until`, if that is later; the frontier never moves back.

        Of the changes known by then, those at the very instant count as seen.
        """
        if until < self.instant:
            return
        at_it = Counter(change_key(change) for change in changes if change.at == until)
        later = until > self.instant
        self.seen = at_it if later else self.seen | at_it
        self.over = over or (self.over and not later)
        self.running = running and (later or self.running)
        self.instant = until
