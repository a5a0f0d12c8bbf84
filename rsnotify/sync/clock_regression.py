"""Whether the time of a Source has gone back: its lists lack changes that they had.

The Source may have been restored from a backup, its clock may have been ahead, or one entry may
have had a wrong date. Later changes are then dated before what is confirmed, and would be passed
over as old, perhaps for years. But such a list may also be an old copy from a replica or a cache.
So

- a list that lacks entries, and still ends where the lists before it ended or later, is no old
  copy: everything is compared at once;
- all entries of a list that ends before what is confirmed count as new if it begins later, or has
  more entries, than the last list that did not end before. Each costs a look-up where the change
  was applied already, and a request where neither a hash nor a fraction of a second shows that;
- if lists go on to end before what is confirmed, time has gone back: at once if the list itself
  shows it, or if it is the first list of a run and was sent before that instant; otherwise after
  `Pace.stale` seconds, by when a new copy has replaced an old one.

The datetimes that are held then prove nothing any more, and everything is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST, Change, Coverage
from rsnotify.format.datetimes import Instant
from rsnotify.format.frontier import Frontier
from rsnotify.format.timestamp_precision import postponed
from rsnotify.sync.pace import Pace

#: How much longer than the first time it waits at most until everything is compared again.
_MOST = 64
#: By how much the clocks of two servers of one Source may differ.
_SKEW = timedelta(minutes=1)


class _Read(Struct, frozen=True):
    """What tells a list from one that was read before, and where it ended."""

    from_: Instant | None
    size: int
    last: Change | None
    ends: Instant
    is_behind: bool


class ClockRegressionDetector:
    """Judges the lists of one Source that tell of the present.

    Args:
        pace: How long they may be old copies, and how often everything may be compared.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._read: _Read | None = None
        self._front: _Read | None = None
        self._since: float | None = None
        self._is_sure = self._is_shown = False
        self._behind_since: float | None = None
        self._next = 0.0
        self._wait = pace.repair
        self._lost_since: Instant | None = None
        self._begins: Instant | None = None
        #: Where the list that was read last ends.
        self.ends: Instant | None = None

    def look(
        self, coverage: Coverage, frontier: Frontier, now: float, *, has_lost: bool = False
    ) -> bool:
        """Look at a list of the present, before it is taken in.

        Args:
            coverage: What it covers.
            frontier: What is confirmed.
            now: The time.
            has_lost: Whether it lacks entries that it had.

        Returns:
            Whether none of its entries may be passed over as old.
        """
        ends = coverage.ends
        if ends is None:
            return False
        last = coverage.changes[-1] if coverage.changes else None
        is_behind = ends < frontier.instant
        before, self._read = (
            self._read,
            _Read(coverage.from_, len(coverage.changes), last, ends, is_behind),
        )
        self._begins, self.ends = coverage.from_, ends
        if not (is_behind and frontier.seen):
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        if not is_behind:
            self._front = self._read
            self._since = None
            self._is_sure = False
        if self._behind_since is None and (has_lost or _lacks_what_was_told(coverage, frontier)):
            self._show(coverage)  # the next list need not show it again
            return True
        return is_behind and self._doubt(coverage, frontier, before, now)

    def look_at_past(
        self, coverage: Coverage, frontier: Frontier, *, has_lost: bool = False
    ) -> None:
        """Note whether a closed list or a package, not applied yet, lacks changes that were known.

        Args:
            coverage: What it covers.
            frontier: What is confirmed.
            has_lost: Whether it lacks entries that it had while it was open.
        """
        is_over = coverage.until is not None and coverage.until >= frontier.instant
        if is_over and (has_lost or _lacks_what_was_told(coverage, frontier)):
            self._show(coverage)

    def _show(self, coverage: Coverage) -> None:
        self._is_shown = True
        since = coverage.from_ or EARLIEST
        self._lost_since = since if self._lost_since is None else min(self._lost_since, since)

    def _doubt(
        self, coverage: Coverage, frontier: Frontier, before: _Read | None, now: float
    ) -> bool:
        told = bool(frontier.seen)  # else a Resource List may be later than the list of changes
        shown = coverage.latest >= frontier.instant
        sent = coverage.sent
        is_back = sent is None or postponed(sent, _SKEW) < frontier.instant
        self._is_sure = self._is_sure or shown or (told and before is None and is_back)
        is_new = before != self._read
        goes_on = before is not None and (
            (before.is_behind and is_new) or _is_beyond(coverage.from_, before.ends)
        )
        if not is_back:
            self._since = None  # a quiet Source; what was confirmed was a later Resource List
        elif goes_on and self._since is None:
            self._since = now
        return is_new and self._goes_on(coverage) and (told or shown or self._since is not None)

    @property
    def begins(self) -> Instant | None:
        """Where the lists begin that count once time has gone back."""
        known = [one for one in (self._begins, self._lost_since, self.ends) if one is not None]
        return min(known, default=None)

    @property
    def is_behind(self) -> bool:
        """Whether the list that was read last ends before what the lists said, or lacks it."""
        return self._is_shown or self._behind_since is not None

    def _goes_on(self, coverage: Coverage) -> bool:
        """Whether a list may have what none had that was not behind: no old copy does."""
        begins, front = coverage.from_ or EARLIEST, self._front
        if front is None:
            return True
        return (begins, len(coverage.changes)) > (front.from_ or EARLIEST, front.size)

    def has_gone_back(self, now: float) -> bool:
        """Tell whether the time of the Source has gone back, and it is time to do something."""
        if now < self._next or self.ends is None:
            return False
        if self._is_sure or self._is_shown:
            return True
        # However it came about: an old copy has become a new one by then.
        waited = [now - since for since in (self._since, self._behind_since) if since is not None]
        return max(waited, default=0.0) >= self._pace.stale

    def begin_anew(self, now: float) -> None:
        """Start again, as everything is about to be compared."""
        self._next = now + self._wait
        self._wait = min(2 * self._wait, _MOST * self._pace.repair)
        self._read = self._front = self._since = self._behind_since = self._lost_since = None
        self._is_sure = self._is_shown = False


def _is_beyond(begins: Instant | None, end: Instant) -> bool:
    return begins is not None and begins > end


def _lacks_what_was_told(coverage: Coverage, frontier: Frontier) -> bool:
    """Whether a list that has all since before an instant lacks what was told at it.

    What the list has later of the same resource may stand for it.
    """
    at, begins = frontier.instant, coverage.from_
    if not frontier.seen or not coverage.ordered or begins is None or begins >= at:
        return False
    told = {uri for uri, _, _ in frontier.seen}
    return not any(change.uri in told for change in _since(coverage.changes, at))


def _since(changes: Sequence[Change], at: Instant) -> Sequence[Change]:
    return [change for change in changes if change.at >= at]
