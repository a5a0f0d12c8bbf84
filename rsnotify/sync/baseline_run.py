"""A baseline that is under way: reads its documents, and adds the differences to the pending."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from rsnotify.format.coverage import EARLIEST, Change, CheckMethod
from rsnotify.format.datetimes import Instant
from rsnotify.format.digest import agree
from rsnotify.format.model import Document, Resource
from rsnotify.format.uris import normalize
from rsnotify.format.vocabulary import ChangeType
from rsnotify.sync.actions import BeginBaseline, ComparedList, Fetch, FindUnlisted
from rsnotify.sync.baseline import Baseline, ListedResources
from rsnotify.sync.change_intake import ChangeIntake
from rsnotify.sync.sync_state import SyncState
from rsnotify.sync.unconfirmed_changes import fetching, verification


class BaselineRun:
    """One run of a `Baseline`, which begins at once.

    `capability_list` has led to its documents; `is_routine` says that the copy is compared only
    because that is due.

    In a routine comparison, what the Resource List lists need not be true any more. Where the copy
    differs from the list that was compared last, changes were applied since, perhaps dated before
    its `at`: the resource is fetched if it is stored, and else left alone. If the copy `has_lost`
    resources, the list describes what they have to be.

    `dump_at` is the instant of the Resource Dump from which the copy was made. Resources that a
    list of that instant lacks are fetched, as either of the two may be wrong.
    """

    def __init__(
        self,
        state: SyncState,
        intake: ChangeIntake,
        baseline: Baseline,
        capability_list: str | None,
        *,
        is_routine: bool,
        has_lost: bool = False,
        dump_at: Instant | None = None,
    ) -> None:
        self._state = state
        self._intake = intake
        self._next: Fetch | FindUnlisted | None = None
        self._comparing: ListedResources | None = None
        #: The listed resources that are pending.
        self._still_listed: set[str] = set()
        #: Whether something was found that was not known before.
        self._has_found = False
        self.baseline = baseline
        self.capability_list = capability_list
        self.is_routine = is_routine
        self._has_lost = has_lost
        self._dump_at = dump_at
        #: Whether the Source has begun to offer a Resource Dump since this began.
        self.has_new_dump = False
        self._begin_root()
        state.actions.append(baseline.current)

    @property
    def current(self) -> Fetch:
        return self.baseline.current

    def _begin_root(self) -> None:
        root = self.baseline.root
        self._state.actions.note(f"baseline from the {root.kind} {root.uri}")
        self._state.actions.append(BeginBaseline())
        #: Whether stored datetimes were compared with the time of the first list.
        self.are_datetimes_checked = False

    @property
    def is_repeated(self) -> bool:
        """Whether the Resource List is the one that was compared last, and has nothing new.

        While a gap is uncovered, it was compared for that already, and only a newer one helps.
        """
        read, known = self.baseline.resource_list, self._state.frontiers.last_list
        if self._has_lost or read is None or read.fingerprint is None or known is None:
            return False
        is_expected = self.is_routine or self._state.frontiers.uncovered_gap is not None
        return is_expected and read.fingerprint == known.fingerprint

    @property
    def is_in_package(self) -> bool:
        """Whether the resources that are being compared are those of a package."""
        return self._comparing is not None and self._comparing.package is not None

    def read(self, document: Document, sent: Instant | None) -> ListedResources | None:
        """Return the resources of the document requested by `current`, if it has any.

        They have to be compared with the copy; `add_differing` follows.
        """
        self._comparing = self.baseline.read(document, sent)
        return self._comparing

    def advance(self) -> bool:
        """Decide what to request next; return False if nothing is left.

        The request is made by `proceed`, as most of the last document is to be applied before.
        """
        following = self.baseline.next()
        if following is not None:
            if following is self.baseline.root:
                self._begin_root()
            self._next = following
        elif self.baseline.complete:
            self._next = FindUnlisted(self.baseline.at)
        else:
            return False
        return True

    def proceed(self) -> None:
        """Request the next document once most of the last one is applied.

        So memory stays flat, and at most two packages are needed at once. Before another root is
        compared, everything from the first is applied: it need not be fetched then. Nor can what a
        dump has, and the list lacks, be found before it is stored.
        """
        state = self._state
        is_for_unlisted = isinstance(self._next, FindUnlisted) and self._dump_at is not None
        is_last = self._next is self.baseline.root or is_for_unlisted
        limit = 0 if is_last else state.pace.in_flight
        if self._next is not None and state.pending.untried <= limit:
            if isinstance(self._next, Fetch) and self._next.package is not None:
                state.settled = False  # a package with something new is no routine
            state.actions.append(self._next)
            self._next = None

    @property
    def is_dump_better(self) -> bool:
        """Whether an empty copy is filled resource by resource, and a dump has come since."""
        state = self._state
        if self._next is None or self.baseline.by_dump or not self.has_new_dump:
            return False
        return state.frontiers.known is None and state.pending.untried > state.pace.in_flight

    def add_differing(
        self,
        resources: Iterable[Resource],
        absent: Iterable[Resource],
        unproven: Iterable[Resource] = (),
        unchecked: Iterable[Resource] = (),
    ) -> bool:
        """Add the resources of the last comparison that are stored differently, or not at all.

        Those that are `unproven` are requested, and those that are `unchecked` only if they are
        pending. Return whether a comparison was under way.
        """
        listed, self._comparing = self._comparing, None
        if listed is None:
            return False
        pending = self._state.pending
        self._still_listed = {uri for uri in self._still_listed if uri in pending}
        if watched := {change.uri: change for change in pending.watched}:
            self._still_listed.update(_still_listed(watched, listed.resources))
        for resource in resources:
            self._add(resource, self._changed(resource, listed), is_news=True)
        for resource in unproven:
            self._add(resource, self._as_listed(resource, listed), is_news=False)
        self._still_listed.update(one.uri for one in unchecked if one.uri in pending)
        for resource in absent:
            self._add(resource, self._missed(resource, listed), is_news=True)
        return True

    def _add(self, resource: Resource, change: Change | None, *, is_news: bool) -> None:
        pending, uri = self._state.pending, normalize(resource.uri)
        if change is not None and not (self.is_repeated and uri in pending):
            is_new = pending.add(change, since=EARLIEST)
            self._has_found = self._has_found or (is_new and is_news)
        if uri in pending:
            self._still_listed.add(uri)  # it may turn out to be missing before all is compared

    def _changed(self, resource: Resource, listed: ListedResources) -> Change:
        """Return the change of a resource that is stored differently."""
        change = self._as_listed(resource, listed)
        if self.is_repeated:
            # No later than what is confirmed: the list says nothing of what was changed since.
            return fetching(replace(change, at=min(change.at, self._state.frontiers.confirmed)))
        return change

    def _missed(self, resource: Resource, listed: ListedResources) -> Change | None:
        """Return the change of a resource that is not stored.

        If the lists of changes go on after the Resource List, it may have been deleted since;
        unless they announced it, and its server lacks it.
        """
        change = self._as_listed(resource, listed)
        if self.is_repeated:
            return None
        if self.is_routine and listed.at < self._state.frontiers.confirmed:
            is_announced = self._state.pending.is_announced(change.uri)
            kind = ChangeType.UPDATED if is_announced else ChangeType.DELETED
            return fetching(replace(change, change=kind))
        return change

    def _as_listed(self, resource: Resource, listed: ListedResources) -> Change:
        # Resources changed or deleted since an older dump was made would come back from it.
        package = listed.package if listed.at >= self._state.frontiers.confirmed else None
        # No later than what is confirmed afterwards: only push has changes later than that.
        at = min(listed.at, self.baseline.at)
        return Change(normalize(resource.uri), ChangeType.UPDATED, at, resource, package)

    def add_unlisted(self, uris: Iterable[str], now: float) -> bool:
        """Add deletions of the resources that are stored but not listed, and end the comparison.

        Return whether it settles all missing resources.
        """
        pending, at = self._state.pending, self.baseline.at
        repeated = self.is_repeated
        is_new_list = self._record_list()
        if repeated:
            self._intake.closed.begin_period()
            return pending.drop_unlisted(EARLIEST, self._still_listed)
        for uri in uris:
            deletion = Change(uri, ChangeType.DELETED, at, Resource(uri))
            if self._dump_at is not None and at <= self._dump_at:
                deletion = verification(deletion, at)
            self._has_found = pending.add(deletion, since=EARLIEST) or self._has_found
        if is_new_list and self._has_found:
            self._intake.has_news = True
        self._intake.end_baseline(at, now)
        is_settled = pending.drop_unlisted(at, self._still_listed)
        frontiers = self._state.frontiers
        if not is_settled and frontiers.last_list is not None:
            # The next comparison with the same list has to settle the others.
            frontiers.last_list = replace(frontiers.last_list, fingerprint=None)
        return self.baseline.complete and is_settled

    def record_old_dump(self) -> None:
        """Record whether the only document, a dump, is older than what was compared before."""
        at, frontiers = self.baseline.old_dump_at, self._state.frontiers
        if at is not None:
            known = frontiers.last_list or ComparedList()
            frontiers.last_list = replace(known, is_older=at < frontiers.confirmed)

    def _record_list(self) -> bool:
        """Record which Resource List was compared; return whether it is another one than before."""
        frontiers = self._state.frontiers
        known, read = frontiers.last_list or ComparedList(), self.baseline.resource_list
        if read is None:
            frontiers.last_list = replace(known, fingerprint=None, is_older=False)
        elif known.at is None or (read.at is not None and read.at >= known.at):
            frontiers.last_list = read
        else:
            frontiers.last_list = replace(read, at=known.at, is_older=read.at is not None)
        if read is None or read.fingerprint != known.fingerprint:
            return True
        return read.at is not None and read.at != known.at


def _still_listed(watched: Mapping[str, Change], listed: Iterable[Resource]) -> Iterator[str]:
    """Yield the URIs of watched resources that a list still announces as they were announced.

    The copy may have such a resource as it is listed, from before it was missing. If the list has
    another hash, what was announced before is no longer expected.
    """
    for resource in listed:
        change = watched.get(normalize(resource.uri))
        if change is None:
            continue
        if (
            change.check is CheckMethod.FETCH
            or agree(change.resource.hash, resource.hash) is not False
        ):
            yield change.uri
