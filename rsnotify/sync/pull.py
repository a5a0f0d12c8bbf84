"""Pulls: reading all changes since `confirmed` from as few documents as possible.

    first root   joins ──> read completely: the pull is complete
                 begins too late ──> other roots
    other root   joins ──> read completely, then the first root again
                 begins too late, or broken ──> the next root; after the last one, a gap

A root is the document for one capability (core §12, §13), with everything that it leads to: an
index and its lists, a dump and its packages, an archive and its lists. Roots are read in order of
increasing cost. The first is the Change List, if the Source offers one. The Source keeps this root
up to date, so a pull is complete only when it has been read completely.

A `Pull` decides which documents to read: it receives each requested document, and returns the next
step. A `PullRun` performs that step, and adds the changes to the pending ones. It requests one
package at a time, the next when most changes from the last are applied.

Closed lists that have changed since they were read (`ClosedLists`) are reread, and so are all later
lists. To find them, the archive is read after all other documents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import RsnotifyError, WrongDocument, counted
from rsnotify.format.coverage import (
    EARLIEST,
    Coverage,
    Frontier,
    change_list_coverage,
    package_coverage,
)
from rsnotify.format.datetimes import LATEST, MICROSECOND, Instant, end_of_unit
from rsnotify.format.links import resolve
from rsnotify.format.model import MAX_ENTRIES, Capability, Document, Rel, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Discover, DocumentKind, Fetch
from rsnotify.sync.change_intake import ChangeIntake
from rsnotify.sync.closed_lists import ClosedLists
from rsnotify.sync.list_fingerprint import ListFingerprint
from rsnotify.sync.sync_state import SyncState

#: The kinds that list the whole set of resources.
RESOURCE_KINDS = frozenset(
    {
        DocumentKind.RESOURCE_LIST,
        DocumentKind.RESOURCE_DUMP,
        DocumentKind.RESOURCE_LIST_ARCHIVE,
        DocumentKind.RESOURCE_DUMP_ARCHIVE,
    }
)


def change_documents(offer: Offer) -> list[Fetch]:
    """Return the roots that list changes: the one with the latest changes, then the others by cost.

    Archives have past changes only. If no other document has the latest ones, and the Source lists
    its resources, archives are useless.
    """
    live = [
        (DocumentKind.CHANGE_LIST, offer.change_list),
        (DocumentKind.CHANGE_DUMP, offer.change_dump),
    ]
    past = [
        (DocumentKind.CHANGE_LIST_ARCHIVE, offer.change_list_archive),
        (DocumentKind.CHANGE_DUMP_ARCHIVE, offer.change_dump_archive),
    ]
    if offer.change_list is not None:
        return _offered(live[0], past[0], live[1], past[1])
    if offer.change_dump is None and (offer.resource_list or offer.resource_dump) is not None:
        return []
    return _offered(*live, *past)


def resource_documents(offer: Offer) -> list[Fetch]:
    """Return the roots that list the whole set of resources, current ones first."""
    return _offered(
        (DocumentKind.RESOURCE_LIST, offer.resource_list),
        (DocumentKind.RESOURCE_DUMP, offer.resource_dump),
        (DocumentKind.RESOURCE_LIST_ARCHIVE, offer.resource_list_archive),
        (DocumentKind.RESOURCE_DUMP_ARCHIVE, offer.resource_dump_archive),
    )


def _offered(*documents: tuple[DocumentKind, str | None]) -> list[Fetch]:
    return [Fetch(uri, kind) for kind, uri in documents if uri is not None]


def fetch_member(parent: Fetch, member: Resource, *, packaged: bool) -> Fetch:
    """Return the request for a member of an index, an archive or a dump."""
    uri = resolve(parent.uri, member.uri)
    return Fetch(uri, parent.kind, replace(member, uri=uri) if packaged else None)


class DocumentQueue:
    """The documents to read below one root, each of them once.

    Their number is limited, because an index that lists itself, or changes with each request, would
    never end.
    """

    def __init__(self, fetches: Iterable[Fetch] = ()) -> None:
        self._fetches = deque(fetches)
        self._known = {fetch.uri for fetch in self._fetches}

    def put_first(self, fetches: Iterable[Fetch]) -> None:
        """Put documents before all others, in the given order."""
        new = list({fetch.uri: fetch for fetch in fetches if fetch.uri not in self._known}.values())
        self._known.update(fetch.uri for fetch in new)
        if len(self._known) > MAX_ENTRIES:
            raise WrongDocument(f"it leads to more than {MAX_ENTRIES:,} documents")
        self._fetches.extendleft(reversed(new))

    def put_page(self, page: Fetch) -> None:
        """Put the next page of a document before all others."""
        if page.uri in self._known:
            raise WrongDocument(
                f"its link with rel=next leads to {page.uri}, which was already read; the list is "
                "incomplete"
            )
        self.put_first([page])

    def __len__(self) -> int:
        return len(self._fetches)

    def pop(self) -> Fetch | None:
        return self._fetches.popleft() if self._fetches else None

    def clear(self) -> None:
        self._fetches.clear()


#: Maximum number of times that one pull falls back to the other roots, because lists may be rotated
#: while they are read.
_MAX_FALLBACKS = 8
_LISTS = (Capability.CHANGE_LIST, Capability.CHANGE_LIST_ARCHIVE)
_DUMPS = (Capability.CHANGE_DUMP, Capability.CHANGE_DUMP_ARCHIVE)
#: The capabilities of documents below each kind of root, cheapest kind first.
_CAPABILITIES = {
    DocumentKind.CHANGE_LIST: _LISTS,
    DocumentKind.CHANGE_LIST_ARCHIVE: _LISTS,
    DocumentKind.CHANGE_DUMP: _DUMPS,
    DocumentKind.CHANGE_DUMP_ARCHIVE: _DUMPS,
}
#: The kind of archive to which a document with each capability may link.
_ARCHIVES: dict[str | None, DocumentKind] = {
    Capability.CHANGE_LIST: DocumentKind.CHANGE_LIST_ARCHIVE,
    Capability.CHANGE_DUMP: DocumentKind.CHANGE_DUMP_ARCHIVE,
}
#: The archive of each root that may be read first.
_ARCHIVES_OF = {
    DocumentKind.CHANGE_LIST: DocumentKind.CHANGE_LIST_ARCHIVE,
    DocumentKind.CHANGE_DUMP: DocumentKind.CHANGE_DUMP_ARCHIVE,
}
#: Maximum number of pages of a list, and of entries in all its pages.
_MAX_PAGES = 1_000
_MAX_PAGED_ENTRIES = 500_000


class PullStep(Struct, frozen=True):
    """The next step of a pull after a document.

    At most one of `fetch`, `gap_ends` and `failure` is set. If none is, the pull is complete.

    Args:
        coverage: The document's coverage, if it lists changes and joins the confirmed ones.
        fetch: The request for the next document.
        gap_ends: Where the available documents begin, if none of them joins.
        failure: The error if the pull has failed without finding a gap.
        cure: How the Source can close the gap, if known.
    """

    coverage: Coverage | None = None
    fetch: Fetch | None = None
    gap_ends: Instant | None = None
    failure: RsnotifyError | None = None
    cure: str = ""


class PageJoiner:
    """Joins the pages of a long list (`rs:ln rel="next"`), as written by AtoM, for example."""

    def __init__(self) -> None:
        self._pages: dict[str, Document] = {}
        self._entries = 0

    def add(self, uri: str, document: Document) -> Document | str:
        """Return the URI of the next page or, after the last page, the whole document."""
        self._pages[uri] = document
        self._entries += len(document.resources)
        link = document.link(Rel.NEXT)
        if link is None:
            pages = list(self._pages.values())
            self._pages, self._entries = {}, 0
            return _joined(pages)
        following = resolve(uri, link)
        if following in self._pages:
            raise WrongDocument(f"its link with rel=next leads back to {following}")
        if len(self._pages) >= _MAX_PAGES or self._entries > _MAX_PAGED_ENTRIES:
            raise WrongDocument(
                f"it has more than {_MAX_PAGES:,} pages or {_MAX_PAGED_ENTRIES:,} entries; a list "
                "of this size needs an index (core §12.2)"
            )
        return following


def _joined(pages: list[Document]) -> Document:
    froms = [page.from_ for page in pages if page.from_ is not None]
    untils = [page.until for page in pages if page.until is not None]
    return msgspec.structs.replace(
        pages[0],
        resources=tuple(resource for page in pages for resource in page.resources),
        from_=min(froms, default=None),
        until=max(untils) if len(untils) == len(pages) else None,
    )


def _begins(member: Resource) -> Instant:
    return member.from_ or EARLIEST


class Pull:
    """Decides which documents one pull reads.

    At least one document of the offer must list changes. A package is not reread if its entry is
    the same as in `read`. Without `closed`, no list is reread. `last` is the fingerprint of the
    Change List that was read last.
    """

    def __init__(
        self,
        offer: Offer,
        read: Mapping[str, Resource] | None = None,
        closed: ClosedLists | None = None,
        last: ListFingerprint | None = None,
    ) -> None:
        roots = change_documents(offer)
        self._roots = {root.kind: root for root in roots}
        self._read = read or {}
        self._last = last
        self._closed = closed
        self._is_checking = False
        self._requested: set[str] = set()
        #: The `from` of each list, as stated by the index, archive or dump that lists it, by URI.
        self._stated: dict[str, Instant] = {}
        #: The entries of closed lists in the indexes, archives and dumps that were read.
        self.closed_members: list[Resource] = []
        #: Whether lists are being reread, so that none of their entries counts as old.
        self.is_rereading = False
        #: Whether a list was closed during the pull, and was not reread.
        self.has_skipped = False
        self._is_repeating = False
        self._closed_through: Instant | None = None
        #: The `until` of the first list that is reread, if there is one.
        self._changed_since: Instant | None = None
        self._first = roots[0]
        self._queue = DocumentQueue()
        self._pages = PageJoiner()
        self._fallbacks: list[DocumentKind] = []
        self._fallback_count = 0
        self._fell_back_at: Instant | None = None
        self._begins: list[Instant] = []
        self._accepted: Instant | None = None
        self._broken: dict[DocumentKind, RsnotifyError] = {}
        #: An index or dump whose members may be out of order, because some lack a `from`.
        self._unsorted: str | None = None
        #: Where the packages end of the open Change Dump that was just read; None if unknown.
        self.dump_ends: Instant | None = None
        #: The last requested document.
        self.current = self._first

    @property
    def at_first(self) -> bool:
        return self.current.kind is self._first.kind

    @property
    def is_optional(self) -> bool:
        """Whether `current` is read only to find out whether a list has changed."""
        return self._is_checking and not self.is_rereading

    def is_open(self, fetch: Fetch) -> bool:
        """Return whether a document belongs to the first root, which lists the latest changes."""
        return fetch.kind is self._first.kind and fetch.package is None

    def read(self, document: Document, frontier: Frontier, sent: Instant | None = None) -> PullStep:
        """Return the next step after the document that `current` requested.

        `frontier` shows how far the Source's documents have been read. `sent` is the document's
        `Date`, if known.

        Raises:
            DocumentError: The document is of another kind than expected, or is unusable.
        """
        self.dump_ends = None
        if self.current.package is not None:
            return self._use(package_coverage(document, self.current.uri), frontier)
        whole = self._pages.add(self.current.uri, document)
        if isinstance(whole, str):
            self.current = Fetch(whole, self.current.kind)
            return PullStep(fetch=self.current)
        document = whole
        if document.capability not in _CAPABILITIES[self.current.kind]:
            raise WrongDocument(f"a {self.current.kind} was expected, not {document.capability!r}")
        self._add_archive(document)
        stated = self._stated.get(self.current.uri)
        if document.from_ is None and document.until is not None and stated is not None:
            document = msgspec.structs.replace(document, from_=stated)
        if document.capability == Capability.CHANGE_LIST and not document.index:
            return self._use(change_list_coverage(document, sent), frontier)
        return self._queue_members(document, frontier)

    def abandon(self, error: RsnotifyError, frontier: Frontier) -> PullStep:
        """Abandon the current root, because the requested document is unusable."""
        if self.is_optional:
            return PullStep()
        self._broken[self.current.kind] = error
        self._pages = PageJoiner()
        if self.at_first:
            self._fallbacks = self._others()
        return self._fall_back(frontier)

    def check_archive(self) -> Fetch | None:
        """Return the request for the archive, if it must be read after all other documents."""
        root = self._archive
        if self._closed is None or not self._closed.is_archive_due or root is None:
            return None
        if self._is_checking or root.uri in self._requested:
            return None
        self._is_checking = True
        self._queue = DocumentQueue([root, self._first])
        return self._next_fetch()

    # One document

    def _add_archive(self, document: Document) -> None:
        """Use a document's link to its archive, if present (archives §2.2)."""
        link = document.link(Rel.ARCHIVES)
        kind = _ARCHIVES.get(document.capability)
        if link is not None and kind is not None and kind is not self._first.kind:
            self._roots[kind] = Fetch(resolve(self.current.uri, link), kind)

    def _use(self, coverage: Coverage, frontier: Frontier) -> PullStep:
        if coverage.from_ is None:
            return self._use_empty(frontier, coverage.sent)
        self._check_skipped(coverage.from_)
        if coverage.reaches(self._latest_beginning(frontier)):
            return self._next(frontier, coverage)
        return self._begins_too_late(coverage.from_, frontier)

    def _check_skipped(self, begins: Instant) -> None:
        """Read the archive again if the open list begins after the end of the last closed one.

        Another list was then closed in the meantime. If it were not read, earlier changes from
        reread lists would replace later ones in it.
        """
        through, root = self._closed_through, self._archive or self._first
        if not self.is_rereading or through is None or not self.is_open(self.current):
            return
        self.has_skipped = begins > through
        if self.has_skipped and not self._is_repeating:
            self._is_repeating = True
            self._queue = DocumentQueue(dict.fromkeys([root, self._first]))

    @property
    def _archive(self) -> Fetch | None:
        """The archive of the first root, if that is not an archive itself."""
        root = self._roots.get(_ARCHIVES_OF.get(self._first.kind, self._first.kind))
        return None if root is self._first else root

    def _use_empty(self, frontier: Frontier, sent: Instant | None) -> PullStep:
        """Read the archive, unless already read, because an empty list has no known beginning.

        If it may begin later than before, there is a gap.
        """
        archive = self._archive
        if self.at_first and archive is not None and archive.uri not in self._requested:
            self._queue = DocumentQueue([archive, self._first])
        elif self._may_begin_later():
            begins = max(sent or EARLIEST, frontier.instant + MICROSECOND)
            return self._begins_too_late(begins, frontier)
        return self._next(frontier)

    def _may_begin_later(self) -> bool:
        """Return whether an empty list had a beginning before, and now may begin after its end.

        The entries that it had, and later ones, may be lost, unless closed lists have them.
        """
        if self._last is None or not self.is_open(self.current):
            return False
        return (self._closed_through or EARLIEST) < self._last.before

    def _queue_members(self, document: Document, frontier: Frontier) -> PullStep:
        joint = self._joint(frontier)
        # A member without `until` may contain something new.
        self._find_changed(document, joint)
        since = self._changed_since
        members = [
            member
            for member in document.resources
            if member.until is None or member.until > joint or (since and member.until >= since)
        ]
        if all(member.from_ is not None for member in members):
            members.sort(key=_begins)  # some Sources list the newest first
        elif len(members) > 1:
            self._unsorted = self.current.uri
        begins = (members[0].from_ if members else None) or document.from_
        if begins is not None and begins > self._latest_beginning(frontier):
            return self._begins_too_late(begins, frontier)
        packaged = document.capability == Capability.CHANGE_DUMP and not document.index
        if packaged and document.until is None and self.is_open(self.current):
            ends = [member.until for member in document.resources] or [document.from_]
            known = [one for one in ends if one is not None]
            self.dump_ends = max(known) if len(known) == len(ends) else None
        fetches = [fetch_member(self.current, member, packaged=packaged) for member in members]
        self._stated |= {
            fetch.uri: member.from_
            for fetch, member in zip(fetches, members, strict=True)
            if member.from_ is not None
        }
        self._queue.put_first(
            fetch for fetch in fetches if self.is_rereading or not self._was_read(fetch)
        )
        return self._next(frontier)

    def _find_changed(self, document: Document, joint: Instant) -> None:
        """Mark changed closed lists and all later lists for rereading."""
        if self._closed is None:
            return
        if document.from_ is not None and document.capability == Capability.CHANGE_DUMP:
            self._check_skipped(document.from_)
        closed = [member for member in document.resources if member.until is not None]
        self.closed_members += closed
        ends = [self._closed_through, *(member.until for member in closed)]
        self._closed_through = max((one for one in ends if one is not None), default=None)
        changed = [
            member.until
            for member in self._closed.changed(closed)
            if member.until is not None
            and member.until <= joint
            and resolve(self.current.uri, member.uri) not in self._requested
        ]
        if changed:
            self.is_rereading = True
            self._changed_since = min([self._changed_since or LATEST, *changed])

    def _was_read(self, fetch: Fetch) -> bool:
        package = fetch.package
        if package is None or self._read.get(fetch.uri) != package:
            return False
        return (package.lastmod, package.hash, package.length) != (None, None, None)

    def _latest_beginning(self, frontier: Frontier) -> Instant:
        """Return the latest instant at which a document may begin and still join."""
        joint = self._joint(frontier)
        was_tried = joint == self._fell_back_at and not self._fallbacks
        # If no other root is left, no document has more changes at an instant that was not over.
        is_last = len(self._roots) == 1 or (self.at_first and was_tried)
        return frontier.instant if is_last and not frontier.running else joint

    def _joint(self, frontier: Frontier) -> Instant:
        """Return the instant up to which all changes are certainly known."""
        accepted = frontier.instant == self._accepted
        return frontier.instant if accepted else frontier.joint

    # The next document

    def _begins_too_late(self, begins: Instant, frontier: Frontier) -> PullStep:
        self._begins.append(begins)
        joint = self._joint(frontier)
        if joint != self._fell_back_at and self._fallback_count < _MAX_FALLBACKS:
            # More changes are known than last time, so any other root may join now.
            self._fell_back_at = joint
            self._fallback_count += 1
            self._fallbacks = self._others()
        return self._fall_back(frontier)

    def _others(self) -> list[DocumentKind]:
        unusable = {self._first.kind, *self._broken}
        return [kind for kind in _CAPABILITIES if kind in self._roots and kind not in unusable]

    def _fall_back(self, frontier: Frontier) -> PullStep:
        """Read the next root. If none is left, there is a gap."""
        while self._fallbacks:
            kind = self._fallbacks.pop(0)
            if kind not in self._broken:
                again = [] if self._first.kind in self._broken else [self._first]
                self._queue = DocumentQueue([self._roots[kind], *again])
                return self._next(frontier)
        joint = self._joint(frontier)
        gap_ends = min((instant for instant in self._begins if instant > joint), default=None)
        failure = next(iter(self._broken.values()), None)
        if gap_ends is not None and gap_ends <= frontier.instant:
            if not frontier.running:
                self._accepted = frontier.instant
                self._queue = DocumentQueue([self._first])
                return self._next(frontier)
            # The instant was not over when it was read, and no document has its later changes.
            gap_ends = end_of_unit(frontier.instant) - MICROSECOND
        return PullStep(gap_ends=None if failure else gap_ends, failure=failure, cure=self._cure())

    def _cure(self) -> str:
        if self._unsorted is None:
            return ""
        return (
            f"{self._unsorted} should state the from and until of each document that it lists in "
            "an rs:md, or list the oldest document first (core §12.2)"
        )

    def _next(self, frontier: Frontier, coverage: Coverage | None = None) -> PullStep:
        following = self._next_fetch()
        if following is not None:
            return PullStep(coverage, following)
        if self._first.kind in self._broken:
            return msgspec.structs.replace(self._fall_back(frontier), coverage=coverage)
        return PullStep(coverage)

    def _next_fetch(self) -> Fetch | None:
        following = self._queue.pop()
        if following is None or (following is self._first and self.is_optional):
            return None  # the archive has nothing new
        self.current = following
        self._requested.add(following.uri)
        return following


class PullRun:
    """One run of a `Pull`, which begins on construction."""

    def __init__(self, state: SyncState, intake: ChangeIntake, offer: Offer) -> None:
        self._state = state
        self._intake = intake
        self._next: Fetch | None = None
        frontiers = state.frontiers
        last = None if frontiers.uncovered_gap else frontiers.prefix
        self.pull = Pull(offer, intake.packages, intake.closed, last)
        state.actions.append(self.pull.current)

    @property
    def current(self) -> Fetch:
        return self.pull.current

    def read(self, document: Document, now: float, sent: Instant | None) -> PullStep | None:
        """Use the requested document. Return the last step if the pull ends."""
        fetch, frontier = self.current, self._state.frontiers.frontier
        step = self.pull.read(document, frontier, sent)
        if self.pull.dump_ends is not None:
            self._intake.check_dump(self.pull.dump_ends, now, sent)
        return self._follow(fetch, step, now)

    def abandon(self, error: RsnotifyError, now: float) -> PullStep | None:
        """Read other documents instead of `current`. Return the last step if the pull ends."""
        fetch, frontier = self.current, self._state.frontiers.frontier
        return self._follow(fetch, self.pull.abandon(error, frontier), now)

    def proceed(self) -> None:
        """Request the next document, unless too many changes from the last one are left.

        Before a list, they must be stored. Before a package, most of them must be applied. This
        bounds memory, and at most two packages are needed at once. Failed changes do not delay the
        request, because a later package may supersede them.
        """
        state, pending = self._state, self._state.pending
        if self._next is None:
            return
        if self._next.package is None or self.pull.is_rereading:
            is_ready = not pending.backlog.is_storing
        else:
            pending.release()
            is_ready = pending.untried <= state.pace.in_flight and not pending.backlog
            state.settled = state.settled and not is_ready  # a package with news is not routine
        if is_ready:
            state.actions.append(self._next)
            self._next = None

    def _follow(self, fetch: Fetch, step: PullStep, now: float) -> PullStep | None:
        actions, coverage = self._state.actions, step.coverage
        if coverage is not None:
            more = step.fetch is not None
            again = self.pull.is_rereading
            is_open = self.pull.is_open(fetch) and not (again and coverage.closed)
            new = self._intake.add(fetch, coverage, now, is_open=is_open, more=more, again=again)
            if new:
                actions.note(f"{counted(new, 'change')} from the {fetch.kind} {fetch.uri}")
        if self.pull.is_rereading:
            self._state.settled = False
        if step.fetch is not None:
            self._request(step.fetch, fetch)
            return None
        is_complete = step.failure is None and step.gap_ends is None
        if is_complete and coverage is not None and coverage.closed and fetch.package is None:
            actions.append(Discover())  # core §12.1: a closed list has a successor
        if is_complete:
            if (archive := self.pull.check_archive()) is not None:
                actions.append(archive)
                return None
            self._intake.record_closed(
                self.pull.closed_members,
                has_reread=self.pull.is_rereading,
                has_skipped=self.pull.has_skipped,
            )
        return step

    def _request(self, fetch: Fetch, previous: Fetch) -> None:
        if fetch.kind is not previous.kind:
            self._state.settled = False
            self._state.actions.note(f"continuing with the {fetch.kind} {fetch.uri}")
        self._next = fetch
