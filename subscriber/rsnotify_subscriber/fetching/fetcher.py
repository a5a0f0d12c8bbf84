"""Fetches documents and content over HTTP, within limits, and without blocking the event loop.

Only complete documents, and content with the announced hash and length, are returned. Small
documents are cached with their validators, so a poll that finds nothing new costs only a 304. This
module limits the time for reading a document, and the number of large documents that the
subscribers of a process read at once; `rsnotify.format.reader.Limits` limits the size.

Small content stays in memory until a worker thread writes it, because creating a file can block as
long as flushing the disk.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import (
    ContentMismatch,
    DocumentError,
    MalformedDocument,
    NotFound,
    StorageError,
    Unavailable,
)
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.hashes import Digester, verified_hashes
from rsnotify.format.links import parse_links, resolve
from rsnotify.format.model import Document, Resource
from rsnotify.format.reader import SitemapReader, with_resources
from rsnotify.runtime.reasons import reason_of
from rsnotify_subscriber.fetching.responses import (
    Response,
    ResponseOrigin,
    body,
    check_status,
    check_type,
    content_validator,
    format_http_date,
    inflated_if_gzip,
    is_encoded,
    media_type,
    modified_at,
    read_beginning,
    sent_at,
    validator,
    with_http_date,
)
from rsnotify_subscriber.fetching.sessions import RequestRate, Sessions
from rsnotify_subscriber.fetching.small_requests import SMALL_BYTES, SmallResponse

#: The flag for binary mode on Windows.
_BINARY: int = getattr(os, "O_BINARY", 0)
#: Maximum number of bytes of content to keep in memory.
_MAX_BYTES_IN_MEMORY = 131_072


class Content(Struct, frozen=True):
    """Verified content.

    Args:
        path: A file for the content only, which `write` writes.
        hashes: The digests of the content, as a `hash` attribute: SHA-256 and the announced ones.
        length: The length of the content in bytes.
        data: The content, unless it is in the file already.
        validator: The header field for a conditional request, or None.
        type: The media type according to the server, unless a hash has proved the content.
        fetched_at: When the resource's own server sent it, by its clock, in microseconds since
            1970. 0 if unknown, None if it came from elsewhere.
        modified: The latest time when it can have been modified, if the response shows this.
        doubt: Why it may differ from the announcement, or an empty string.
    """

    path: Path
    hashes: str
    length: int
    data: bytes | None = None
    validator: str | None = None
    type: str | None = None
    fetched_at: int | None = None
    modified: Instant | None = None
    doubt: str = ""

    def write(self) -> None:
        """Write the content to the file, unless it is there already."""
        if self.data is not None:
            # Python's file objects are slower than the system calls.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY, 0o666)
            try:
                written = os.write(descriptor, self.data)
                while written < len(self.data):
                    written += os.write(descriptor, self.data[written:])
            finally:
                os.close(descriptor)

    def read(self) -> bytes:
        return self.path.read_bytes() if self.data is None else self.data

    def discard(self) -> None:
        """Remove the file, if it exists."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)


class Unchanged(Struct, frozen=True):
    """A 304 response: the content has not changed. For the fields, see `Content`."""

    fetched_at: int
    modified: Instant | None = None
    doubt: str = ""


#: Maximum number of entries in a cached document.
_MAX_CACHED_ENTRIES = 10_000
#: Number of characters in links that need about as much memory as one entry.
_CHARACTERS_PER_ENTRY = 2_000


class CachedDocument(Struct, frozen=True):
    """The last received version of a document, and the header field for a conditional request."""

    document: Document
    condition: tuple[str, str]
    entries: int


class DocumentCache:
    """An LRU cache of documents by URI, for one or several subscribers.

    It limits the number of documents, and of entries in all of them.
    """

    def __init__(self, documents: int = 4, entries: int = 4 * _MAX_CACHED_ENTRIES) -> None:
        self._most_documents = documents
        self._most_entries = entries
        self._kept: OrderedDict[str, CachedDocument] = OrderedDict()
        self._entries = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, uri: str) -> CachedDocument | None:
        if uri in self._kept:
            self._kept.move_to_end(uri)
        return self._kept.get(uri)

    def put(self, uri: str, document: Document, condition: tuple[str, str] | None) -> None:
        """Cache a document. Without a condition, only remove its previous version."""
        before = self._kept.pop(uri, None)
        if before is not None:
            self._entries -= before.entries
        entries = _weight(document)
        if condition is not None and entries <= min(_MAX_CACHED_ENTRIES, self._most_entries):
            self._kept[uri] = CachedDocument(document, condition, entries)
            self._entries += entries
        while len(self._kept) > self._most_documents or self._entries > self._most_entries:
            _, oldest = self._kept.popitem(last=False)
            self._entries -= oldest.entries


def _weight(document: Document) -> int:
    content = sum(len(link.href) for one in document.resources for link in one.links)
    return len(document.resources) + content // _CHARACTERS_PER_ENTRY


#: Timeout in seconds for reading a document.
DOCUMENT_TIMEOUT = 1_800.0
#: Number of bytes of XML above which a document is large.
LARGE_BYTES = 8_000_000
#: Number of bytes to parse at a time. In the worst case, this takes a few milliseconds.
_PARSED_BYTES = 32_768


async def stream_document(
    uri: str,
    response: aiohttp.ClientResponse,
    large: asyncio.Semaphore,
    feed: Callable[[bytes], object],
) -> None:
    """Pass a document to `feed` in decompressed pieces.

    When the document turns out to be large, this acquires the semaphore `large`.

    Raises:
        MalformedDocument: The document's compression is damaged.
        Unavailable: It did not arrive in time, or has an encoding that was not requested.
    """
    size = 0
    is_large = False
    try:
        async with asyncio.timeout(DOCUMENT_TIMEOUT) as bound:
            async for chunk in inflated_if_gzip(body(uri, response)):
                size += len(chunk)
                if size > LARGE_BYTES and not is_large:
                    is_large = await large.acquire()
                for start in range(0, len(chunk), _PARSED_BYTES):
                    feed(chunk[start : start + _PARSED_BYTES])
                    await asyncio.sleep(0)
    except (zlib.error, ContentMismatch) as error:
        raise MalformedDocument(f"its compression is damaged: {error}", source=uri) from None
    except TimeoutError:
        if not bound.expired():
            raise
        reason = f"reading it took longer than {DOCUMENT_TIMEOUT:.0f} seconds"
        raise Unavailable(uri, reason) from None
    finally:
        if is_large:
            large.release()


#: Default for the maximum number of bytes of content without an announced length.
MAX_CONTENT_BYTES = 2**30
#: Maximum number of bytes of an HTML page or robots.txt to search for links.
_SEARCHED_BYTES = 1_000_000
#: The header fields of a request that bypasses caches (RFC 9111 §5.2.1.4, §5.4).
_BYPASS_CACHES = {"Cache-Control": "no-cache", "Pragma": "no-cache"}


class FetchedDocument(Struct, frozen=True):
    """The response for a URI that may be a document or a page.

    Args:
        links: The Link headers as (relation, URI).
        document: The document, if the response is one.
        text: The beginning of an HTML page or of robots.txt.
        error: Why the response cannot be read as a document.
    """

    links: list[tuple[str, str]]
    document: Document | None = None
    text: str = ""
    error: DocumentError | None = None


class Fetcher:
    """Fetches documents and content for one subscriber.

    The methods raise `FetchError` for anything that cannot be fetched or differs from the
    announcement, and `StorageError` for content that cannot be written.

    Args:
        sessions: The HTTP requests of the subscriber.
        folder: The folder for content. File names are never reused.
        largest: Maximum number of bytes of content without an announced length.
        cache: The cache of small documents, which several fetchers can share.
        rate: Maximum number of requested resources per second, or None for no limit.
    """

    def __init__(
        self,
        sessions: Sessions,
        folder: Path,
        largest: int = MAX_CONTENT_BYTES,
        cache: DocumentCache | None = None,
        rate: float | None = None,
    ) -> None:
        self._sessions = sessions
        self._folder = folder
        self._largest = largest
        self._files = 0
        self.cache = DocumentCache() if cache is None else cache
        self._rate = RequestRate(rate)
        #: Number of bytes of documents and content received.
        self.received = 0

    async def document(self, uri: str) -> Document:
        """GET a complete document. Raise `DocumentError` if it cannot be read."""
        return (await self.dated_document(uri))[0]

    async def current_document(self, uri: str, origin: ResponseOrigin) -> Document:
        """GET a document, bypassing caches, and fill in `origin`."""
        return (await self.dated_document(uri, origin, fresh=True))[0]

    async def dated_document(
        self, uri: str, origin: ResponseOrigin | None = None, *, fresh: bool = False
    ) -> tuple[Document, Instant | None]:
        """GET a complete document. Return it with the `Date` of the response, or None."""
        cached = self.cache.get(uri)
        headers = {"Accept-Encoding": "gzip"}
        if fresh:
            headers["Cache-Control"] = "no-cache"
        if cached is not None:
            name, value = cached.condition
            headers[name] = value
        async with self._sessions.get(uri, headers, origin) as response:
            if cached is not None and response.status == 304:
                return cached.document, sent_at(response)
            check_status(uri, response)
            return await self._read(uri, response), sent_at(response)

    async def page(self, uri: str, origin: ResponseOrigin) -> FetchedDocument:
        """GET a page or a document, and fill in `origin`."""
        headers = {"Accept-Encoding": "gzip", "Cache-Control": "no-cache"}
        async with self._sessions.get(uri, headers, origin) as response:
            check_status(uri, response)
            found = parse_links(response.headers.getall("Link", []))
            links = [(rel, resolve(origin.base, target)) for rel, target in found]
            is_robots = response.content_type == "text/plain" and uri.endswith("/robots.txt")
            if is_robots or response.content_type in ("text/html", "application/xhtml+xml"):
                page = await read_beginning(uri, response, _SEARCHED_BYTES)
                return FetchedDocument(links, text=page.decode(errors="replace"))
            try:
                return FetchedDocument(links, document=await self._read(uri, response))
            except DocumentError as error:
                return FetchedDocument(links, error=error)

    async def _read(self, uri: str, response: aiohttp.ClientResponse) -> Document:
        reader = SitemapReader()
        resources: list[Resource] = []

        def feed(piece: bytes) -> None:
            self.received += len(piece)
            resources.extend(reader.feed(piece))

        try:
            await stream_document(uri, response, self._sessions.large, feed)
            document = with_http_date(with_resources(reader.close(), resources), response)
        except DocumentError as error:
            raise error.at(uri) from None
        self.cache.put(uri, document, validator(response))
        return document

    async def exists(self, uri: str) -> bool:
        """Return whether the server has a resource, without reading its content."""
        headers = {"Accept-Encoding": "identity", "Cache-Control": "no-cache"}
        try:
            async with self._sessions.get(uri, headers) as response:
                check_status(uri, response)
        except NotFound:
            return False
        return True

    async def content(
        self,
        resource: Resource,
        *,
        most: int | None = None,
        moment: Instant | None = None,
        fresh: bool = False,
    ) -> Content:
        """GET the content of a resource, and verify it against the announced hash and length.

        Args:
            resource: The resource, with the announced hash and length.
            most: Maximum number of bytes, or None for the limit of the Fetcher.
            moment: The instant of the version to request from a TimeGate (core §14.6).
            fresh: Whether to bypass caches.
        """
        is_plain = moment is None and not fresh
        if is_plain and resource.length is not None and resource.length <= SMALL_BYTES:
            await self._rate.wait()
            small = await self._sessions.get_small(resource.uri)
            if small is not None:
                return self._receive_small(resource, small, most)
        headers = dict(_BYPASS_CACHES) if fresh else {}
        if moment is not None:
            headers["Accept-Datetime"] = format_http_date(moment)
        async with self._answer(resource.uri, headers) as response:
            if moment is not None and "Memento-Datetime" not in response.headers:
                raise Unavailable(resource.uri, "the TimeGate did not return a Memento")
            return await self._receive(resource, response, most)

    async def current_content(self, resource: Resource) -> Content:
        """GET a resource's current content, bypassing caches, without verifying it.

        Its digests use the same algorithms as the announced hash.
        """
        async with self._answer(resource.uri, _BYPASS_CACHES) as response:
            return await self._receive(resource, response, None, verify=False)

    async def changed_content(self, resource: Resource, since: str) -> Content | Unchanged:
        """GET the content of a resource, unless its validator is still `since`."""
        name, _, value = since.partition(": ")
        async with self._answer(resource.uri, {name: value}) as response:
            if response.status == 304:
                return Unchanged(_fetched_at(response), modified_at(response))
            return await self._receive(resource, response, None)

    @asynccontextmanager
    async def _answer(
        self, uri: str, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        await self._rate.wait()
        async with self._sessions.get(uri, {"Accept-Encoding": "identity", **headers}) as response:
            yield response

    async def _receive(
        self,
        resource: Resource,
        response: aiohttp.ClientResponse,
        most: int | None,
        *,
        verify: bool = True,
    ) -> Content:
        uri = resource.uri
        check_status(uri, response)
        if verify:
            check_type(resource, media_type(response))
        most = most or max(self._largest, resource.length or 0)
        chunks = self._counted(body(uri, response))
        content = await self.collect(
            resource, chunks, recoded=is_encoded(response), most=most, verify=verify
        )
        return _dated(content, response, is_proven=resource.hash is not None and verify)

    async def _counted(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            self.received += len(chunk)
            yield chunk

    def _receive_small(
        self, resource: Resource, response: SmallResponse, most: int | None
    ) -> Content:
        check_status(resource.uri, response)
        check_type(resource, media_type(response))
        self.received += len(response.body)
        most = most or max(self._largest, resource.length or 0)
        if len(response.body) > most:
            raise ContentMismatch(resource.uri, f"it has more than {most} bytes")
        hashes = verified_hashes(response.body, resource.hash, resource.length)
        if hashes is None:
            digester = Digester(resource.hash)
            digester.update(response.body)
            digester.verify(resource)  # raises
            hashes = digester.hashes
        content = self.store(response.body, hashes)
        return _dated(content, response, is_proven=resource.hash is not None)

    async def collect(
        self,
        resource: Resource,
        chunks: AsyncIterator[bytes],
        *,
        recoded: bool = False,
        most: int | None = None,
        verify: bool = True,
    ) -> Content:
        """Collect a resource's content from chunks, in a file if it is large.

        Args:
            resource: The resource, with the announced hash and length.
            chunks: The content.
            recoded: Whether the server applied a content encoding, so that the length may differ.
            most: Maximum number of bytes.
            verify: Whether to raise `ContentMismatch` if the content differs from the announcement.
        """
        announced = resource.length if verify and not recoded else None
        path, digester, data = self._new_file(), Digester(resource.hash), bytearray()
        in_file = False
        try:
            async for chunk in chunks:
                digester.update(chunk)
                data += chunk
                if len(data) > _MAX_BYTES_IN_MEMORY:
                    in_file = True
                    await asyncio.to_thread(_move_to_file, data, path, resource.uri)
                if announced is not None and digester.length > announced:
                    break  # the exact length does not matter
                if most is not None and digester.length > most:
                    raise ContentMismatch(resource.uri, f"it has more than {most} bytes")
            if verify:
                digester.verify(resource, recoded=recoded)
            if in_file:
                await asyncio.to_thread(_move_to_file, data, path, resource.uri)
        except BaseException:
            if in_file:
                await asyncio.to_thread(path.unlink, missing_ok=True)
            raise
        return Content(path, digester.hashes, digester.length, None if in_file else bytes(data))

    def store(self, data: bytes, hashes: str) -> Content:
        """Return verified content, to be written to a new file."""
        return Content(self._new_file(), hashes, len(data), data)

    def _new_file(self) -> Path:
        self._files += 1
        return self._folder / str(self._files)


def _move_to_file(data: bytearray, path: Path, uri: str) -> None:
    try:
        with path.open("ab") as file:
            file.write(data)
    except OSError as error:
        raise StorageError(f"{uri}: {reason_of(error)}") from error
    data.clear()


def _dated(content: Content, response: Response, *, is_proven: bool) -> Content:
    fetched_at = _fetched_at(response)
    if is_proven:
        # The hash proves the content, and reveals later changes.
        return replace(content, fetched_at=fetched_at)
    return replace(
        content,
        validator=content_validator(response),
        type=media_type(response),
        fetched_at=fetched_at,
        modified=modified_at(response),
    )


def _fetched_at(response: Response) -> int:
    sent = sent_at(response)
    return 0 if sent is None else to_microseconds(sent)
