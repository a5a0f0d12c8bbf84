"""Baselines: comparing the copy with the Source's whole set of resources (core §5.2, §10, §11).

    needed (`BaselinePolicy`)   an empty copy; a gap that no document covers; lists of changes that
                                stay broken; a Source that has moved, or whose clock went back
    due (`ComparisonSchedule`)  once per `Pace.compare`: some Sources never list their deletions

    BeginBaseline ──> root   each list: Compare, add the differences ──> the next list
                             read completely ──> FindUnlisted, add deletions ──> known = its `at`
                             broken, or a dump that is too old ──> the next root

The roots are the Resource List and the Resource Dump or, if these are broken, the latest archived
ones. Reading one of them completely is enough. An empty copy begins with the dump, because one
download costs less than a GET per resource. Any other copy begins with the list.

A `Baseline` decides which documents to read: it receives each requested document, and returns its
entries. A `BaselineRun` requests their comparison with the copy, and adds the differences to the
pending changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from math import inf

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import RsnotifyError, WrongDocument
from rsnotify.format.coverage import EARLIEST, Change, CheckMethod, is_ahead
from rsnotify.format.datetimes import Instant, end_of_unit, format_datetime
from rsnotify.format.hashes import agree
from rsnotify.format.links import resolve
from rsnotify.format.model import Capability, ChangeType, Document, Rel, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.uris import normalize
from rsnotify.sync.actions import BeginBaseline, DocumentKind, Fetch, FindUnlisted
from rsnotify.sync.change_intake import ChangeIntake
from rsnotify.sync.pace import Pace
from rsnotify.sync.progress import ComparedList
from rsnotify.sync.pull import DocumentQueue, fetch_member, resource_documents
from rsnotify.sync.reduction import fetching
from rsnotify.sync.sync_state import SyncState
from rsnotify.sync.unconfirmed_changes import verification

_DUMPS = (DocumentKind.RESOURCE_DUMP, DocumentKind.RESOURCE_DUMP_ARCHIVE)
_ARCHIVES = (DocumentKind.RESOURCE_LIST_ARCHIVE, DocumentKind.RESOURCE_DUMP_ARCHIVE)
_ARCHIVE_CAPABILITIES = (Capability.RESOURCE_LIST_ARCHIVE, Capability.RESOURCE_DUMP_ARCHIVE)
#: The capabilities of documents below each kind of root. A plain Sitemap has none (core §6.1).
_CAPABILITIES = {
    DocumentKind.RESOURCE_LIST: (Capability.RESOURCE_LIST, None),
    DocumentKind.RESOURCE_DUMP: (Capability.RESOURCE_DUMP,),
    DocumentKind.RESOURCE_LIST_ARCHIVE: (
        Capability.RESOURCE_LIST_ARCHIVE,
        Capability.RESOURCE_LIST,
    ),
    DocumentKind.RESOURCE_DUMP_ARCHIVE: (
        Capability.RESOURCE_DUMP_ARCHIVE,
        Capability.RESOURCE_DUMP,
    ),
}
_MANIFEST = (Capability.RESOURCE_DUMP_MANIFEST,)


class ListedResources(Struct, frozen=True):
    """Entries from one Resource List, or from the manifest of a `package`, as of `at`."""

    resources: tuple[Resource, ...]
    at: Instant
    package: str | None = None


class Baseline:
    """Decides which documents one baseline reads.

    Args:
        offer: The Source's offer. At least one document must list resources.
        at_least: The value of `at` if no document states one.
        dump_first: Whether to begin with the Resource Dump.
        is_old: Returns whether a document as of an instant contains nothing new. Such a dump is not
            read; a Resource List is read anyway, because it costs little.
        skips_old_index: Whether the members of an old Resource List Index are not read either.
        last_dump: The last dump that was read completely.
        until: The latest plausible `at`. A later one is replaced with `at_least`.
    """

    def __init__(
        self,
        offer: Offer,
        at_least: Instant,
        *,
        dump_first: bool = False,
        is_old: Callable[[Instant], bool] = lambda at: False,
        skips_old_index: bool = False,
        last_dump: Document | None = None,
        until: Instant | None = None,
    ) -> None:
        roots = resource_documents(offer)
        live = [root for root in roots if root.kind not in _ARCHIVES]
        archived = [root for root in roots if root.kind in _ARCHIVES]
        self._remaining = live[::-1] if dump_first else live
        self._archived = archived[::-1] if dump_first else archived
        self._at_least = at_least
        self._is_old = is_old
        self._skips_old_index = skips_old_index
        self._last_dump = last_dump
        self._until = until
        #: The `at` of the dump, even if the dump is too old to be read.
        self.dump_at: Instant | None = None
        #: The error that made a root incomplete; None if none did.
        self.error: RsnotifyError | None = None
        #: Whether the members of a Resource List Index were not read.
        self.is_index_skipped = False
        if not self._remaining:
            self._remaining, self._archived = self._archived, []
        self._begin(self._remaining.pop(0))

    def _begin(self, root: Fetch) -> None:
        #: The root that is being read, and the last requested document.
        self.root = self.current = root
        #: Whether all documents below the root have been readable so far.
        self.complete = True
        self._at: Instant | None = None
        #: The latest `lastmod` of all entries read.
        self._latest: Instant | None = None
        self._undated: Document | None = None
        #: The root, if it is a Resource List that was read.
        self.resource_list: ComparedList | None = None
        #: Whether the `at` of that list was later than its response.
        self.is_list_ahead = False
        self._queue = DocumentQueue([root])
        self._queue.pop()
        self._parts = 0
        #: The share of the lists below the root that were read; None if unknown.
        self.share_read: float | None = None

    @property
    def undated_dump(self) -> Document | None:
        """The dump that was read completely, if it has no `at`."""
        return self._undated if self.complete else None

    @property
    def at(self) -> Instant:
        """The instant from which to follow changes: the earliest `at` of all documents read."""
        return self._at or self._at_least

    @property
    def lists_all_until(self) -> Instant:
        """The instant up to which the documents certainly contain all changes.

        `at` may be too late, for example if the Source takes it when it has written the list, or if
        it was taken from HTTP.
        """
        return self.at if self._latest is None else min(self.at, self._latest)

    @property
    def by_dump(self) -> bool:
        return self.root.kind in _DUMPS

    def read(self, document: Document, sent: Instant | None = None) -> ListedResources | None:
        """Return the resources in the requested document; None if it only lists other documents.

        `sent` is the document's `Date`, if known.
        """
        package = self.current.package
        expected = _CAPABILITIES[self.current.kind] if package is None else _MANIFEST
        if document.capability not in expected:
            raise WrongDocument(f"a {self.root.kind} was expected, not {document.capability!r}")
        fingerprint = _fingerprint(document)
        is_dated_ahead = document.at is not None and is_ahead(document.at, sent)
        if is_dated_ahead:
            document = replace(document, at=sent)
        if self.current is self.root and self.root.kind is DocumentKind.RESOURCE_LIST:
            self.resource_list = ComparedList(fingerprint, document.at)
            self.is_list_ahead = is_dated_ahead
        following = document.link(Rel.NEXT) if package is None else None
        if following is not None:
            page = resolve(self.current.uri, following)
            self._queue.put_page(Fetch(page, self.root.kind))
        if document.capability in _ARCHIVE_CAPABILITIES:
            self._enqueue(_latest_member(document), packaged=False)
        elif self._has_nothing_new(document):
            self.complete = False
            self._queue.clear()
        elif document.index or document.capability == Capability.RESOURCE_DUMP:
            self._lower_at(document.at)
            self._enqueue(document.resources, packaged=not document.index)
        else:
            return self._listed(document, sent)
        return None

    def _has_nothing_new(self, document: Document) -> bool:
        if self._at is not None:
            return False
        if self.root.kind is DocumentKind.RESOURCE_LIST:
            is_old = document.at is None or self._is_old(document.at)
            self.is_index_skipped = self._skips_old_index and document.index and is_old
            return self.is_index_skipped
        if document.at is not None:
            self.dump_at = document.at
            return self._is_old(document.at)
        if document.capability != Capability.RESOURCE_DUMP or self._undated is not None:
            return False
        self._undated = document
        return document == self._last_dump

    def _listed(self, document: Document, sent: Instant | None) -> ListedResources:
        dated = [resource.lastmod for resource in document.resources if resource.lastmod]
        latest = max(dated, default=self._at_least)
        if dated:
            self._latest = max(latest, self._latest or latest)
        at = document.at or self._at or latest
        at = self._plausible(sent if sent is not None and is_ahead(at, sent) else at)
        self._lower_at(at)
        self._parts += 1
        is_last = document.link(Rel.NEXT) is None
        self.share_read = self._parts / (self._parts + len(self._queue)) if is_last else None
        package = self.current.package
        # An entry that states a change would not count as one of a list of resources.
        resources = tuple(
            one if one.change is None else replace(one, change=None) for one in document.resources
        )
        return ListedResources(resources, at, package.uri if package else None)

    def _enqueue(self, members: tuple[Resource, ...], *, packaged: bool) -> None:
        self._queue.put_first(
            fetch_member(self.current, member, packaged=packaged) for member in members
        )

    def _plausible(self, at: Instant) -> Instant:
        return self._at_least if self._until is not None and at > self._until else at

    def _lower_at(self, at: Instant | None) -> None:
        if at is not None:
            at = self._plausible(at)
            self._at = at if self._at is None else min(self._at, at)

    def skip(self, error: RsnotifyError) -> None:
        """Skip the requested document, because it is unusable.

        The remaining packages are still read, because fetching their resources one by one would
        cost more.
        """
        self.error = self.error or error
        self.complete = False
        if self.current.package is None:
            self._queue.clear()

    def next(self) -> Fetch | None:
        """Return the next document; None if a root was read completely or no root is left."""
        following = self._queue.pop()
        if following is not None:
            self.current = following
            return following
        if self.complete:
            return None
        if not self._remaining and self.error is not None:
            self._remaining, self._archived = self._archived, []
        if not self._remaining:
            return None
        self._begin(self._remaining.pop(0))
        return self.root


def _fingerprint(document: Document) -> bytes | None:
    """Return a fingerprint of a Resource List's first document, if it identifies the list."""
    if document.at is None and (document.index or document.link(Rel.NEXT) is not None):
        return None
    return blake2b(msgspec.msgpack.encode(document), digest_size=16).digest()


def _latest_member(archive: Document) -> tuple[Resource, ...]:
    members = archive.resources
    dated = [(member.at, index) for index, member in enumerate(members) if member.at]
    return (members[max(dated)[1]],) if dated else members[-1:]


class BaselineRun:
    """One run of a `Baseline`, which begins on construction.

    In a routine comparison, the Resource List may be out of date. If the same list was compared
    last time, differences result from changes applied since, perhaps dated before its `at`. A
    differing resource is then fetched if it is stored, and otherwise ignored.

    Args:
        state: The state of the follower.
        intake: The lists that were read.
        baseline: The documents to read.
        capability_list: The URI of the Capability List that led to the documents.
        is_routine: Whether the comparison runs only because it is due.
        has_lost: Whether the copy has lost resources, whose content the list describes.
        has_moved: Whether the resources may have new URIs since the last comparison.
        dump_at: The `at` of the Resource Dump from which the copy was made. A resource that a list
            of the same age lacks is fetched, because either document may be wrong.
    """

    def __init__(
        self,
        state: SyncState,
        intake: ChangeIntake,
        baseline: Baseline,
        capability_list: str | None,
        *,
        is_routine: bool,
        has_lost: bool,
        has_moved: bool,
        dump_at: Instant | None,
    ) -> None:
        self._state = state
        self._intake = intake
        self._next: Fetch | FindUnlisted | None = None
        self._comparing: ListedResources | None = None
        #: The `Date` of the last document, if known.
        self._sent: Instant | None = None
        #: The URIs of pending resources that are listed.
        self._still_listed: set[str] = set()
        #: Whether anything new was found.
        self.has_found = False
        self.baseline = baseline
        self.capability_list = capability_list
        self.is_routine = is_routine
        self.has_lost = has_lost
        self._has_moved = has_moved
        self._dump_at = dump_at
        #: Whether the Source has begun to offer a Resource Dump since this run began.
        self.has_new_dump = False
        self._begin_root()
        self._next = baseline.current
        self._is_at_start = True

    @property
    def current(self) -> Fetch:
        return self.baseline.current

    def _begin_root(self) -> None:
        root = self.baseline.root
        self._state.actions.note(f"baseline from the {root.kind} {root.uri}")
        self._state.actions.append(BeginBaseline())
        self._still_listed.clear()
        #: Whether stored datetimes were compared with the time of the first list.
        self.are_datetimes_checked = False

    @property
    def is_repeated(self) -> bool:
        """Whether the Resource List is the one that was compared last.

        A repeated comparison counts as such only if it is routine, or while a gap is uncovered,
        because only a newer list closes the gap.
        """
        read, known = self.baseline.resource_list, self._state.frontiers.last_list
        if self.has_lost or read is None or read.fingerprint is None or known is None:
            return False
        if not self.baseline.is_list_ahead and (read.at or EARLIEST) > (known.at or EARLIEST):
            return False  # its `at` was in the future when it was compared, but is past now
        is_expected = self.is_routine or self._state.frontiers.uncovered_gap is not None
        return is_expected and read.fingerprint == known.fingerprint

    @property
    def is_in_package(self) -> bool:
        """Whether the resources being compared come from a package."""
        return self._comparing is not None and self._comparing.package is not None

    def read(self, document: Document, sent: Instant | None) -> ListedResources | None:
        """Return the resources in the requested document; None if it only lists other documents.

        The caller compares them with the copy and passes the result to `add_differing`.
        """
        self._comparing = self.baseline.read(document, sent)
        self._sent = sent or self._sent
        return self._comparing

    def advance(self) -> bool:
        """Choose the next request for `proceed`. Return False if nothing is left."""
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
        """Request the next document, unless too many differences from the last one are left.

        Before a list, they must be stored. Before a package, most of them must be applied. This
        bounds memory, and at most two packages are needed at once. Before the next root, everything
        must be applied, because it would otherwise be fetched again; so must resources from a dump
        before unlisted ones are searched. A baseline begins without a backlog, because an earlier
        baseline may have listed resources that this one's list lacks.
        """
        following = self._next
        if following is None or not self._is_ready(following):
            return
        self._is_at_start = False
        if isinstance(following, Fetch) and following.package is not None:
            self._state.settled = False  # a new package is not routine
        self._state.actions.append(following)
        self._next = None

    def _is_ready(self, following: Fetch | FindUnlisted) -> bool:
        pending = self._state.pending
        if isinstance(following, Fetch):
            is_last, is_list = following is self.baseline.root, following.package is None
        else:
            is_last, is_list = self._dump_at is not None, not self.baseline.by_dump
        if is_list and not is_last:
            return not pending.backlog.is_storing
        pending.release()
        if pending.backlog:
            return False
        limit = 0 if is_last else self._state.pace.in_flight
        return self._is_at_start or pending.untried <= limit

    @property
    def is_dump_better(self) -> bool:
        """Whether a new dump can replace the many requests of a first copy."""
        state = self._state
        if self._next is None or self.baseline.by_dump or not self.has_new_dump:
            return False
        return state.frontiers.known is None and state.is_much_pending

    def add_differing(
        self,
        resources: Iterable[Resource],
        absent: Iterable[Resource],
        unproven: Iterable[Resource],
        unchecked: Iterable[Resource],
        undecided: Iterable[Resource],
    ) -> bool:
        """Add the resources of the last comparison that the copy stores differently or lacks.

        `unproven` resources are fetched, too. `unchecked` ones only count as still listed, if they
        are pending. `undecided` ones are stored differently, but changed in the second of the list,
        so the list may be older if change documents list such changes. Return whether a comparison
        was in progress.
        """
        listed, self._comparing = self._comparing, None
        if listed is None:
            return False
        pending = self._state.pending
        self._still_listed = {uri for uri in self._still_listed if uri in pending}
        if pending:
            self._add_pending(listed)
        for resource in resources:
            self._add(resource, self._changed(resource, listed), is_news=True)
        for resource in undecided:
            change = self._changed(resource, listed)
            may_be_later = self._state.frontiers.has_changes_at(listed.at)
            self._add(resource, fetching(change) if may_be_later else change, is_news=True)
        for resource in unproven:
            self._add(resource, self._as_listed(resource, listed), is_news=False)
        self._still_listed.update(one.uri for one in unchecked if one.uri in pending)
        for resource in absent:
            self._add(resource, self._missed(resource, listed), is_news=True)
        return True

    def _add_pending(self, listed: ListedResources) -> None:
        """Add the listed resources whose pending changes contradict a list.

        The copy may store such a resource as listed, so that the comparison finds no difference. If
        the list has another hash, the content announced before is no longer expected, unless a
        Change List has announced it later than the entry is dated. The `at` of the list is then
        wrong. Also record which watched resources the list still has, and the links of their
        entries.
        """
        pending = self._state.pending
        for resource in listed.resources:
            change = pending.find(normalize(resource.uri))
            if change is None:
                continue
            is_deleted = change.change is ChangeType.DELETED
            is_same = not is_deleted and agree(change.resource.hash, resource.hash) is not False
            dated = resource.lastmod
            is_before = dated is not None and end_of_unit(dated) <= self._listed_at(change)
            if change.check is CheckMethod.FETCH or is_same or (is_before and not is_deleted):
                self._still_listed.add(change.uri)
            elif not pending.is_watched(change.uri):
                update = self._changed(resource, listed)
                if is_before:  # a list from before a deletion does not show that it was wrong
                    kind = change.change if change.at > update.at else update.change
                    update = fetching(replace(update, change=kind, at=max(change.at, update.at)))
                self._add(resource, update, is_news=True)
            pending.add_links(resource)

    def _listed_at(self, watched: Change) -> Instant:
        """Return when a Change List announced a watched resource; `EARLIEST` if none did."""
        if watched.resource.change is None:
            return EARLIEST
        return self._state.pending.listed_at(watched.uri) if watched.pushed else watched.at

    def _add(self, resource: Resource, change: Change | None, *, is_news: bool) -> None:
        pending, uri = self._state.pending, normalize(resource.uri)
        if change is not None and not (self.is_repeated and uri in pending):
            # The change documents that follow may contain a later change.
            is_new = pending.announce(change, since=EARLIEST, parked=change.package is None)
            self.has_found = self.has_found or (is_new and is_news)
        if uri in pending:
            self._still_listed.add(uri)  # it may become watched before the comparison ends

    def _changed(self, resource: Resource, listed: ListedResources) -> Change:
        """Return the change for a resource that is stored differently."""
        change = self._as_listed(resource, listed)
        if self.is_repeated or self._state.frontiers.may_lack_known(listed.at):
            # Not later than `confirmed`, because the list contains no later changes.
            return fetching(replace(change, at=min(change.at, self._state.frontiers.confirmed)))
        return change

    def _missed(self, resource: Resource, listed: ListedResources) -> Change | None:
        """Return the change for a resource that is not stored; None to ignore the resource.

        If Change Lists reach beyond the Resource List, the resource may have been deleted since,
        unless they announced it and only its server lacks it.
        """
        change = self._as_listed(resource, listed)
        if self.is_repeated:
            return None
        if not self._has_moved and listed.at < self._state.frontiers.confirmed:
            announced = self._state.pending.announced(change.uri)
            kind = ChangeType.DELETED if announced is None else ChangeType.UPDATED
            at = max(change.at, announced or EARLIEST)  # only a later list may omit it
            return fetching(replace(change, change=kind, at=at))
        return change

    def _as_listed(self, resource: Resource, listed: ListedResources) -> Change:
        # An older dump would restore resources that were changed or deleted since.
        package = listed.package if listed.at >= self._state.frontiers.confirmed else None
        # Not later than `confirmed` after this baseline, because only push has later changes.
        at = min(listed.at, self.baseline.at)
        return Change(normalize(resource.uri), ChangeType.UPDATED, at, resource, package)

    def add_unlisted(self, uris: Iterable[str], undecided: Iterable[str], now: float) -> bool:
        """Add deletions of resources that are stored but not listed, and end the comparison.

        `undecided` ones changed in the second of the list. If change documents list such changes,
        the list may be older, so the resources are requested. Return whether the comparison settles
        all missing resources.
        """
        pending, at = self._state.pending, self.baseline.at
        repeated = self.is_repeated
        is_new_list = self._record_list()
        if repeated:
            self._intake.closed.begin_period()
            return pending.drop_unlisted(EARLIEST, self._still_listed)
        frontiers = self._state.frontiers
        is_of_dump = self._dump_at is not None and at <= self._dump_at
        may_exist = is_of_dump or frontiers.may_lack_known(at)
        unlisted = [(uri, may_exist) for uri in uris]
        unlisted += [(uri, may_exist or frontiers.has_changes_at(at)) for uri in undecided]
        for uri, is_verified in unlisted:
            deletion = Change(uri, ChangeType.DELETED, at, Resource(uri))
            if is_verified:
                deletion = verification(deletion, at)
            if uri in pending:
                self._still_listed.add(uri)  # T waits until the resource is deleted
            is_new = pending.announce(deletion, since=EARLIEST, parked=True)
            self.has_found = is_new or self.has_found
        read, compared = self.baseline.resource_list, self._intake.compared
        is_known = read is not None and read.fingerprint in compared
        if read is not None and not is_known:
            compared.append(read.fingerprint)
        if is_new_list and self.has_found and not is_known:
            self._intake.has_news = True
        before = len(pending)
        is_settled = pending.drop_unlisted(at, self._still_listed)
        self.has_found = self.has_found or len(pending) < before
        until, deletes = self.baseline.lists_all_until, not all(each for _, each in unlisted)
        self._intake.end_baseline(at, until, now, deletes=deletes)
        if not is_settled and frontiers.last_list is not None:
            # Even a comparison with the same list has to settle the rest.
            frontiers.last_list = replace(frontiers.last_list, fingerprint=None)
        return self.baseline.complete and is_settled

    def record_age(self, *, has_list: bool) -> None:
        """Record whether the documents are older than those compared before.

        Called if no document lists changes. A dump is older if its `at` is earlier, unless a
        Resource List is compared, too. Any document is older if its `Date` is before `confirmed`.
        """
        frontiers, at, sent = self._state.frontiers, self.baseline.dump_at, self._sent
        last_list = frontiers.last_list or ComparedList()
        if at is not None and not has_list:
            latest = max(at, last_list.at or EARLIEST, frontiers.confirmed)
            last_list = ComparedList(None, latest, is_older=at < latest)
        if is_ahead(frontiers.confirmed, sent):
            last_list = replace(last_list, is_older=True)
        frontiers.last_list = last_list

    def _record_list(self) -> bool:
        """Record the Resource List that was compared. Return whether it has changed."""
        frontiers = self._state.frontiers
        known, read = frontiers.last_list or ComparedList(), self.baseline.resource_list
        if read is None:
            frontiers.last_list = replace(known, fingerprint=None, is_older=False)
        elif known.at is None or (read.at is not None and read.at >= known.at):
            frontiers.last_list = read
        else:
            frontiers.last_list = replace(read, at=known.at, is_older=read.at is not None)
        return read is None or read.fingerprint != known.fingerprint


#: Number of consecutive baselines after which a gap stays uncovered. Two, because a newer Resource
#: List may have replaced the first one while it was read.
_MAX_CONSECUTIVE_BASELINES = 2
#: Factor by which the wait until the next comparison is shorter after a failed one.
_SPEEDUP_AFTER_FAILURE = 24
#: Maximum time by which a poll may be early, in seconds.
_POLL_TOLERANCE = 0.5


class BaselinePolicy:
    """Decides whether a baseline is needed, and which documents it reads first."""

    def __init__(self, state: SyncState) -> None:
        self._state = state
        self._in_a_row = 0
        self._last_dump: Document | None = None
        #: Where the Source's change documents begin and end, if its clock has gone back.
        self._restarted: tuple[Instant, Instant] | None = None
        #: Whether a baseline is needed because a pull is not enough.
        self.needed = False
        #: The `at` of the last Resource Dump, until a later Resource List is compared. If a list is
        #: not later, the resources that it lacks may still exist.
        self.dump_at: Instant | None = None

    def new_baseline(self, offer: Offer, *, reads_old: bool, skips_index: bool = False) -> Baseline:
        """Return the next baseline.

        An empty copy begins with the dump, which has everything in one document, and so does a
        second attempt to close a gap, because the dump may be newer. With `reads_old`, even an old
        dump is compared, because the Source has moved, or the copy has lost resources. With
        `skips_index`, the members of a Resource List Index that cannot close the gap are not read.
        """
        frontiers = self._state.frontiers
        begins, ends = self._restarted or (None, None)
        is_empty = frontiers.known is None and ends is None
        is_second = self.needed and self._in_a_row % 2 == 1
        return Baseline(
            offer,
            frontiers.known or begins or EARLIEST,
            dump_first=is_empty or is_second,
            is_old=(lambda _: False) if reads_old else frontiers.covers,
            skips_old_index=skips_index and frontiers.uncovered_gap is not None,
            last_dump=None if reads_old else self._last_dump,
            until=ends,
        )

    def compared(self, baseline: Baseline) -> None:
        self._last_dump = baseline.undated_dump or self._last_dump
        if baseline.by_dump:
            self.dump_at = baseline.at
        elif self.dump_at is not None and baseline.at > self.dump_at:
            self.dump_at = None
        self._restarted = None

    def baseline_ended(self) -> None:
        self._in_a_row += 1
        self.needed = False

    def pull_ended(self) -> None:
        self.needed = self._state.frontiers.uncovered_gap is not None
        if not self.needed:
            self._in_a_row = 0

    def restart(self, begins: Instant, ends: Instant, *, can_compare: bool) -> None:
        """Forget earlier baselines because the Source's clock has gone back.

        Its change documents now begin at `begins` and end at `ends`.
        """
        self._in_a_row = 0
        self.needed = can_compare
        self._restarted = (begins, ends) if can_compare else None
        self._state.frontiers.reset(None if can_compare else begins)

    def handle_gap(self, ends: Instant, *, can_compare: bool, cure: str) -> None:
        """Request a baseline, or skip a gap up to `ends` that no document covers.

        `cure` states how the Source can close such gaps, if known.
        """
        frontiers, note = self._state.frontiers, self._state.actions.note
        self._state.settled = False
        after, before = format_datetime(frontiers.confirmed), format_datetime(ends)
        if can_compare and self._in_a_row < _MAX_CONSECUTIVE_BASELINES:
            note(f"no list of changes reaches back to {after}")
            self.needed = True
        elif not can_compare and frontiers.confirmed == EARLIEST:
            # A first copy of a Source that lists only changes must begin here.
            note(f"the Source lists no changes before {before}")
            frontiers.begin(ends)
        else:
            text = f"no document covers the changes from {after} to {before}"
            note(f"{text}, and the Source offers no newer list of all its resources", warning=True)
            frontiers.skip_gap(ends, cure)


class ComparisonSchedule:
    """Decides when to run routine comparisons with the whole set.

    Some Sources never list deletions, but only omit the resources from the Resource List.
    `capability_list` is the URI of the Source's Capability List at the last comparison.
    """

    def __init__(self, pace: Pace, compared: float, capability_list: str | None) -> None:
        self._pace = pace
        self._is_urgent = self._was_just_done = False
        self._not_before = self._unproven_at = self._checked_at = -inf
        self._requests_unproven = self._requests_checkable = False
        #: Number of checkable resources in the current comparison and in the last one.
        self._checkable = self._last_checkable = 0
        #: Whether the copy was made from a dump and not compared with the Resource List yet.
        self.awaits_list = False
        self.compared = compared
        self.capability_list = capability_list

    def is_due(self, now: float) -> bool:
        """Return whether a comparison is due, which is never twice without a pull in between."""
        was_just_done, self._was_just_done = self._was_just_done, False
        due = max(self._not_before, self.compared + self._pace.compare)
        if self._is_urgent:
            due = min(due, self.compared + self._pace.repair)
        return (now >= due or self.awaits_list) and not was_just_done

    def is_recent(self, now: float) -> bool:
        """Return whether the last comparison was too recent for another one to help."""
        return now < self.compared + self._pace.repair and not self.awaits_list

    def begin(self, now: float, *, is_forced: bool) -> None:
        """Decide whether to request resources whose entries do not show changes.

        They are requested in the first comparison of a run, and then once per `Pace.compare`.
        Checkable resources, for which a conditional request is enough, are requested more often:
        one resource per second on average.
        """
        compare = self._pace.compare
        wait = min(compare, max(self._pace.poll, self._last_checkable))
        self._requests_unproven = is_forced or now >= self._unproven_at + compare
        is_due = now >= self._checked_at + wait - _POLL_TOLERANCE
        self._requests_checkable = self._requests_unproven or is_due
        self._checkable = 0

    def unproven_requests(
        self,
        unproven: Sequence[Resource],
        checkable: Sequence[Resource],
        *,
        has_content: bool,
    ) -> tuple[list[Resource], list[Resource]]:
        """Split resources into those to request and the others.

        `has_content` means that the resources are in a package, with their content.
        """
        self._checkable += len(checkable)
        requested: list[Resource] = []
        left: list[Resource] = []
        (requested if has_content or self._requests_unproven else left).extend(unproven)
        (requested if has_content or self._requests_checkable else left).extend(checkable)
        return requested, left

    def expedite(self) -> None:
        """Compare soon, because only a comparison shows whether a resource is still listed."""
        self._is_urgent = True

    def done(
        self,
        now: float,
        capability_list: str | None,
        *,
        is_settled: bool,
        awaits_list: bool = False,
    ) -> None:
        """Record a complete comparison, and whether it settled all missing resources.

        A first copy from a dump is then compared with the Resource List once (`awaits_list`),
        because either of them may lack resources. If this run cannot do so, the next one does.
        """
        self.awaits_list = awaits_list
        if not awaits_list:
            self.compared = now
        if self._requests_unproven:
            self._unproven_at = now
        if self._requests_checkable:
            self._checked_at = now
        self._last_checkable = self._checkable
        self.capability_list = capability_list
        self._is_urgent = not is_settled
        self._was_just_done = True

    def put_off(self, now: float) -> None:
        """Postpone the next comparison after a failure, until after the next pull at least."""
        self._not_before = now + self._pace.compare / _SPEEDUP_AFTER_FAILURE
        self._was_just_done = True
        self._is_urgent = self.awaits_list = False
