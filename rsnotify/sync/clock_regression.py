"""Detects that a Source's clock has gone back.

The Source may have been restored from a backup, its clock may have been fast, or one entry may have
had a wrong date. Its lists then lack known changes. Later changes are dated before `confirmed`, and
would be skipped as old, perhaps for years. But such a list may also be an old copy from a replica
or a cache:

    the list lacks entries, but ends no earlier       not an old copy: everything is compared
      than the previous lists
    the list ends before `confirmed`, but begins      all its entries count as new. Each costs a
      later, or has more entries, than the last         look-up, and a request unless a hash or a
      list that did not                                 precise datetime shows that it is applied
    further lists end before `confirmed`              the clock has gone back: at once if the list
                                                        itself proves it, or is the first of a run
                                                        and was sent before that instant; otherwise
                                                        after `Pace.stale`, when a new copy would
                                                        have replaced an old one

If the clock has gone back, stored datetimes prove nothing, and everything is compared.
"""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST, Change, Coverage, Frontier
from rsnotify.format.datetimes import Instant, postponed
from rsnotify.sync.pace import Pace

#: Maximum time between two full comparisons, as a multiple of `Pace.repair`.
_MAX_WAIT_FACTOR = 64
#: Maximum difference between the clocks of a Source's servers.
_MAX_CLOCK_SKEW = timedelta(minutes=1)


class _ListSummary(Struct, frozen=True):
    """The properties that distinguish versions of a list, and the end of this version."""

    from_: Instant | None
    size: int
    last: Change | None
    ends: Instant
    is_behind: bool


class ClockRegressionDetector:
    """Detects that a Source's clock has gone back, from the lists of its latest changes."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._last_read: _ListSummary | None = None
        self._last_complete: _ListSummary | None = None
        self._is_proven = self._has_lost = False
        self._older_since: float | None = None
        self._behind_since: float | None = None
        #: The instant after which a list lacks known changes, until everything is compared.
        self.lost_since: Instant | None = None
        self._next = 0.0
        self._wait = pace.repair
        self._begins: Instant | None = None
        #: Where the last list that was read ends.
        self.ends: Instant | None = None

    def check_open(
        self, coverage: Coverage, frontier: Frontier, now: float, *, has_lost: bool = False
    ) -> bool:
        """Check an open list before its use. Return whether none of its entries counts as old.

        `has_lost` means that the list lacks entries that it had before.
        """
        ends = coverage.until
        assert ends is not None
        is_behind = ends < frontier.instant
        last = coverage.changes[-1] if coverage.changes else None
        before = self._last_read
        read = _ListSummary(coverage.from_, len(coverage.changes), last, ends, is_behind)
        self._last_read, self._begins, self.ends = read, coverage.from_, ends
        if not (is_behind and frontier.seen):
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        if not is_behind:
            self._last_complete = read
            self._older_since = None
            self._is_proven = False
        if self._behind_since is None and (has_lost or _lacks_seen(coverage, frontier)):
            self._record_loss(coverage)  # the next list may not show the loss
            return True
        return is_behind and self._count_as_new(coverage, frontier, before, read, now)

    def check_closed(self, coverage: Coverage, frontier: Frontier, *, has_lost: bool) -> None:
        """Record whether a closed list or package lacks known changes. Call this before its use.

        `has_lost` means that it lacks entries that it had while it was open.
        """
        assert coverage.until is not None
        if coverage.until >= frontier.instant and (has_lost or _lacks_seen(coverage, frontier)):
            self._record_loss(coverage)

    def _record_loss(self, coverage: Coverage) -> None:
        self._has_lost = True
        since = coverage.from_ or EARLIEST
        self.lost_since = since if self.lost_since is None else min(self.lost_since, since)

    def _count_as_new(
        self,
        coverage: Coverage,
        frontier: Frontier,
        before: _ListSummary | None,
        read: _ListSummary,
        now: float,
    ) -> bool:
        """Return whether the entries of a list that ends before `confirmed` count as new."""
        # Without changes seen there, `confirmed` may be from a Resource List.
        was_listed = bool(frontier.seen)
        shows_itself = coverage.latest >= frontier.instant
        sent = coverage.sent
        is_back = sent is None or postponed(sent, _MAX_CLOCK_SKEW) < frontier.instant
        is_first = was_listed and before is None and is_back
        self._is_proven = self._is_proven or shows_itself or is_first
        is_new = before != read
        goes_on = before is not None and (
            (before.is_behind and is_new) or (coverage.from_ or EARLIEST) > before.ends
        )
        if not is_back:
            self._older_since = None  # no changes since a Resource List that was compared
        elif goes_on and self._older_since is None:
            self._older_since = now
        is_suspect = was_listed or shows_itself or self._older_since is not None
        return is_new and self._may_be_newer(coverage) and is_suspect

    def _may_be_newer(self, coverage: Coverage) -> bool:
        """Return whether a list may have new changes, unlike an old copy."""
        begins, complete = coverage.from_ or EARLIEST, self._last_complete
        if complete is None:
            return True
        return (begins, len(coverage.changes)) > (complete.from_ or EARLIEST, complete.size)

    @property
    def begins(self) -> Instant:
        """The instant at which to begin after the clock has gone back."""
        known = (self._begins, self.lost_since, self.ends)
        return min(instant for instant in known if instant is not None)

    @property
    def is_behind(self) -> bool:
        """Whether the last list that was read lacks changes that were listed before."""
        return self._has_lost or self._behind_since is not None

    def has_gone_back(self, now: float) -> bool:
        """Return whether the Source's clock has gone back, and everything may be compared now."""
        if now < self._next or self.ends is None:
            return False
        if self._is_proven or self._has_lost:
            return True
        # By then, a new copy of the list would have replaced an old one.
        since = (self._older_since, self._behind_since)
        return any(start is not None and now - start >= self._pace.stale for start in since)

    def reset(self, now: float) -> None:
        """Forget all lists, because everything is about to be compared."""
        self._next = now + self._wait
        self._wait = min(2 * self._wait, _MAX_WAIT_FACTOR * self._pace.repair)
        self._last_read = self._last_complete = None
        self._older_since = self._behind_since = self.lost_since = None
        self._is_proven = self._has_lost = False


def _lacks_seen(coverage: Coverage, frontier: Frontier) -> bool:
    """Return whether a list that covers the frontier's instant lacks all changes seen there.

    A change also counts as present if a later change of its resource replaces it.
    """
    at, begins = frontier.instant, coverage.from_
    if not frontier.seen or not coverage.ordered or begins is None or begins >= at:
        return False
    seen = {uri for uri, _, _ in frontier.seen}
    return not any(change.uri in seen for change in coverage.changes if change.at >= at)
