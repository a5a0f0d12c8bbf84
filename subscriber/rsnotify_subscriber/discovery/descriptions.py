"""Reads the documents that describe a Source's offer: its Source Description and Capability Lists.

Each run requests them again. The state stores the last versions, so an unchanged document costs
only a 304, and a permanently moved document is requested at its new URI.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from rsnotify.errors import DocumentError, FetchError, Unavailable
from rsnotify.format.datetimes import format_datetime
from rsnotify.format.model import Capability, Document
from rsnotify.sync.pull import PageJoiner
from rsnotify_subscriber.fetching.fetcher import FetchedDocument, Fetcher
from rsnotify_subscriber.fetching.responses import ResponseOrigin
from rsnotify_subscriber.storage.identity import DescriptionMemory, StoredDescription

T = TypeVar("T", FetchedDocument, Document)

#: Maximum number of documents, and of redirects, to store. A Source needs one of each kind.
_MAX_STORED = 4
_STORED_KINDS = (Capability.DESCRIPTION, Capability.CAPABILITY_LIST)
#: Maximum number of entries, and of bytes of JSON, in a stored document.
_MAX_ENTRIES, _MAX_BYTES = 100, 64_000
#: The resolution of the dates in responses.
_SECOND = timedelta(seconds=1)


class DescriptionReader:
    """Reads the documents that describe one Source. The next run starts with their `memory`."""

    def __init__(self, fetcher: Fetcher, memory: DescriptionMemory | None = None) -> None:
        memory = memory or DescriptionMemory()
        self._fetcher = fetcher
        self._moved = dict(memory.moved)
        self._known = {one.uri: one for one in memory.documents}
        for one in memory.documents:
            if one.condition is not None and fetcher.cache.get(one.uri) is None:
                fetcher.cache.put(one.uri, one.document, one.condition)

    @property
    def memory(self) -> DescriptionMemory:
        """The documents to store for the next run."""
        return DescriptionMemory(tuple(self._known.values()), dict(self._moved))

    def current_uri(self, uri: str) -> str:
        """Return the URI to which a URI has permanently moved, or the URI itself."""
        return self._moved.get(uri, uri)

    async def page(self, uri: str) -> tuple[FetchedDocument, ResponseOrigin]:
        """GET the page or document that a user named."""
        page, origin = await self._at_current_uri(uri, self._page)
        if page.document is not None:
            page = replace(page, document=await self._whole(page.document, origin))
        return page, origin

    async def document(self, uri: str) -> tuple[Document, ResponseOrigin]:
        """GET the current version of a document, bypassing caches."""
        document, origin = await self._at_current_uri(uri, self._current)
        return await self._whole(document, origin), origin

    async def _whole(self, document: Document, origin: ResponseOrigin) -> Document:
        """Join the pages of a description (`rel="next"`)."""
        if document.capability not in _STORED_KINDS:
            return document
        pages, uri = PageJoiner(), origin.place
        while True:
            try:
                whole = pages.add(uri, document)
            except DocumentError as error:
                raise error.at(origin.place) from None
            if isinstance(whole, Document):
                return whole
            uri = whole
            document = await self._fetcher.current_document(uri, ResponseOrigin(uri))

    async def _at_current_uri(
        self, uri: str, get: Callable[[str, ResponseOrigin], Awaitable[T]]
    ) -> tuple[T, ResponseOrigin]:
        """GET the URI to which a URI has moved or, if that fails, the URI itself."""
        place = self.current_uri(uri)
        origin = ResponseOrigin(place)
        try:
            found = await get(place, origin)
        except (FetchError, DocumentError):
            if place == uri:
                raise
            origin = ResponseOrigin(uri)
            with suppress(FetchError, DocumentError):
                found = await get(uri, origin)
                self._record_move(uri, origin, found)
                return found, origin
            raise
        self._record_move(uri, origin, found)
        return found, origin

    async def _page(self, uri: str, origin: ResponseOrigin) -> FetchedDocument:
        page = await self._fetcher.page(uri, origin)
        if page.document is not None:
            self._remember(uri, page.document, origin)
        return page

    async def _current(self, uri: str, origin: ResponseOrigin) -> Document:
        document = await self._fetcher.current_document(uri, origin)
        self._check_current(uri, document, origin)
        self._remember(uri, document, origin)
        return document

    def _check_current(self, uri: str, document: Document, origin: ResponseOrigin) -> None:
        """Reject a cached copy that is older than the version received before."""
        known = self._known.get(uri)
        if known is None or known.sent is None or origin.sent is None or not origin.cached:
            return
        if document != known.document and origin.sent < known.sent - _SECOND:
            raise Unavailable(
                uri,
                f"a cache returned a version of {format_datetime(origin.sent)}, which is older "
                f"than the known one of {format_datetime(known.sent)}",
            )

    def _record_move(
        self, uri: str, origin: ResponseOrigin, found: FetchedDocument | Document
    ) -> None:
        if isinstance(found, FetchedDocument) and found.document is None:
            return  # a page may be a login portal
        self._moved.pop(uri, None)
        if origin.place != uri:
            self._moved[uri] = origin.place
        while len(self._moved) > _MAX_STORED:
            del self._moved[next(iter(self._moved))]

    def _remember(self, uri: str, document: Document, origin: ResponseOrigin) -> None:
        before = self._known.pop(uri, None)
        if document.capability not in _STORED_KINDS or len(document.resources) > _MAX_ENTRIES:
            return
        if len(msgspec.json.encode(document)) > _MAX_BYTES:
            return
        kept = self._fetcher.cache.get(uri)
        now = StoredDescription(
            uri, document, kept.condition if kept is not None else None, origin.sent
        )
        if before is not None and replace(before, sent=now.sent) == now:
            now = before  # avoids a commit if nothing else has changed
        self._known[uri] = now
        while len(self._known) > _MAX_STORED:
            del self._known[next(iter(self._known))]
