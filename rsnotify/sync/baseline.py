"""Getting level from what a Source tells of all its resources.

The ways are its Resource List and its Resource Dump, and where these are broken, the youngest
of their archived predecessors. One that was read to its end is enough. A `Baseline` is told
each document that it asked for and says what comes next; it does not know what is done with
what was read.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from rsnotify.errors import RsnotifyError, WrongDocument
from rsnotify.format.coverage import is_ahead
from rsnotify.format.datetimes import Instant
from rsnotify.format.links import resolve
from rsnotify.format.model import Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.vocabulary import Capability, Rel
from rsnotify.sync.actions import DocumentKind, Fetch
from rsnotify.sync.fallback_order import DocumentQueue, resource_ways

_DUMPS = (DocumentKind.RESOURCE_DUMP, DocumentKind.RESOURCE_DUMP_ARCHIVE)
_ARCHIVES = (DocumentKind.RESOURCE_LIST_ARCHIVE, DocumentKind.RESOURCE_DUMP_ARCHIVE)
#: What may be met on a way. A plain Sitemap has no capability (core §6.1).
_MET = {
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


class ListedResources(Struct, frozen=True):
    """Entries of one Resource List, or of the manifest of one package.

    Args:
        at: The instant they speak of.
        package: The URI of the package that holds their content, if it is one.
    """

    resources: tuple[Resource, ...]
    at: Instant
    package: str | None = None


class Baseline:
    """One walk over all that a Source says to have.

    Args:
        offer: Where the Source tells its resources; at least one way must be there.
        at_least: What `at` is taken for where no document says it.
        dump_first: Whether packages cost less than a GET for each resource that is missing.
        is_old: Tells of an instant whether what speaks of it cannot say anything new. A
            Resource List is read all the same: it costs little.
        walked: The dump that was read to its end the last time.
        until: What speaks of a time later than this tells no time: it counts for `at_least`.
    """

    def __init__(
        self,
        offer: Offer,
        at_least: Instant,
        *,
        dump_first: bool = False,
        is_old: Callable[[Instant], bool] = lambda at: False,
        walked: Document | None = None,
        until: Instant | None = None,
    ) -> None:
        ways = resource_ways(offer)
        live = [way for way in ways if way.rung not in _ARCHIVES]
        archived = [way for way in ways if way.rung in _ARCHIVES]
        self._ahead = live[::-1] if dump_first else live
        self._archived = archived[::-1] if dump_first else archived
        self._at_least = at_least
        self._is_old = is_old
        self._walked = walked
        self._until = until
        #: Why a way could not be read to its end, if one could not.
        self.error: RsnotifyError | None = None
        if not self._ahead:
            self._ahead, self._archived = self._archived, []
        self._begin(self._ahead.pop(0))

    def _begin(self, way: Fetch) -> None:
        #: Where the walk is.
        self.way = self.current = way
        #: Whether all was read that belongs to the way, so far.
        self.complete = True
        self._at: Instant | None = None
        self._undated: Document | None = None
        self._queue = DocumentQueue([way])
        self._queue.take()

    @property
    def walked(self) -> Document | None:
        """The dump that was read to its end, if only its looks tell it from a later one."""
        return self._undated if self.complete else None

    @property
    def at(self) -> Instant:
        """The instant from which changes have to be followed: the earliest `at` read."""
        return self._at or self._at_least

    @property
    def by_dump(self) -> bool:
        """Whether the way is a dump."""
        return self.way.rung in _DUMPS

    def read(self, document: Document, sent: Instant | None = None) -> ListedResources | None:
        """Take the document that `current` asked for; return its resources, if it has any.

        Args:
            document: The document.
            sent: When it was sent, by the clock of the Source; None if that is not known.

        Raises:
            WrongDocument: It is none of the documents that can stand here.
        """
        package = self.current.package
        met = _MET[self.current.rung] if package is None else (Capability.RESOURCE_DUMP_MANIFEST,)
        if document.capability not in met:
            raise WrongDocument(f"a {self.way.rung} was expected, not {document.capability!r}")
        if document.at is not None and is_ahead(document.at, sent):
            document = msgspec.structs.replace(document, at=sent)
        following = document.link(Rel.NEXT) if package is None else None
        if following is not None:
            page = resolve(self.current.uri, following)
            self._queue.put_page(Fetch(page, self.way.rung))
        if document.capability in (
            Capability.RESOURCE_LIST_ARCHIVE,
            Capability.RESOURCE_DUMP_ARCHIVE,
        ):
            self._enqueue(_youngest(document), packaged=False)
        elif self._tells_nothing_new(document):
            self.complete = False
            self._queue.clear()
        elif document.index or document.capability == Capability.RESOURCE_DUMP:
            self._note(document.at)
            self._enqueue(document.resources, packaged=not document.index)
        else:
            return self._listed(document, sent)
        return None

    def _tells_nothing_new(self, document: Document) -> bool:
        if self.way.rung is DocumentKind.RESOURCE_LIST or self._at is not None:
            return False
        if document.at is not None:
            return self._is_old(document.at)
        if document.capability != Capability.RESOURCE_DUMP or self._undated is not None:
            return False
        self._undated = document
        return document == self._walked

    def _listed(self, document: Document, sent: Instant | None) -> ListedResources:
        at = document.at or self._at or self._latest(document)
        at = self._believed(sent if sent is not None and is_ahead(at, sent) else at)
        self._note(at)
        package = self.current.package
        return ListedResources(document.resources, at, package.uri if package else None)

    def _enqueue(self, members: tuple[Resource, ...], *, packaged: bool) -> None:
        fetches = []
        for member in members:
            uri = resolve(self.current.uri, member.uri)
            package = msgspec.structs.replace(member, uri=uri) if packaged else None
            fetches.append(Fetch(uri, self.way.rung, package))
        self._queue.put_first(fetches)

    def _latest(self, document: Document) -> Instant:
        return max(
            (resource.lastmod for resource in document.resources if resource.lastmod),
            default=self._at_least,
        )

    def _believed(self, at: Instant) -> Instant:
        return self._at_least if self._until is not None and at > self._until else at

    def _note(self, at: Instant | None) -> None:
        if at is not None:
            at = self._believed(at)
            self._at = at if self._at is None else min(self._at, at)

    def broken(self, error: RsnotifyError) -> None:
        """Hear that what `current` asked for is of no use.

        The packages that are left are still read: what they have need not be fetched one by one.
        """
        self.error = self.error or error
        self.complete = False
        if self.current.package is None:
            self._queue.clear()

    def next(self) -> Fetch | None:
        """Return what to read next; None when a way is complete, or none is left."""
        following = self._queue.take()
        if following is not None:
            self.current = following
            return following
        if self.complete:
            return None
        if not self._ahead and self.error is not None:
            self._ahead, self._archived = self._archived, []
        if not self._ahead:
            return None
        self._begin(self._ahead.pop(0))
        return self.way


def _youngest(archive: Document) -> tuple[Resource, ...]:
    """Return the member of an archive that speaks of the latest instant."""
    dated = [(member.at, place) for place, member in enumerate(archive.resources) if member.at]
    return (archive.resources[max(dated)[1]],) if dated else archive.resources[-1:]
