"""The frontiers of a Destination: how far it knows a Source's changes, and how far it is synced.

    T          every change up to T is durably applied             T <= known
    confirmed  every change is known from the Source's documents   confirmed <= known
    known      every change is known, perhaps only from push

Each method that adds coverage returns the new changes in it. If a document or fragment begins after
`known`, there is a gap `(known, from]`. A gap has three states:

    no gap ──> pushed gap       a fragment begins after `known`
           ──> uncovered gap    no document covers the changes since `confirmed`, or the Change List
                                has lost its entries and its `from`
    pushed gap ──> no gap       a list or another fragment reaches the fragment's `from`, or the
                                lists still end before it after `Pace.lag_tries` reads
    uncovered gap ──> no gap    the copy was compared with a Resource List newer than the gap

The `ReorderBuffer` holds a fragment that begins after `known`:

- For `Pace.gap_grace`, nothing else happens, because fragments may merely be out of order.
- Then the gap is pulled.
- If the lists end before the fragment, they are reread up to `Pace.lag_tries` times, with backoff.
  Then the fragment is dropped, with a warning that the hub announced changes not in the lists.
- If it already holds `Pace.hold` changes, it drops new fragments and keeps only their last `until`,
  so the gap stays until the lists reach it.

A fragment dated more than a day ahead is never applied: if its date were wrong, all later changes
would be skipped as old. It creates a gap that only the lists can close. While a gap is uncovered,
`known` advances beyond it, but T does not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from copy import copy
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import EARLIEST, Change, Coverage, Frontier
from rsnotify.format.datetimes import MICROSECOND, Instant, end_of_unit, postponed
from rsnotify.sync.closed_lists import KnownLists
from rsnotify.sync.list_fingerprint import ListFingerprint
from rsnotify.sync.progress import ComparedList, Progress


class ReorderBuffer:
    """Fragments that begin after `known`, ordered by `from`, with at most `limit` changes.

    A fragment without changes counts as one change.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._fragments: list[Coverage] = []
        self._size = 0
        self._discarded_until: Instant | None = None

    def add(self, coverage: Coverage) -> None:
        """Add a fragment that has a `from`. Ignore a duplicate from another transport."""
        begins = coverage.from_
        assert begins is not None
        first = bisect_left(self._fragments, begins, key=_begins)
        after = bisect_right(self._fragments, begins, key=_begins)
        if coverage in self._fragments[first:after]:
            return
        if self._size < self._limit:
            self._fragments.insert(after, coverage)
            self._size += _size(coverage)
        else:
            self.discard(coverage)

    def discard(self, coverage: Coverage) -> None:
        """Drop a fragment. The lists will have its changes."""
        if coverage.changes:
            self._discarded_until = coverage.until

    def pop_joining(self, known: Instant) -> Coverage | None:
        """Remove and return the first fragment, if it now joins the known changes."""
        if not self._fragments or not self._fragments[0].reaches(known):
            return None
        coverage = self._fragments.pop(0)
        self._size -= _size(coverage)
        return coverage

    def is_ahead_of(self, known: Instant) -> bool:
        """Return whether changes later than the known ones were announced."""
        if self._discarded_until is not None and self._discarded_until <= known:
            self._discarded_until = None
        return bool(self._fragments) or self._discarded_until is not None

    def clear(self) -> None:
        self._fragments.clear()
        self._size = 0
        self._discarded_until = None


def _begins(coverage: Coverage) -> Instant:
    assert coverage.from_ is not None
    return coverage.from_


def _size(coverage: Coverage) -> int:
    return len(coverage.changes) or 1


#: Maximum time by which a fragment may be dated ahead of both `known` and the current time.
LONGEST_LEAP = timedelta(days=1)


class Gap(Struct, frozen=True):
    """An interval `(after, ends]` that no document covers.

    `cure` states how the Source can close such gaps, if known.
    """

    after: Instant
    ends: Instant
    cure: str = ""


class SyncFrontiers:
    """The frontiers of one set of resources.

    At most `hold` changes from fragments beyond a gap are kept.
    """

    def __init__(
        self, progress: Progress | None, hold: int, last_list: ComparedList | None = None
    ) -> None:
        self._known: Frontier | None = None
        self._confirmed = Frontier.at(EARLIEST)
        self._through: Instant | None = None
        #: The last `confirmed` up to which all changes were applied.
        self._durable = Frontier.at(EARLIEST)
        #: The fragments beyond a gap.
        self.held = ReorderBuffer(hold)
        self.uncovered_gap: Gap | None = None
        #: The instant after which a list lacked known changes, if everything has to be compared.
        self.lost_since: Instant | None = None
        #: The end of the latest coarse datetime, such as a date (`Progress.coarse_until`).
        self.coarse_until = EARLIEST
        #: The fingerprint of the last Change List that was read.
        self.prefix: ListFingerprint | None = None
        #: The last Resource List that was compared, or the dump if the Source offers no list.
        self.last_list = self._durable_last_list = last_list
        #: The known closed lists.
        self.closed = self._durable_closed = KnownLists()
        if progress is not None:
            self.last_list = self._durable_last_list = progress.last_list
            self.closed = self._durable_closed = progress.closed
            self.prefix = progress.prefix
            self.coarse_until = progress.coarse_until
            self._through = progress.through
            seen, running = progress.seen, progress.running
            # Changes at exactly that instant are not new when a hub repeats them.
            is_same = progress.through == progress.confirmed
            self._known = Frontier.at(progress.through, seen if is_same else ())
            self._confirmed = Frontier.at(progress.confirmed, seen, running=running)
            self._durable = copy(self._confirmed)

    @property
    def known(self) -> Instant | None:
        """The instant up to which all changes are known; None before the first baseline."""
        return self._known.instant if self._known else None

    @property
    def is_first(self) -> bool:
        """Whether the copy has never been complete, so that there is no T yet."""
        return self._through is None

    @property
    def confirmed(self) -> Instant:
        """The instant up to which all changes are known from the Source's documents."""
        return self._confirmed.instant

    @property
    def frontier(self) -> Frontier:
        """The frontier that the next document must join."""
        return self._confirmed

    def covers(self, at: Instant) -> bool:
        """Return whether a list of all resources as of `at` can contain nothing new."""
        return at < self.uncovered_gap.ends if self.uncovered_gap else at <= self.confirmed

    def may_lack_known(self, at: Instant) -> bool:
        """Return whether known changes may have happened after `at`, despite their datetimes."""
        return at < min(self.coarse_until, self.confirmed)

    def has_changes_at(self, at: Instant) -> bool:
        """Return whether documents may have listed changes dated `at`."""
        return at < self.confirmed or (at == self.confirmed and bool(self._confirmed.seen))

    @property
    def has_older_list(self) -> bool:
        """Whether the last list or dump of all resources is older than one compared before."""
        return self.last_list is not None and self.last_list.is_older

    @property
    def has_push_gap(self) -> bool:
        """Whether fragments are held because they begin after `known`."""
        return self.held.is_ahead_of(self.known or EARLIEST)

    # Push

    def push(self, coverage: Coverage, today: Instant | None = None) -> list[Change]:
        """Return the new changes of a fragment, or hold it if it does not join.

        `today` is the time by the Destination's clock, which may be wrong.
        """
        if coverage.from_ is None:
            # It proves no coverage, so no frontier advances, but its changes are applied.
            return self._known.fresh(coverage) if self._known else []
        if self._known is None or not coverage.reaches(self._known.instant):
            self.held.add(coverage)
            return []
        if self._leaps(self._known, coverage, today):
            self.held.discard(coverage)
            return []
        undecided = self._known.undecided(coverage)
        return undecided + self._known.learn(coverage) + self.join_held()

    def _leaps(self, known: Frontier, coverage: Coverage, today: Instant | None) -> bool:
        """Return whether a fragment is dated too far ahead to be applied without a list."""
        until = coverage.until
        latest = postponed(max(known.instant, today or EARLIEST), LONGEST_LEAP)
        return until is not None and until > latest

    def join_held(self) -> list[Change]:
        """Return the changes of held fragments that now join."""
        fresh: list[Change] = []
        while self._known and (held := self.held.pop_joining(self._known.instant)) is not None:
            fresh += self._known.learn(held)
        return fresh

    # Pull and baseline

    def pull(self, coverage: Coverage) -> list[Change]:
        """Advance by a Change List that joins `confirmed`, and return its changes since then.

        They include changes that push has already announced, because push may have been wrong, and
        changes are idempotent. Call `join_held` next.
        """
        assert self._known is not None
        fresh = self._confirmed.learn(coverage)
        coarse = (change.stated_at for change in fresh if change.stated_at.fold)
        self.coarse_until = max([self.coarse_until, *map(end_of_unit, coarse)])
        if coverage.until is not None:
            self._known.advance(coverage.until, coverage.changes)
        return fresh

    def baseline(self, at: Instant) -> None:
        """Advance to `at` after a comparison with the whole set. Call `join_held` next."""
        self.advance(at, over=False)
        if self.uncovered_gap is not None and at >= self.uncovered_gap.ends:
            if self._prefix_before_gap is not None:
                self.prefix = None
            self.uncovered_gap = None

    def supersede_prefix(self) -> None:
        """Force a full comparison with the next Change List, even in the next run."""
        self.prefix = _superseded(self.prefix)

    def skip_gap(self, begins: Instant, cure: str = "") -> None:
        """Advance to where the Source's documents begin, and record the uncovered gap before it."""
        before = self._confirmed.joint if self._confirmed.running else self.confirmed
        after = self.uncovered_gap.after if self.uncovered_gap else before
        self.uncovered_gap = Gap(after, begins, cure)
        self.advance(begins)

    def begin(self, begins: Instant) -> None:
        """Begin the first copy where the earliest list begins.

        T never precedes that instant, even while a change at that instant is pending. Otherwise the
        next run would find a gap that no document covers.
        """
        self.advance(begins)
        self._durable = Frontier.at(begins)
        self._through = begins

    def advance(self, begins: Instant, *, over: bool = True) -> None:
        """Advance to where the Source's documents begin."""
        self._known = self._known or Frontier.at(begins)
        self._known.advance(begins)
        self._confirmed.advance(begins, over=over)

    def reset(self, to: Instant | None = None) -> None:
        """Forget everything, and restart at an instant, if given.

        Called if the Source's clock has gone back, or if a first copy restarts with a dump.
        """
        self._known = None if to is None else Frontier.at(to)
        self._confirmed = Frontier.at(to or EARLIEST)
        self._durable = Frontier.at(to or EARLIEST)
        self._through = to
        self.held.clear()
        self.uncovered_gap = None
        self.prefix = None
        self.last_list = self._durable_last_list = None
        self.closed = self._durable_closed = KnownLists()

    def know_closed(self, known: KnownLists) -> None:
        """Record the closed lists that are known after a comparison.

        If this run ends before the deletions of the comparison are applied, the next run has to
        reread the same lists.
        """
        self.closed = known
        if known.compared is not None:
            stored = self._durable_closed
            through = stored.through and min(stored.through, known.through or stored.through)
            self._durable_closed = replace(stored, through=through, compared=known.compared)

    # T

    def progress(self, low_water: Instant | None) -> Progress | None:
        """Return the progress to store; None while there is no T.

        `low_water` is the instant of the earliest pending change. It is `EARLIEST` while a resource
        from a baseline is pending, because that resource may have changed at any time.
        """
        if self._known is not None:
            self._through = self._reached(low_water)
            self._durable = self._confirmed_and_applied(low_water)
            self._durable_last_list = self._last_list_applied(low_water)
            self._durable_closed = self._closed_applied(low_water)
        return self.progress_at(low_water)

    def progress_at(self, low_water: Instant | None) -> Progress | None:
        """Return the progress for a low-water mark, without advancing T."""
        through = self._reached(low_water)
        if through is None:
            return None
        durable = self._confirmed_and_applied(low_water)
        last_list = self._last_list_applied(low_water)
        if durable.instant > through:
            # The next run has to find the gap again.
            gap = self.uncovered_gap
            confirmed = min(through, gap.after) if gap else through
            last_list = last_list and replace(last_list, fingerprint=None)
            return Progress(
                through,
                confirmed,
                prefix=self._prefix_before_gap,
                last_list=last_list,
                coarse_until=self.coarse_until,
            )
        if self.lost_since is not None:
            # The next run has to detect the loss again.
            return Progress(
                through,
                min(durable.instant, self.lost_since),
                prefix=self._stored_prefix(low_water),
                last_list=last_list,
                coarse_until=self.coarse_until,
            )
        return Progress(
            through,
            durable.instant,
            tuple(durable.seen.elements()),
            durable.running,
            self._stored_prefix(low_water),
            last_list=last_list,
            closed=self._closed_applied(low_water),
            coarse_until=self.coarse_until,
        )

    @property
    def _prefix_before_gap(self) -> ListFingerprint | None:
        """The fingerprint of the last list, if no list was read since the gap was found."""
        prefix, gap = self.prefix, self.uncovered_gap
        return prefix if prefix and gap and prefix.before <= gap.after else None

    def _stored_prefix(self, low_water: Instant | None) -> ListFingerprint | None:
        """Return the last list's fingerprint, superseded unless all its changes are applied.

        In both cases, it shows whether the next list has lost an entry.
        """
        is_applied = low_water is None or low_water > self.confirmed
        return self.prefix if is_applied else _superseded(self.prefix)

    def _last_list_applied(self, low_water: Instant | None) -> ComparedList | None:
        return self._durable_last_list if low_water == EARLIEST else self.last_list

    def _closed_applied(self, low_water: Instant | None) -> KnownLists:
        is_applied = low_water is None or low_water > self.confirmed
        return self.closed if is_applied else self._durable_closed

    def _reached(self, low_water: Instant | None) -> Instant | None:
        """Return T, which never decreases; None if there is none yet."""
        if self._known is None or low_water == EARLIEST:
            return self._through
        reached = self.uncovered_gap.after if self.uncovered_gap else self._known.instant
        if low_water is not None:
            reached = min(reached, low_water - MICROSECOND)
        return max(self._through or reached, reached)

    def _confirmed_and_applied(self, low_water: Instant | None) -> Frontier:
        """Return the frontier that the next run may consider confirmed.

        Documents may list changes dated before T, because they are duplicates or a hub withheld
        them. T does not wait for these, but after a crash they must be read again.
        """
        if low_water is None or low_water > self.confirmed:
            return copy(self._confirmed)
        durable = copy(self._durable)
        if low_water > EARLIEST:
            durable.advance(low_water - MICROSECOND)
        return durable


def _superseded(prefix: ListFingerprint | None) -> ListFingerprint | None:
    return None if prefix is None else replace(prefix, is_superseded=True)
