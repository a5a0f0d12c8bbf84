"""HTTP responses: their status, dates, validators, encodings and origin.

Bodies are decompressed in pieces, so that decompression bombs do not exhaust the memory. (Honest
lists inflate up to 73 times, bombs 1,000 times.)
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import lru_cache
from time import monotonic
from typing import Protocol

import aiohttp
import msgspec
from msgspec import Struct
from multidict import MultiMapping

from rsnotify.errors import ContentMismatch, Gone, NotFound, Unavailable
from rsnotify.format.datetimes import Instant, parse_http_date
from rsnotify.format.media_types import contradicts
from rsnotify.format.model import Capability, Document, Resource
from rsnotify.sync.retry import parse_retry_after

_PIECE = 65_536
#: Maximum number of compressed bytes without content, because a stream of empty members or blocks
#: might never end.
_MAX_EMPTY_BYTES = 1_000_000
_GZIP_MAGIC = b"\x1f\x8b"
_ANY_HEADER = 32 + zlib.MAX_WBITS  # gzip or zlib, as zlib itself detects


class Inflater:
    """Decompresses a gzip or zlib stream, with any number of members.

    Call `feed` with every chunk, then `close`. Both raise `zlib.error` if the stream is damaged.
    """

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_ANY_HEADER)
        self._bytes_in = 0
        self._bytes_out = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the content of a chunk in pieces."""
        # Each piece copies the rest of the chunk, so split large chunks first.
        for start in range(0, len(chunk), _PIECE):
            left = chunk[start : start + _PIECE]
            self._bytes_in += len(left)
            while left:
                if self._stream.eof:
                    self._stream = zlib.decompressobj(_ANY_HEADER)
                piece = self._stream.decompress(left, _PIECE)
                if piece:
                    self._bytes_out += len(piece)
                    yield piece
                left = self._stream.unconsumed_tail or self._stream.unused_data
            if self._bytes_in > 2 * self._bytes_out + _MAX_EMPTY_BYTES:
                raise zlib.error("it has hardly any content")

    def close(self) -> None:
        """Check that the stream is complete."""
        if self._bytes_in and not self._stream.eof:
            raise zlib.error("the compressed stream ended too early")


async def inflated(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Decompress a body. Raise `zlib.error` if it is damaged or incomplete."""
    inflater = Inflater()
    async for chunk in chunks:
        for piece in inflater.feed(chunk):
            yield piece
    inflater.close()


async def inflated_if_gzip(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Decompress a body that begins like gzip (as in a `.xml.gz` file), but no other."""
    head = b""
    inflater: Inflater | None = None
    decided = False
    async for chunk in chunks:
        if not decided:
            chunk = head = head + chunk
            if len(head) < len(_GZIP_MAGIC):
                continue
            decided = True
            inflater = Inflater() if head.startswith(_GZIP_MAGIC) else None
        if inflater is None:
            yield chunk
        else:
            for piece in inflater.feed(chunk):
                yield piece
    if inflater is not None:
        inflater.close()
    elif not decided and head:
        yield head


#: Seconds after Last-Modified before it can serve as a validator (RFC 9110 §8.8.2.2): until then,
#: another change may get the same date.
_MIN_DATE_AGE = 60.0
#: The same for entity tags: some servers, such as nginx, derive them from Last-Modified.
_MIN_TAG_AGE = 2.0
#: Seconds of grace and, after that, minimum bytes per second for receiving a body.
BODY_GRACE = 60.0
MIN_BYTES_PER_SECOND = 1_000


class SentRequest(Struct, frozen=True):
    """The header fields of a request that depend on the resource."""

    headers: Mapping[str, str]


class Response(Protocol):
    """The part of `aiohttp.ClientResponse` that this module uses."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> MultiMapping[str]: ...

    @property
    def request_info(self) -> SentRequest | aiohttp.RequestInfo: ...


def check_status(uri: str, response: Response) -> None:
    """Raise `NotFound` for status 404, `Gone` for 410, and `Unavailable` for all but 200."""
    status = response.status
    if status == 200:
        return
    if status in (404, 410):
        raise (Gone if status == 410 else NotFound)(uri, f"the server says {status}")
    reason = f"the server says {status}"
    if "Authorization" in response.request_info.headers:
        reason += " to the credentials that were sent" if status in (401, 403) else ""
    elif status == 401:
        reason += (
            ": it requires credentials, but none were sent; set them with --login, --bearer, "
            "--header or a netrc file (only for the scheme, host and port of the Source's URL)"
        )
    raise Unavailable(uri, reason, retry_after(response), status=status)


def media_type(response: Response) -> str | None:
    return response.headers.get("Content-Type")


def check_type(resource: Resource, served: str | None) -> None:
    """Raise `ContentMismatch` if the media type shows that this is not the announced content.

    Many servers answer with a login or error page and the status 200. If a hash was announced, the
    content itself reveals that.
    """
    if resource.hash is None and contradicts(resource.type, served):
        raise ContentMismatch(
            resource.uri,
            f"the server sent {served}, but {resource.type} was announced; it may be a login or "
            "error page. If the server is right, the Source should announce that type, or a hash",
        )


def check_transfer(uri: str, response: Response) -> None:
    """Raise `Unavailable` if the content has an unknown Transfer-Encoding (RFC 9112 §6.1)."""
    if "Transfer-Encoding" not in response.headers:
        return
    codings = ",".join(response.headers.getall("Transfer-Encoding", [])).lower().split(",")
    for coding in map(str.strip, codings):
        if coding not in ("", "chunked", "identity"):
            reason = f"it has the Transfer-Encoding {coding}, which was not requested"
            raise Unavailable(uri, reason, status=response.status)


def retry_after(response: Response) -> float | None:
    """Return the seconds until the time in Retry-After, or None.

    If it is a date, it is compared with the `Date` of the response.
    """
    now = sent_at(response) or datetime.now(UTC)
    return parse_retry_after(response.headers.get("Retry-After", ""), now)


def format_http_date(moment: Instant) -> str:
    return format_datetime(moment, usegmt=True)


def validator(response: Response) -> tuple[str, str] | None:
    """Return the header field for a conditional request, or None if that is not safe.

    It is not safe if another modification may get the same validator (RFC 9110 §8.8.2.2), because
    the response came soon after the modification, or has no date.
    """
    sent = sent_at(response)
    if sent is None:
        return None
    modified = response.headers.get("Last-Modified", "")
    since = _parsed(modified)
    age = None if since is None else (sent - since).total_seconds()
    etag = response.headers.get("ETag", "")
    if etag and etag.isascii():  # other bytes cannot be sent back unchanged
        return ("If-None-Match", etag) if age is None or age >= _MIN_TAG_AGE else None
    return ("If-Modified-Since", modified) if age is not None and age > _MIN_DATE_AGE else None


def content_validator(response: Response) -> str | None:
    """Return the header field for a conditional request that detects every changed byte."""
    condition = validator(response)
    # RFC 9110 §8.8.1: a weak validator may stay the same while bytes change.
    return None if condition is None or condition[1].startswith("W/") else ": ".join(condition)


def modified_at(response: Response) -> Instant | None:
    """Return the latest time when the content can have been modified, by the server's clock.

    This is the earliest of Last-Modified (unless it is just the time of the response, as from some
    servers), Memento-Datetime, and the time when a cache received the response. None if the
    response has none of these.
    """
    headers = response.headers
    sent = sent_at(response)
    times = []
    modified = _parsed(headers.get("Last-Modified", ""))
    if modified and sent and (sent - modified).total_seconds() >= _MIN_TAG_AGE:
        times.append(modified)
    if memento := _parsed(headers.get("Memento-Datetime", "")):
        times.append(memento)
    if sent and headers.get("Age", "").strip().strip("0"):  # RFC 9111 §5.1
        times.append(sent)
    return min(times, default=None)


def is_encoded(response: Response) -> bool:
    return response.headers.get("Content-Encoding", "identity").strip().lower() != "identity"


async def body(uri: str, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the decoded body.

    Raises:
        ContentMismatch: The body is damaged.
        Unavailable: It has a Content-Encoding that was not requested, or arrives too slowly.
    """
    chunks = _steady(uri, response.content.iter_any())
    if not is_encoded(response):
        async for chunk in chunks:
            yield chunk
        return
    encoding = response.headers["Content-Encoding"].strip().lower()
    if encoding not in ("gzip", "x-gzip", "deflate"):
        reason = f"it has the Content-Encoding {encoding}, which was not requested"
        raise Unavailable(uri, reason, status=response.status)
    try:
        async for piece in inflated(chunks):
            yield piece
    except zlib.error as error:
        raise ContentMismatch(uri, f"its compression is damaged: {error}") from None


async def read_beginning(uri: str, response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body, up to `most` bytes. Raises the errors of `body`."""
    data = bytearray()
    async for chunk in body(uri, response):
        data += chunk
        if len(data) > most:
            break
    return bytes(data[:most])


async def _steady(uri: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Reject a body that arrives too slowly, because it blocks a connection."""
    begun = monotonic()
    received = 0
    async for chunk in chunks:
        received += len(chunk)
        if monotonic() - begun > BODY_GRACE + received / MIN_BYTES_PER_SECOND:
            reason = f"it arrives at less than {MIN_BYTES_PER_SECOND} bytes per second"
            raise Unavailable(uri, reason)
        yield chunk


def sent_at(response: Response) -> Instant | None:
    """Return the `Date` of a response (RFC 9110 §6.6.1), or None."""
    return _parsed(response.headers.get("Date", ""))


# Cached, because many responses have the same Date or Last-Modified.
_parsed = lru_cache(maxsize=64)(parse_http_date)


def with_http_date(document: Document, response: aiohttp.ClientResponse) -> Document:
    """Set the missing `at` of a Resource List from an HTTP date."""
    lists = (Capability.RESOURCE_LIST, None)
    if document.at is not None or document.index or document.capability not in lists:
        return document
    headers = response.headers
    at = _parsed(headers.get("Last-Modified", "")) or sent_at(response)
    return document if at is None else msgspec.structs.replace(document, at=at)


_PERMANENT = frozenset({301, 308})


class ResponseOrigin:
    """Where a response came from, and when."""

    def __init__(self, uri: str) -> None:
        #: The URI for the next request, after permanent redirects (RFC 9110 §15.4).
        self.place = uri
        #: The base URI of relative references in the response (RFC 3986 §5.1.3).
        self.base = uri
        #: The `Date` of the response, by the server's clock.
        self.sent: Instant | None = None
        #: Whether the response came from a cache.
        self.cached = False
        self._permanent = True

    def redirected(self, status: int, target: str) -> None:
        self._permanent = self._permanent and status in _PERMANENT
        self.base = target
        if self._permanent:
            self.place = target.partition("#")[0]

    def answered(self, response: aiohttp.ClientResponse) -> None:
        self.sent = sent_at(response)
        self.cached = response.headers.get("Age", "0").strip() != "0"
