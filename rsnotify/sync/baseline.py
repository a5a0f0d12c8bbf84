"""Chooses the documents of a baseline, which list all resources of a Source.

The root documents are the Resource List and the Resource Dump, and if these are broken, the latest
of their archived predecessors. One of them, read to its end, is enough. A `Baseline` receives each
document that it has requested and returns its entries; it does not use them.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec import Struct

from rsnotify.errors import RsnotifyError, WrongDocument
from rsnotify.format.coverage import is_ahead
from rsnotify.format.datetimes import Instant
from rsnotify.format.links import resolve
from rsnotify.format.model import Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.vocabulary import Capability, Rel
from rsnotify.sync.actions import ComparedList, DocumentKind, Fetch
from rsnotify.sync.fallback_order import DocumentQueue, fetch_member, resource_documents

_DUMPS = (DocumentKind.RESOURCE_DUMP, DocumentKind.RESOURCE_DUMP_ARCHIVE)
_ARCHIVES = (DocumentKind.RESOURCE_LIST_ARCHIVE, DocumentKind.RESOURCE_DUMP_ARCHIVE)
_ARCHIVE_CAPABILITIES = (Capability.RESOURCE_LIST_ARCHIVE, Capability.RESOURCE_DUMP_ARCHIVE)
#: The capabilities of documents reached from a root. A plain Sitemap has none (core §6.1).
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
    """Entries of one Resource List, or of the manifest of a `package`, as of `at`."""

    resources: tuple[Resource, ...]
    at: Instant
    package: str | None = None


class Baseline:
    """One pass over all resources of a Source.

    Args:
        offer: What the Source offers; at least one document must list resources.
        at_least: The value of `at` if no document states one.
        dump_first: Whether packages cost less than a GET for each missing resource.
        is_old: Returns whether a document that describes an instant cannot have anything new. A
            Resource List is read in any case: it costs little.
        last_dump: The dump that was read to its end the last time.
        until: A document that describes a later time is considered undated: its `at` is `at_least`.
    """

    def __init__(
        self,
        offer: Offer,
        at_least: Instant,
        *,
        dump_first: bool = False,
        is_old: Callable[[Instant], bool] = lambda at: False,
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
        self._last_dump = last_dump
        self._until = until
        #: The instant of a dump that was not compared, as it is too old to have anything new.
        self.old_dump_at: Instant | None = None
        #: Why a root could not be read to its end, if one could not.
        self.error: RsnotifyError | None = None
        if not self._remaining:
            self._remaining, self._archived = self._archived, []
        self._begin(self._remaining.pop(0))

    def _begin(self, root: Fetch) -> None:
        #: The root that is being read, and the document that was requested last.
        self.root = self.current = root
        #: Whether everything reached from the root was read, so far.
        self.complete = True
        self._at: Instant | None = None
        self._undated: Document | None = None
        #: The root, if it is a Resource List that was read.
        self.resource_list: ComparedList | None = None
        self._queue = DocumentQueue([root])
        self._queue.pop()

    @property
    def undated_dump(self) -> Document | None:
        """The dump that was read to its end, if it has no `at` to tell it from a later one."""
        return self._undated if self.complete else None

    @property
    def at(self) -> Instant:
        """The instant from which changes have to be followed: the earliest `at` read."""
        return self._at or self._at_least

    @property
    def by_dump(self) -> bool:
        return self.root.kind in _DUMPS

    def read(self, document: Document, sent: Instant | None = None) -> ListedResources | None:
        """Return the resources of the document requested by `current`, if it has any.

        `sent` is when it was sent, by the clock of the Source; None if that is not known.
        """
        package = self.current.package
        expected = _CAPABILITIES[self.current.kind] if package is None else _MANIFEST
        if document.capability not in expected:
            raise WrongDocument(f"a {self.root.kind} was expected, not {document.capability!r}")
        fingerprint = _fingerprint(document)
        if document.at is not None and is_ahead(document.at, sent):
            document = msgspec.structs.replace(document, at=sent)
        if self.current is self.root and self.root.kind is DocumentKind.RESOURCE_LIST:
            self.resource_list = ComparedList(fingerprint, document.at)
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
        if self.root.kind is DocumentKind.RESOURCE_LIST or self._at is not None:
            return False
        if document.at is not None:
            is_old = self._is_old(document.at)
            self.old_dump_at = document.at if is_old else None
            return is_old
        if document.capability != Capability.RESOURCE_DUMP or self._undated is not None:
            return False
        self._undated = document
        return document == self._last_dump

    def _listed(self, document: Document, sent: Instant | None) -> ListedResources:
        at = document.at or self._at or self._latest_lastmod(document)
        at = self._plausible(sent if sent is not None and is_ahead(at, sent) else at)
        self._lower_at(at)
        package = self.current.package
        return ListedResources(document.resources, at, package.uri if package else None)

    def _enqueue(self, members: tuple[Resource, ...], *, packaged: bool) -> None:
        self._queue.put_first(
            fetch_member(self.current, member, packaged=packaged) for member in members
        )

    def _latest_lastmod(self, document: Document) -> Instant:
        return max(
            (resource.lastmod for resource in document.resources if resource.lastmod),
            default=self._at_least,
        )

    def _plausible(self, at: Instant) -> Instant:
        return self._at_least if self._until is not None and at > self._until else at

    def _lower_at(self, at: Instant | None) -> None:
        if at is not None:
            at = self._plausible(at)
            self._at = at if self._at is None else min(self._at, at)

    def skip(self, error: RsnotifyError) -> None:
        """Skip the document requested by `current`, as it is unusable.

        The remaining packages are still read: their content need not be fetched one by one.
        """
        self.error = self.error or error
        self.complete = False
        if self.current.package is None:
            self._queue.clear()

    def next(self) -> Fetch | None:
        """Return what to read next; None if a root was read completely, or none is left."""
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
    """Return the fingerprint of a Resource List by its first document, if that tells it apart."""
    if document.at is None and (document.index or document.link(Rel.NEXT) is not None):
        return None
    return blake2b(msgspec.msgpack.encode(document), digest_size=16).digest()


def _latest_member(archive: Document) -> tuple[Resource, ...]:
    members = archive.resources
    dated = [(member.at, index) for index, member in enumerate(members) if member.at]
    return (members[max(dated)[1]],) if dated else members[-1:]
