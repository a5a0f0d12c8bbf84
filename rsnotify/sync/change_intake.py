"""Change Lists and packages on their way to the worklist: what of them has to be applied.

Most lists extend the one that was read before, and what they add is applied by its datetime. All
entries of a list are compared with what is held where datetimes prove too little:

- it is the first list after a baseline: the `at` of a Resource List may be wrong, or be the time at
  which the list was finished;
- the part that was read before has changed (`prefix`), or what was read before is not known;
- its datetimes contradict each other, or the time at which it was sent;
- it ends before what the lists said before (`backwards`).

Comparing costs a look-up for each resource, and a request only where the entry contradicts what is
held (`CheckMethod.COMPARE`).
"""

from __future__ import annotations

from collections import deque

from msgspec import structs

from rsnotify.format.coverage import Change, CheckMethod, Coverage
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Resource
from rsnotify.sync.actions import Fetch
from rsnotify.sync.clock_regression import ClockRegressionDetector
from rsnotify.sync.frontiers import SyncFrontiers
from rsnotify.sync.list_fingerprint import ListFingerprint, prefix_of
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import PendingChanges
from rsnotify.sync.reduction import reduce
from rsnotify.sync.unconfirmed import Denied, UnconfirmedChanges

#: How many packages are remembered; what is forgotten is read once more.
_KEPT = 50_000
#: How many versions of the list of the present are remembered by their fingerprints.
_REPLICAS = 8


class ChangeIntake:
    """Adds to the worklist what Change Lists and packages of Change Dumps say.

    Args:
        knowledge: What is known.
        worklist: Where changes wait to be applied.
        provisional: What was pushed and no list has confirmed.
        pace: How many changes may wait for later ones of the same resource.
    """

    def __init__(
        self,
        knowledge: SyncFrontiers,
        worklist: PendingChanges,
        provisional: UnconfirmedChanges,
        pace: Pace,
    ) -> None:
        self._knowledge = knowledge
        self._worklist = worklist
        self._provisional = provisional
        self._park = pace.hold
        self._until: tuple[str, Instant | None] | None = None
        self._asked = 0.0
        #: The fingerprints of the lists that were read last. Replicas may take turns.
        self._read: deque[ListFingerprint] = deque(maxlen=_REPLICAS)
        if knowledge.prefix is not None:
            self._read.append(knowledge.prefix)
        #: What the lists of the present say of the time of the Source.
        self.backwards = ClockRegressionDetector(pace)
        #: By URI, the packages that were read last, as their dump listed them.
        self.packages: dict[str, Resource] = {}
        #: Whether there was something later than all before, since this was last unset.
        self.news = False

    def begin(self, now: float) -> None:
        """Note that a pull begins."""
        self._asked = now

    def take(
        self, asked: Fetch, coverage: Coverage, now: float, *, present: bool, more: bool
    ) -> int:
        """Add what is new in a document that joins what is confirmed.

        Args:
            asked: What asked for it.
            coverage: What it covers.
            now: The time.
            present: Whether it is a list that the Source keeps up to date.
            more: Whether other documents are about to follow.

        Returns:
            How many changes were new.
        """
        knowledge = self._knowledge
        before = knowledge.frontier.instant
        coverage = self._believed(asked, coverage)
        has_to_compare = self._has_to_compare if present else self._has_to_compare_past
        compare = has_to_compare(asked, coverage, now)
        new = knowledge.pull(coverage)
        told = coverage.changes if compare else new
        reduced = reduce(told, ordered=coverage.ordered, compare=compare, from_=coverage.from_)
        # With more lists to come, a resource may change once more: one GET will do. A package
        # brings what it has.
        parked = more and asked.package is None and self._worklist.parked < self._park
        for uri, change in reduced.latest.items():
            self._worklist.add(
                self._checked(_unless_old(change, before)), reduced.since[uri], parked=parked
            )
        self._verify(self._provisional.confirm(coverage, reduced.latest, before))
        self._push(knowledge.join_held(), now)
        if asked.package is not None:
            self._note_read(asked.uri, asked.package)
        self.news = self.news or (bool(new) and knowledge.confirmed > before)
        return len(new)

    def forget(self) -> None:
        """Forget the lists that were read, as everything is compared."""
        self._read.clear()
        self._provisional.clear()

    def end(self, now: float) -> None:
        """Verify what the lists should have confirmed, now that they are read to their end."""
        self._verify(self._provisional.lists_end(self._knowledge.confirmed, self._asked, now))

    def compared(self, at: Instant, now: float) -> None:
        """Note that the whole set as of an instant was compared."""
        self._knowledge.baseline(at)
        self._read.clear()
        self._provisional.compared(at)
        self._push(self._knowledge.join_held(), now)

    def _verify(self, denied: list[Denied]) -> None:
        """Fetch the resources of changes that no list has confirmed."""
        for change, pushed_at in denied:
            self._worklist.add(change, since=min(change.at, pushed_at))

    def _push(self, changes: list[Change], now: float) -> None:
        self._provisional.add(changes, now)
        for change in changes:
            self._worklist.add(change)

    def _has_to_compare(self, asked: Fetch, coverage: Coverage, now: float) -> bool:
        """Return whether datetimes do not prove which entries of a list are old."""
        knowledge = self._knowledge
        confirmed = knowledge.confirmed
        prefix = prefix_of(asked.uri, coverage, confirmed)
        full = knowledge.prefix
        has_lost = full is not None and prefix is not None and full.has_lost(prefix, coverage)
        goes_back = self.backwards.look(coverage, knowledge.frontier, now, has_lost=has_lost)
        if prefix is None:
            return goes_back
        known = [last for last in self._read if last.before >= confirmed]
        if not any(last.is_same_as(prefix) for last in known):
            goes_back = goes_back or coverage.contradictory
        compare = goes_back or not any(last.is_extended_by(prefix, coverage) for last in known)
        if not has_lost:  # else the next run has to see it, too
            knowledge.prefix = prefix
        self._read.append(prefix)
        return compare

    def _has_to_compare_past(self, _asked: Fetch, coverage: Coverage, _now: float) -> bool:
        """Return the same for a closed list or a package.

        Its URI is another than while it was open.
        """
        knowledge = self._knowledge
        full, frontier, until = knowledge.prefix, knowledge.frontier, coverage.until
        if full is None:
            self.backwards.look_at_past(coverage, frontier)
            return coverage.contradictory
        if coverage.from_ != full.from_ or until is None or until < full.before:
            is_missed = full.is_missed_by(coverage)
            self.backwards.look_at_past(coverage, frontier, has_lost=is_missed)
            return coverage.contradictory or is_missed
        prefix = prefix_of(full.uri, coverage, knowledge.confirmed)
        has_lost = prefix is not None and full.has_lost(prefix, coverage)
        self.backwards.look_at_past(coverage, frontier, has_lost=has_lost)
        is_extended = prefix is not None and full.is_extended_by(prefix, coverage)
        return coverage.contradictory or not is_extended

    def _checked(self, change: Change) -> Change:
        """Compare also what push announced otherwise long ago, with a later datetime."""
        if change.check is CheckMethod.DATE and self._provisional.is_overdue(
            change.uri, self._asked
        ):
            return structs.replace(change, check=CheckMethod.COMPARE)
        return change

    def _note_read(self, uri: str, package: Resource) -> None:
        self.packages.pop(uri, None)
        self.packages[uri] = package
        if len(self.packages) > _KEPT:
            del self.packages[next(iter(self.packages))]

    def _believed(self, asked: Fetch, coverage: Coverage) -> Coverage:
        """Return a list that is rewritten, and so not closed, without its `until`.

        A Source that stamps it with the present may append an earlier change a moment later.
        """
        if not coverage.closed:
            return coverage
        before, self._until = self._until, (asked.uri, coverage.until)
        if before is None or before[0] != asked.uri or before == self._until:
            return coverage
        latest = max((change.at for change in coverage.changes), default=coverage.from_)
        return structs.replace(coverage, until=latest, closed=False)


def _unless_old(change: Change, before: Instant) -> Change:
    """Take nothing from a package that is out of order.

    Something later may have been applied, and forgotten, already: a deletion. A GET tells.
    """
    return structs.replace(change, package=None) if change.at < before else change
