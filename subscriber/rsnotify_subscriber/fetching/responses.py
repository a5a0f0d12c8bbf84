"""HTTP responses: status, dates, validators, encodings, and their origin.

Bodies are decompressed in pieces of bounded size. An honest list compresses by a factor of 73, and
a decompression bomb by 1,000. Neither may be held in memory as a whole.
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
#: Maximum number of compressed bytes before the first content. After that, an honest stream never
#: has more bytes than its content, whereas a stream of empty members or blocks would never end.
_WITHOUT_CONTENT = 1_000_000
_GZIP_MAGIC = b"\x1f\x8b"
_ANY_HEADER = 32 + zlib.MAX_WBITS  # gzip or zlib, as zlib itself detects


class Inflater:
    """Decompresses all members of one gzip or zlib stream.

    Call `feed` with every chunk, then `close`. Both raise `zlib.error` if the stream is damaged.
    """

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_ANY_HEADER)
        self._bytes_in = 0
        self._bytes_out = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the content of this chunk in pieces."""
        # The rest of a chunk is copied for each piece, so chunks must not be large.
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
            if self._bytes_in > 2 * self._bytes_out + _WITHOUT_CONTENT:
                raise zlib.error("it has hardly any content")

    def close(self) -> None:
        """Check that the stream is complete."""
        if self._bytes_in and not self._stream.eof:
            raise zlib.error("the compressed stream ended too early")


async def inflated(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Decompress a body. Raise `zlib.error` if it is damaged or ends too early."""
    inflater = Inflater()
    async for chunk in chunks:
        for piece in inflater.feed(chunk):
            yield piece
    inflater.close()


async def inflated_if_gzip(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Decompress a body that begins like gzip (a `.xml.gz` file). Yield any other unchanged."""
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


#: RFC 9110 §8.8.2.2: a newer Last-Modified may hide a second change within the same second.
_SETTLED = 60.0
#: Many servers (nginx, for one) derive entity tags from Last-Modified and the length. Such a tag
#: also hides a change until the second of the modification, by a coarse clock, has ended.
_SETTLED_TAG = 2.0
#: After `PATIENCE` seconds, a body must have arrived at `SLOWEST` bytes per second at least.
PATIENCE = 60.0
SLOWEST = 1_000


class SentRequest(Struct, frozen=True):
    """The header fields of a request that depend on the requested resource."""

    headers: Mapping[str, str]


class Response(Protocol):
    """The head of a response, as in `aiohttp.ClientResponse`."""

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
            ": it asks for credentials, and none were sent; give some with --login, --bearer, "
            "--header or a netrc file (they go to the scheme, host and port of the Source's URL)"
        )
    raise Unavailable(uri, reason, retry_after(response), status=status)


def media_type(response: Response) -> str | None:
    return response.headers.get("Content-Type")


def check_type(resource: Resource, served: str | None) -> None:
    """Raise `ContentMismatch` if a media type shows that this is not the announced content.

    Many servers answer with a page of their own and the status 200 if signing in is required or a
    resource is missing. If a hash was announced, the content itself reveals that.
    """
    if resource.hash is None and contradicts(resource.type, served):
        raise ContentMismatch(
            resource.uri,
            f"the server sends {served}, and {resource.type} was announced; it may be a page "
            "for signing in or an error page. If the server is right, the Source has to announce "
            "that type, or a hash",
        )


def check_transfer(uri: str, response: Response) -> None:
    """Raise if a Transfer-Encoding would remain undecoded in the content (RFC 9112 §6.1)."""
    if "Transfer-Encoding" not in response.headers:
        return
    codings = ",".join(response.headers.getall("Transfer-Encoding", [])).lower().split(",")
    for coding in map(str.strip, codings):
        if coding not in ("", "chunked", "identity"):
            reason = f"it comes in Transfer-Encoding {coding}, which was not asked for"
            raise Unavailable(uri, reason, status=response.status)


def retry_after(response: Response) -> float | None:
    """Return the seconds in the Retry-After field, if there is one.

    A date in it is by the server's clock, which `Date` shows.
    """
    now = sent_at(response) or datetime.now(UTC)
    return parse_retry_after(response.headers.get("Retry-After", ""), now)


def format_http_date(moment: Instant) -> str:
    return format_datetime(moment, usegmt=True)


def validator(response: Response) -> tuple[str, str] | None:
    """Return the header field for a conditional request for this document, if that is safe.

    None if the response came so soon after the modification that another modification may get the
    same validator (RFC 9110 §8.8.2.2), or if it has no date to rule this out.
    """
    sent = sent_at(response)
    if sent is None:
        return None
    modified = response.headers.get("Last-Modified", "")
    since = _parsed(modified)
    age = None if since is None else (sent - since).total_seconds()
    etag = response.headers.get("ETag", "")
    if etag and etag.isascii():  # other bytes could not be sent back unchanged
        return ("If-None-Match", etag) if age is None or age >= _SETTLED_TAG else None
    return ("If-Modified-Since", modified) if age is not None and age > _SETTLED else None


def content_validator(response: Response) -> str | None:
    """Return a header field for a conditional request that detects a change of any byte."""
    condition = validator(response)
    # RFC 9110 §8.8.1: a weak validator may stay the same while bytes change.
    return None if condition is None or condition[1].startswith("W/") else ": ".join(condition)


def modified_at(response: Response) -> Instant | None:
    """Return the latest time at which the content can have been modified, by the server's clock.

    This is the earliest of: Last-Modified, unless it is just the time of the response, as with some
    servers; Memento-Datetime; and the time at which a cache received the response. None if there is
    none of these.
    """
    headers = response.headers
    sent = sent_at(response)
    times = []
    modified = _parsed(headers.get("Last-Modified", ""))
    if modified and sent and (sent - modified).total_seconds() >= _SETTLED_TAG:
        times.append(modified)
    if memento := _parsed(headers.get("Memento-Datetime", "")):
        times.append(memento)
    if sent and headers.get("Age", "").strip().strip("0"):  # RFC 9111 §5.1
        times.append(sent)
    return min(times, default=None)


def is_encoded(response: Response) -> bool:
    return response.headers.get("Content-Encoding", "identity").strip().lower() != "identity"


async def body(uri: str, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the body, decoded from its Content-Encoding.

    Raises:
        ContentMismatch: The body is damaged.
        Unavailable: It has an encoding that was not requested, or arrives too slowly.
    """
    chunks = _steady(uri, response.content.iter_any())
    if not is_encoded(response):
        async for chunk in chunks:
            yield chunk
        return
    encoding = response.headers["Content-Encoding"].strip().lower()
    if encoding not in ("gzip", "x-gzip", "deflate"):
        reason = f"it comes in Content-Encoding {encoding}, which was not asked for"
        raise Unavailable(uri, reason, status=response.status)
    try:
        async for piece in inflated(chunks):
            yield piece
    except zlib.error as error:
        raise ContentMismatch(uri, f"its compression is damaged: {error}") from None


async def read_beginning(uri: str, response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return at most the first `most` bytes of the body. Raises the errors of `body`."""
    data = bytearray()
    async for chunk in body(uri, response):
        data += chunk
        if len(data) > most:
            break
    return bytes(data[:most])


async def _steady(uri: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Reject a body that arrives too slowly, because it would block a connection and waiters."""
    begun = monotonic()
    received = 0
    async for chunk in chunks:
        received += len(chunk)
        if monotonic() - begun > PATIENCE + received / SLOWEST:
            raise Unavailable(uri, f"it comes at less than {SLOWEST} bytes a second")
        yield chunk


def sent_at(response: Response) -> Instant | None:
    """Return the `Date` of a response (RFC 9110 §6.6.1), by the server's clock, if any."""
    return _parsed(response.headers.get("Date", ""))


#: Responses within a second share one Date, and responses of one resource share one Last-Modified.
_parsed = lru_cache(maxsize=64)(parse_http_date)


def with_http_date(document: Document, response: aiohttp.ClientResponse) -> Document:
    """Return a Resource List with `at` set from an HTTP date, if it has no `at` itself."""
    lists = (Capability.RESOURCE_LIST, None)
    if document.at is not None or document.index or document.capability not in lists:
        return document
    headers = response.headers
    at = _parsed(headers.get("Last-Modified", "")) or sent_at(response)
    return document if at is None else msgspec.structs.replace(document, at=at)


_PERMANENT = frozenset({301, 308})


class ResponseOrigin:
    """The URIs and the time of the response to a request."""

    def __init__(self, uri: str) -> None:
        #: The URI to request next time, after permanent redirects (RFC 9110 §15.4).
        self.place = uri
        #: The base URI of relative references in the response (RFC 3986 §5.1.3).
        self.base = uri
        #: When the response was generated, by the server's clock, if it has a `Date`.
        self.sent: Instant | None = None
        #: Whether a cache answered.
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
