"""Getting level from what a Source tells of its changes.

              joins                          joins
    first way ─────> read to its end   other ways ─────> read to its end, and again the first
        │ begins too late                  │ begins too late, or broken
        └────────> the other ways          └────────> the next of them, or a hole

The first way is the Change List where there is one; it is the one that is kept fresh, so only
its end is level. A `Pull` is told each document that it asked for and says what comes next; it
does not know what is done with what was read.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from rsnotify.errors import RsnotifyError, WrongDocument
from rsnotify.format.coverage import EARLIEST, Coverage, change_list_coverage, package_coverage
from rsnotify.format.datetimes import MICROSECOND, Instant
from rsnotify.format.frontier import Frontier
from rsnotify.format.links import resolve
from rsnotify.format.model import Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.timestamp_precision import end_of_unit
from rsnotify.format.vocabulary import Capability, Rel
from rsnotify.sync.actions import DocumentKind, Fetch
from rsnotify.sync.fallback_order import DocumentQueue, change_ways

#: How often one pull leaves its first way: the lists may be rotated under our hands.
_DESCENTS = 8
_LISTS = (Capability.CHANGE_LIST, Capability.CHANGE_LIST_ARCHIVE)
_DUMPS = (Capability.CHANGE_DUMP, Capability.CHANGE_DUMP_ARCHIVE)
#: What may be met on a way, and the way to its archive.
_MET = {
    DocumentKind.CHANGE_LIST: _LISTS,
    DocumentKind.CHANGE_LIST_ARCHIVE: _LISTS,
    DocumentKind.CHANGE_DUMP: _DUMPS,
    DocumentKind.CHANGE_DUMP_ARCHIVE: _DUMPS,
}
_ARCHIVES = {
    Capability.CHANGE_LIST: DocumentKind.CHANGE_LIST_ARCHIVE,
    Capability.CHANGE_DUMP: DocumentKind.CHANGE_DUMP_ARCHIVE,
}
_ORDER = list(_MET)
#: How many pages one list may have, and how many entries they may have together.
_MOST_PAGES = 1_000
_MOST_ENTRIES = 500_000


class PullStep(Struct, frozen=True):
    """What follows from what a pull has heard; at most one of the last three is there.

    Args:
        coverage: What the document covers, if it tells changes and joins what is known.
        fetch: What to read next. If it is None as well as the others, the pull is level.
        hole: The instant at which the documents begin that there are, if none of them joins.
        failure: Why the pull cannot say that it is level, or that there is a hole.
    """

    coverage: Coverage | None = None
    fetch: Fetch | None = None
    hole: Instant | None = None
    failure: RsnotifyError | None = None


class PageJoiner:
    """Joins the pages of one list (`rs:ln rel="next"`), as AtoM and others write long lists."""

    def __init__(self) -> None:
        self._pages: dict[str, Document] = {}
        self._entries = 0

    def add(self, uri: str, document: Document) -> Document | str:
        """Add a page.

        Returns:
            The URI of the next page; or the whole document, if this is the last page.

        Raises:
            WrongDocument: The pages do not end.
        """
        self._pages[uri] = document
        self._entries += len(document.resources)
        link = document.link(Rel.NEXT)
        if link is None:
            pages = list(self._pages.values())
            self._pages, self._entries = {}, 0
            return _joined(pages) if len(pages) > 1 else document
        following = resolve(uri, link)
        if following in self._pages:
            raise WrongDocument(f"its link with rel=next leads back to {following}")
        if len(self._pages) >= _MOST_PAGES or self._entries > _MOST_ENTRIES:
            raise WrongDocument(
                f"it has more than {_MOST_PAGES} pages or {_MOST_ENTRIES} entries; a list of this "
                "size needs an index (core §12.2)"
            )
        return following


def _joined(pages: list[Document]) -> Document:
    """Return one document with the entries of all pages and the interval of all of them."""
    froms = [page.from_ for page in pages if page.from_ is not None]
    untils = [page.until for page in pages if page.until is not None]
    return msgspec.structs.replace(
        pages[0],
        resources=tuple(resource for page in pages for resource in page.resources),
        from_=min(froms, default=None),
        until=max(untils, default=None) if len(untils) == len(pages) else None,
    )


def _begins(member: Resource) -> Instant:
    return member.from_ or EARLIEST


class Pull:
    """One walk from what is known to level, by as few ways as that needs.

    Args:
        offer: Where the Source tells changes; at least one way must be there.
        read: By URI, the entries of packages that need not be read once more, unless they
            have changed.
    """

    def __init__(self, offer: Offer, read: Mapping[str, Resource] | None = None) -> None:
        ways = change_ways(offer)
        self._ways = {way.rung: way for way in ways}
        self._read = read or {}
        self._top = ways[0]
        self._left: list[DocumentKind] = []
        self._left_at: Instant | None = None
        self._descents = 0
        self._begins: list[Instant] = []
        self._accepted: Instant | None = None
        self._broken: dict[DocumentKind, RsnotifyError] = {}
        self._queue = DocumentQueue()
        self._pages = PageJoiner()
        self.current = self._top

    @property
    def at_first(self) -> bool:
        """Whether the first way is being read."""
        return self.current.rung is self._top.rung

    def tells_present(self, fetch: Fetch) -> bool:
        """Tell whether a list is of the first way, which tells what is new."""
        return fetch.rung is self._top.rung and fetch.package is None

    def read(self, document: Document, frontier: Frontier, sent: Instant | None = None) -> PullStep:
        """Take the document that `current` asked for.

        Args:
            document: The document, read to its end.
            frontier: What is known from the Source's documents so far.
            sent: When it was sent, by the clock of the Source; None if that is not told.

        Raises:
            DocumentError: It is none of the documents that can stand here, or is unusable.
        """
        if self.current.package is not None:
            return self._changes(package_coverage(document, self.current.uri), frontier)
        whole = self._pages.add(self.current.uri, document)
        if isinstance(whole, str):
            self.current = Fetch(whole, self.current.rung)
            return PullStep(fetch=self.current)
        document = whole
        if document.capability not in _MET[self.current.rung]:
            raise WrongDocument(f"a {self.current.rung} was expected, not {document.capability!r}")
        self._note_archive(document)
        if document.capability == Capability.CHANGE_LIST and not document.index:
            return self._changes(change_list_coverage(document, sent), frontier)
        return self._members(document, frontier)

    def broken(self, error: RsnotifyError, frontier: Frontier) -> PullStep:
        """Hear that what `current` asked for is of no use; its way is given up."""
        self._broken[self.current.rung] = error
        self._pages = PageJoiner()
        if self.at_first:
            self._left = self._others()
        return self._other_way(frontier)

    # One document

    def _note_archive(self, document: Document) -> None:
        """Prefer the link of a document to its archive (archives §2.2)."""
        link = document.link(Rel.ARCHIVES)
        rung = _ARCHIVES.get(document.capability or "")
        if link is not None and rung is not None and rung is not self._top.rung:
            self._ways[rung] = Fetch(resolve(self.current.uri, link), rung)

    def _changes(self, coverage: Coverage, frontier: Frontier) -> PullStep:
        if coverage.from_ is None:
            return self._next(frontier)  # empty, it proves nothing: no news
        if coverage.reaches(self._begins_by(frontier)):
            return self._next(frontier, coverage)
        return self._too_late(coverage.from_, frontier)

    def _members(self, document: Document, frontier: Frontier) -> PullStep:
        """Go down into an index, an archive or a dump."""
        joint = self._joint(frontier)
        # A member that does not say until when may hold something new.
        members = [one for one in document.resources if one.until is None or one.until > joint]
        if all(one.from_ is not None for one in members):
            members.sort(key=_begins)  # some Sources write the newest first
        begins = (members[0].from_ if members else None) or document.from_
        if begins is not None and begins > self._begins_by(frontier):
            return self._too_late(begins, frontier)
        packaged = document.capability == Capability.CHANGE_DUMP and not document.index
        fetches = [self._member(member, packaged=packaged) for member in members]
        self._queue.put_first(fetch for fetch in fetches if not self._was_read(fetch))
        return self._next(frontier)

    def _member(self, member: Resource, *, packaged: bool) -> Fetch:
        uri = resolve(self.current.uri, member.uri)
        package = msgspec.structs.replace(member, uri=uri) if packaged else None
        return Fetch(uri, self.current.rung, package)

    def _was_read(self, fetch: Fetch) -> bool:
        package = fetch.package
        if package is None or self._read.get(fetch.uri) != package:
            return False
        return (package.lastmod, package.hash, package.length) != (None, None, None)

    def _begins_by(self, frontier: Frontier) -> Instant:
        """Return where a document has to begin, at the latest."""
        joint = self._joint(frontier)
        tried = joint == self._left_at and not self._left
        # Where no other way is left, nothing tells more of an instant that may not be over.
        last = len(self._ways) == 1 or (self.at_first and tried)
        return frontier.instant if last and not frontier.running else joint

    def _joint(self, frontier: Frontier) -> Instant:
        """Return through where nothing can be missing."""
        accepted = frontier.instant == self._accepted
        return frontier.instant if accepted else frontier.joint

    # From one to the next

    def _too_late(self, begins: Instant, frontier: Frontier) -> PullStep:
        self._begins.append(begins)
        joint = self._joint(frontier)
        if joint != self._left_at and self._descents < _DESCENTS:
            # Something was learned since, so that each of the ways may join now.
            self._left_at = joint
            self._descents += 1
            self._left = self._others()
        return self._other_way(frontier)

    def _others(self) -> list[DocumentKind]:
        return [
            rung
            for rung in _ORDER
            if rung in self._ways and rung is not self._top.rung and rung not in self._broken
        ]

    def _other_way(self, frontier: Frontier) -> PullStep:
        while self._left:
            rung = self._left.pop(0)
            if rung not in self._broken:
                again = [] if self._top.rung in self._broken else [self._top]
                self._queue = DocumentQueue([self._ways[rung], *again])
                return self._next(frontier)
        joint = self._joint(frontier)
        begins = min((instant for instant in self._begins if instant > joint), default=None)
        failure = next(iter(self._broken.values()), None)
        if begins is not None and begins <= frontier.instant:
            if frontier.running:
                # It was not over when it was read, and what came of it since is told no more.
                return PullStep(
                    hole=None if failure else end_of_unit(frontier.instant) - MICROSECOND,
                    failure=failure,
                )
            self._accepted = frontier.instant
            self._queue = DocumentQueue([self._top])
            return self._next(frontier)
        return PullStep(hole=None if failure else begins, failure=failure)

    def _next(self, frontier: Frontier, coverage: Coverage | None = None) -> PullStep:
        following = self._queue.take()
        if following is not None:
            self.current = following
            return PullStep(coverage, following)
        if self._top.rung in self._broken:
            return msgspec.structs.replace(self._other_way(frontier), coverage=coverage)
        return PullStep(coverage)
