"""Decides which entries of Change Lists and packages to apply.

Most lists extend the previous one, and their datetimes show which entries are new. If they do not,
all entries of a list are compared with the stored versions:

- The list is the first one after a baseline, because the `at` of a Resource List may be wrong, or
  may be the time at which the list was completed.
- The part of the list that was read before has changed, or is unknown (`ListFingerprint`).
- The list's datetimes contradict each other, or the time at which the list was sent.
- The list ends before earlier lists did (`ClockRegressionDetector`).

A comparison costs one look-up per resource, and a request only if the entry contradicts the stored
version (`CheckMethod.COMPARE`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from rsnotify.format.coverage import EARLIEST, Change, CheckMethod, Coverage
from rsnotify.format.datetimes import LATEST, Instant
from rsnotify.format.model import ChangeType, Resource
from rsnotify.sync.actions import Fetch
from rsnotify.sync.clock_regression import ClockRegressionDetector
from rsnotify.sync.closed_lists import ClosedLists
from rsnotify.sync.list_fingerprint import ListFingerprint, fingerprint_of
from rsnotify.sync.reduction import reduce_changes
from rsnotify.sync.sync_state import SyncState
from rsnotify.sync.unconfirmed_changes import Verification, verification

#: Maximum number of packages to remember. Any other is read again.
_MAX_PACKAGES = 50_000
#: Maximum number of versions of a list to remember, because replicas may alternate.
_MAX_VERSIONS = 8


class ChangeIntake:
    """Adds the entries of Change Lists and packages of Change Dumps to the pending changes."""

    def __init__(self, state: SyncState) -> None:
        self._frontiers = state.frontiers
        self._pending = state.pending
        self._unconfirmed = state.unconfirmed
        self._last_closed: tuple[str, Instant | None] | None = None
        #: The fingerprints of the last lists that were read.
        self._read: deque[ListFingerprint] = deque(maxlen=_MAX_VERSIONS)
        if self._frontiers.prefix is not None:
            self._read.append(self._frontiers.prefix)
        #: When the current or last pull or baseline began.
        self.requested = 0.0
        self.clock = ClockRegressionDetector(state.pace)
        #: The entries of the last packages that were read, by URI.
        self.packages: dict[str, Resource] = {}
        self.closed = ClosedLists(state.frontiers.closed)
        self._has_reread = False
        #: The fingerprints of the last Resource Lists that were compared.
        self.compared: deque[bytes | None] = deque(maxlen=_MAX_VERSIONS)
        #: Whether anything new was read since the last reset.
        self.has_news = False
        self._news_through = EARLIEST

    def add(
        self,
        fetch: Fetch,
        coverage: Coverage,
        now: float,
        *,
        is_open: bool,
        more: bool,
        again: bool,
    ) -> int:
        """Add the new changes of a document that joins `confirmed`, and return their number.

        `is_open` means that the Source keeps the list up to date, and `more` that other documents
        follow. `again` means that closed lists are reread. The entries of a list that has changed,
        and of all later lists, are then compared with the copy.
        """
        frontiers = self._frontiers
        before = frontiers.frontier.instant
        coverage = self._without_rewritten_until(fetch, coverage)
        assert coverage.until is not None  # it joins
        read = list(self._read)
        if is_open:
            compare = self._must_compare_open(fetch, coverage, now)
        else:
            compare = self._must_compare_closed(coverage)
            if again and not any(known.has_all_of(coverage) for known in read):
                self._has_reread = True
        # A closed list that reaches beyond `before` is read for the first time.
        goes_on = not is_open and coverage.until > before
        undated = list(filter(_is_undated, coverage.changes)) if goes_on else []
        compare = compare or bool(undated) or (again and self._has_reread)
        new = frontiers.pull(coverage)
        listed = coverage.changes if compare else new
        reduced = reduce_changes(
            listed, ordered=coverage.ordered, compare=compare, from_=coverage.from_
        )
        # If more lists follow, a resource may change again, so waiting saves a GET. A package
        # contains the content, unless it is reread.
        has_content = fetch.package is not None and not again
        parked = more and not has_content
        unproven = {uri for uri, change in reduced.latest.items() if _is_unproven(change, before)}
        if unproven:
            unproven &= {change.uri for change in (*_appended(coverage, read), *undated)}
        for uri, change in reduced.latest.items():
            change = self._checked(_from_package_if_new(change, before), coverage)
            if uri in unproven:
                change = structs.replace(change, check=CheckMethod.FETCH)
            self._pending.announce(change, reduced.since[uri], parked=parked)
        if not more:  # otherwise a later document may supersede the entries
            self._correct_watched(coverage, reduced.latest)
        self._announce_verifications(self._unconfirmed.confirm(coverage, reduced.latest, before))
        self._join_held(now)
        if fetch.package is not None:
            self._remember(fetch.uri, fetch.package)
        # A baseline without `at` may go back to an instant since which everything was read before.
        if new and frontiers.confirmed > max(before, self._news_through):
            self.has_news, self._news_through = True, frontiers.confirmed
        return len(new)

    def check_dump(self, ends: Instant, now: float, sent: Instant | None) -> None:
        """Check whether an open Change Dump, whose packages end at `ends`, lacks known packages."""
        coverage = Coverage(None, ends, closed=False, ordered=True, changes=(), sent=sent)
        self.clock.check_open(coverage, self._frontiers.frontier, now)

    def record_closed(
        self, members: Sequence[Resource], *, has_reread: bool, has_skipped: bool
    ) -> None:
        """Record the closed lists that a complete pull has read."""
        prefix = self._frontiers.prefix
        begins = None if prefix is None else prefix.from_
        self.closed.record(members, begins, has_reread=has_reread, has_skipped=has_skipped)
        self._frontiers.closed = self.closed.known
        self._has_reread = False

    def _correct_watched(self, coverage: Coverage, latest: Mapping[str, Change]) -> None:
        """Retry unavailable resources whose entries were corrected without a new datetime."""
        watched = {change.uri for change in self._pending.watched} - latest.keys()
        listed = [change for change in coverage.changes if change.uri in watched]
        reduced = reduce_changes(listed, ordered=coverage.ordered, compare=True)
        for change in reduced.latest.values():
            if change.check is not CheckMethod.FETCH:
                self._pending.announce(change, since=LATEST)

    def reset(self) -> None:
        """Forget all lists, because everything is about to be compared."""
        self._read.clear()
        self.closed.reset()
        self._unconfirmed.clear()
        self._frontiers.lost_since = None
        self._news_through = EARLIEST

    def end(self, now: float, sent: Instant | None) -> None:
        """Verify changes that the lists, which were all read, should have confirmed.

        `sent` is the `Date` of the last response; None if it had none.
        """
        confirmed = self._frontiers.confirmed
        self._announce_verifications(
            self._unconfirmed.end_of_lists(confirmed, self.requested, now, sent)
        )

    def end_baseline(
        self, at: Instant, lists_all_until: Instant, now: float, *, deletes: bool
    ) -> None:
        """Record that the copy was compared with the whole set as of an instant.

        `lists_all_until` is the instant up to which the set certainly contains all changes, and
        `deletes` means that the comparison deletes resources.
        """
        self._frontiers.baseline(at)
        self.closed.cover(lists_all_until, at if deletes else None)
        self._frontiers.know_closed(self.closed.known)
        self.compare_next_list()
        for change in self._unconfirmed.remove_compared(at):
            # The resource may not exist, and an update may never be applied. A deletion that the
            # comparison has not superseded would be applied, although the copy is right.
            is_update = change.change is not ChangeType.DELETED
            if self._pending.holds(change) or (is_update and self._pending.backlog):
                self._announce_verifications([(verification(change, at), change.at)])
        self._join_held(now)

    def compare_next_list(self) -> None:
        """Force a full comparison with the next Change List, even if it was read before."""
        self._frontiers.supersede_prefix()
        self._supersede_read()

    def _supersede_read(self) -> None:
        superseded = [structs.replace(read, is_superseded=True) for read in self._read]
        self._read.clear()
        self._read.extend(superseded)

    def _announce_verifications(self, verifications: Iterable[Verification]) -> None:
        """Fetch the resources of changes that no list has confirmed."""
        for change, pushed_at in verifications:
            self._pending.announce(change, since=min(change.at, pushed_at))

    def _join_held(self, now: float) -> None:
        changes = self._frontiers.join_held()
        self._unconfirmed.add(changes, now)
        for change in changes:
            self._pending.announce(change, at_once=True)

    def _must_compare_open(self, fetch: Fetch, coverage: Coverage, now: float) -> bool:
        """Return whether to compare the entries of an open list with the copy.

        This is necessary if datetimes do not prove which entries are old.
        """
        frontiers = self._frontiers
        confirmed, last = frontiers.confirmed, frontiers.prefix
        prefix = fingerprint_of(fetch.uri, coverage, confirmed)
        has_lost = last is not None and last.has_lost(prefix, coverage)
        is_behind = self.clock.check_open(coverage, frontiers.frontier, now, has_lost=has_lost)
        frontiers.lost_since = self.clock.lost_since
        if last is not None and last.from_ < prefix.from_:
            self.closed.begin_period()
        known = [read for read in self._read if read.before >= confirmed]
        if not any(read.is_same_as(prefix) for read in known):
            is_behind = is_behind or coverage.contradictory
        compare = is_behind or not any(read.is_extended_by(prefix, coverage) for read in known)
        if compare and coverage.until is not None and coverage.until < confirmed:
            self._supersede_read()  # if it is an old copy, the next list corrects its entries
        if not has_lost:  # otherwise the next run has to detect the loss, too
            frontiers.prefix = prefix
        self._read.append(prefix)
        return compare

    def _must_compare_closed(self, coverage: Coverage) -> bool:
        """Return whether to compare the entries of a closed list or a package with the copy.

        The list had another URI while it was open.
        """
        frontier, last, until = self._frontiers.frontier, self._frontiers.prefix, coverage.until
        assert until is not None
        if frontier.undecided(coverage):
            return True
        if last is None or coverage.from_ != last.from_ or until < last.before:
            has_lost = last is not None and last.is_missed_by(coverage)
            has_changed = has_lost
        else:
            prefix = fingerprint_of(last.uri, coverage, self._frontiers.confirmed)
            has_lost = last.has_lost(prefix, coverage)
            has_changed = not last.is_extended_by(prefix, coverage)
        self.clock.check_closed(coverage, frontier, has_lost=has_lost)
        self._frontiers.lost_since = self.clock.lost_since
        return coverage.contradictory or has_changed

    def _checked(self, change: Change, coverage: Coverage) -> Change:
        """Mark a change for comparison with the copy if a pushed change is overdue.

        A recent pushed change after the end of the list is not covered by it, so datetimes decide.
        """
        if change.check is CheckMethod.FETCH or change.uri not in self._unconfirmed:
            return change
        if self._unconfirmed.is_overdue(change.uri, self.requested):
            return structs.replace(change, check=CheckMethod.COMPARE)
        is_covered = self._unconfirmed.is_covered(change.uri, coverage)
        return change if is_covered else structs.replace(change, check=CheckMethod.DATE)

    def _remember(self, uri: str, package: Resource) -> None:
        self.packages.pop(uri, None)
        self.packages[uri] = package
        if len(self.packages) > _MAX_PACKAGES:
            del self.packages[next(iter(self.packages))]

    def _without_rewritten_until(self, fetch: Fetch, coverage: Coverage) -> Coverage:
        """Treat a list as open if its `until` has changed since the last read.

        A Source that sets `until` to the current time may still append an earlier change.
        """
        if not coverage.closed:
            return coverage
        before, self._last_closed = self._last_closed, (fetch.uri, coverage.until)
        if before is None or before[0] != fetch.uri or before == self._last_closed:
            return coverage
        latest = max((change.at for change in coverage.changes), default=coverage.from_)
        return structs.replace(coverage, until=latest, closed=False)


def _appended(coverage: Coverage, read: Iterable[ListFingerprint]) -> Sequence[Change]:
    """Return the entries appended to a list since it was read, regardless of their datetimes.

    If the list has its newest entries first, they were inserted before all others.
    """
    changes = coverage.changes
    for before in sorted(read, key=lambda one: one.size, reverse=True):
        if before.from_ == coverage.from_:
            if before.is_appended_to(changes):
                return changes[before.size :]
            if before.is_appended_to(changes[::-1]):
                return changes[: len(changes) - before.size]
    return ()


def _is_unproven(change: Change, before: Instant) -> bool:
    """Return whether neither hash nor datetime shows if the copy already has a change."""
    if change.change is ChangeType.DELETED or change.package is not None:
        return False
    # A `lastmod` may be unchanged, or older than the change (core §7).
    is_old = change.at < before or (change.at == before and change.resource.datetime is None)
    return is_old and change.resource.hash is None


def _is_undated(change: Change) -> bool:
    return change.resource.changed_at is None and change.resource.hash is None


def _from_package_if_new(change: Change, before: Instant) -> Change:
    """Return an old change without its package, so that its content is fetched instead.

    A later change, such as a deletion, may already have been applied.
    """
    return structs.replace(change, package=None) if change.at < before else change
