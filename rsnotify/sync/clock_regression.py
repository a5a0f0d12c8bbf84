"""Detects that the clock of a Source has gone back: its lists lack changes that they had.

The Source may have been restored from a backup, its clock may have been ahead, or one entry may
have had a wrong date. Later changes are then dated before `confirmed`, and would be skipped as old,
perhaps for years. But such a list may also be an old copy from a replica or a cache. Therefore:

- A list that lacks entries, and still ends where the lists before it ended or later, is no old
  copy: everything is compared at once.
- All entries of a list that ends before `confirmed` count as new if it begins later, or has more
  entries, than the last list that did not end before. Each costs a look-up if the change was
  applied already, and a request if neither a hash nor a fraction of a second shows that.
- If further lists end before `confirmed`, the clock has gone back: at once if the list itself
  shows it, or if it is the first list of a run and was sent before that instant; otherwise after
  `Pace.stale` seconds, by when a new copy has replaced an old one.

The stored datetimes then prove nothing any more, and everything is compared.
"""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST, Change, Coverage
from rsnotify.format.datetimes import Instant
from rsnotify.format.frontier import Frontier
from rsnotify.format.timestamp_precision import postponed
from rsnotify.sync.pace import Pace

#: The longest wait between two comparisons of everything, as a multiple of the first one.
_LONGEST_WAIT = 64
#: By how much the clocks of two servers of one Source may differ.
_SKEW = timedelta(minutes=1)


class _ListSummary(Struct, frozen=True):
    """The properties that tell one version of a list from another, and where it ended."""

    from_: Instant | None
    size: int
    last: Change | None
    ends: Instant
    is_behind: bool


class ClockRegressionDetector:
    """Judges the lists of one Source that list the latest changes."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._last_read: _ListSummary | None = None
        self._last_complete: _ListSummary | None = None
        self._is_proven = self._has_lost = False
        self._older_since: float | None = None
        self._behind_since: float | None = None
        self._lost_since: Instant | None = None
        self._next = 0.0
        self._wait = pace.repair
        self._begins: Instant | None = None
        #: Where the list that was read last ends.
        self.ends: Instant | None = None

    def check_open(
        self, coverage: Coverage, frontier: Frontier, now: float, *, has_lost: bool = False
    ) -> bool:
        """Return whether no entry of an open list, not used yet, may be skipped as old.

        `has_lost` says that it lacks entries that it had.
        """
        ends = coverage.ends
        if ends is None:
            return False
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
            self._record_loss(coverage)  # the next list need not show it again
            return True
        return is_behind and self._judge(coverage, frontier, before, read, now)

    def check_closed(
        self, coverage: Coverage, frontier: Frontier, *, has_lost: bool = False
    ) -> None:
        """Check whether a closed list or a package, not applied yet, lacks changes that were known.

        `has_lost` says that it lacks entries that it had while it was open.
        """
        is_over = coverage.until is not None and coverage.until >= frontier.instant
        if is_over and (has_lost or _lacks_seen(coverage, frontier)):
            self._record_loss(coverage)

    def _record_loss(self, coverage: Coverage) -> None:
        self._has_lost = True
        since = coverage.from_ or EARLIEST
        self._lost_since = since if self._lost_since is None else min(self._lost_since, since)

    def _judge(
        self,
        coverage: Coverage,
        frontier: Frontier,
        before: _ListSummary | None,
        read: _ListSummary,
        now: float,
    ) -> bool:
        """Return whether the entries of a list that ends before `confirmed` count as new."""
        was_listed = bool(frontier.seen)  # else a Resource List may be later than the change list
        shows_itself = coverage.latest >= frontier.instant
        sent = coverage.sent
        is_back = sent is None or postponed(sent, _SKEW) < frontier.instant
        is_first = was_listed and before is None and is_back
        self._is_proven = self._is_proven or shows_itself or is_first
        is_new = before != read
        goes_on = before is not None and (
            (before.is_behind and is_new) or (coverage.from_ or EARLIEST) > before.ends
        )
        if not is_back:
            self._older_since = None  # a quiet Source; a later Resource List was confirmed
        elif goes_on and self._older_since is None:
            self._older_since = now
        is_suspect = was_listed or shows_itself or self._older_since is not None
        return is_new and self._may_be_newer(coverage) and is_suspect

    def _may_be_newer(self, coverage: Coverage) -> bool:
        """Return whether a list may have changes that no complete list had; no old copy has."""
        begins, complete = coverage.from_ or EARLIEST, self._last_complete
        if complete is None:
            return True
        return (begins, len(coverage.changes)) > (complete.from_ or EARLIEST, complete.size)

    @property
    def begins(self) -> Instant | None:
        """Where the lists begin that count once the clock has gone back."""
        known = (self._begins, self._lost_since, self.ends)
        return min((instant for instant in known if instant is not None), default=None)

    @property
    def is_behind(self) -> bool:
        """Whether the list that was read last lacks changes that were listed earlier."""
        return self._has_lost or self._behind_since is not None

    def has_gone_back(self, now: float) -> bool:
        """Return whether the Source's clock has gone back, and everything may be compared now."""
        if now < self._next or self.ends is None:
            return False
        if self._is_proven or self._has_lost:
            return True
        # Whatever the reason: by then, a new copy would have replaced an old one.
        since = [self._older_since, self._behind_since]
        waited = max((now - start for start in since if start is not None), default=0.0)
        return waited >= self._pace.stale

    def reset(self, now: float) -> None:
        """Forget what was read, as everything is about to be compared."""
        self._next = now + self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT * self._pace.repair)
        self._last_read = self._last_complete = None
        self._older_since = self._behind_since = self._lost_since = None
        self._is_proven = self._has_lost = False


def _lacks_seen(coverage: Coverage, frontier: Frontier) -> bool:
    """Return whether a list that covers the frontier's instant lacks the changes seen at it.

    A later change of the same resource may stand for the earlier one.
    """
    at, begins = frontier.instant, coverage.from_
    if not frontier.seen or not coverage.ordered or begins is None or begins >= at:
        return False
    seen = {uri for uri, _, _ in frontier.seen}
    return not any(change.uri in seen for change in coverage.changes if change.at >= at)
