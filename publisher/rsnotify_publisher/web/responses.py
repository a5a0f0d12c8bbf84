"""Responds to HTTP requests with representations: whole, in part, compressed, or not modified.

Conditional requests (RFC 9110 §13) and ranges (§14) are evaluated without I/O. Files are read,
compressed and decompressed one piece at a time while a response is sent, so that a long document
does not fill the memory. aiohttp's `FileResponse` would do the same, but only for aiohttp.
"""

from __future__ import annotations

import logging
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from email.utils import formatdate, parsedate_to_datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import StorageError
from rsnotify.runtime.web_messages import WebRequest, WebResponse, text_response
from rsnotify_publisher.files import MTIME_RESOLUTION

logger = logging.getLogger("rsnotify.publisher")
#: Responds to a GET or HEAD request.
Answer = Callable[[WebRequest], WebResponse]
#: Headers of documents that may change: clients revalidate them, and a 304 is cheap.
LIVE = {"Cache-Control": "no-cache"}
XML = {"Content-Type": "application/xml"}
#: Number of bytes read and sent at a time.
_PIECE_SIZE = 256 * 1024
#: Minimum number of bytes worth compressing: a smaller response fits into one packet anyway.
_MIN_COMPRESSED_SIZE = 1_400
#: The value of zlib's `wbits` for the gzip format.
_GZIP_WBITS = 31
_GZIP_LEVEL = 2  # lists are so repetitive that higher levels hardly make them smaller


class Representation(Struct):
    """Bytes to send as a response.

    Args:
        tag: A strong entity tag, without quotes. Different bytes have different tags.
        modified: The time of the last modification, in seconds since 1970.
        length: The number of stored bytes.
        read: Yields the stored bytes from a start to a stop, in pieces, perhaps encoded on the fly.
        close: Called at the end.
        is_gzip: Whether `read` yields bytes that are compressed with gzip.
        has_ranges: Whether `read` yields the stored bytes themselves, to which ranges refer.
    """

    tag: str
    modified: float
    length: int
    read: Callable[[int, int], Iterator[bytes]]
    close: Callable[[], None] = lambda: None
    is_gzip: bool = False
    has_ranges: bool = True

    def last_modified(self, now: float) -> int:
        """Return the `Last-Modified` date to send, in whole seconds.

        A representation that was modified during the current second may be modified again within
        it. It gets a date one second older, so that clients can distinguish the two by date.
        """
        return min(int(self.modified), int(now) - 1)


def file_representation(
    path: Path, *, is_gzip: bool = False, is_shared: bool = False
) -> Representation:
    """Open a file as a representation. Raises OSError if it is not a readable file.

    The entity tag consists of the times of the last changes of content and inode, and the size.
    They do not prove that the file is unchanged until the clock of the file system has moved on
    (RFC 9110 §8.8.1). If other programs may write the file at any time (`is_shared`), each response
    until then has a different tag, so that no later request gets a 304.
    """
    file = open(path, "rb")  # noqa: SIM115 - closed by the caller of `close`
    status = os.fstat(file.fileno())
    tag = f"{status.st_mtime_ns:x}-{status.st_ctime_ns:x}-{status.st_size:x}"
    changed = max(status.st_mtime, status.st_ctime)
    if is_shared and time.time() - changed < MTIME_RESOLUTION:
        tag += f"-{time.time_ns():x}"
    read = partial(_read, file)
    return Representation(tag, status.st_mtime, status.st_size, read, file.close, is_gzip)


def memory_representation(tag: str, modified: float, chunks: Sequence[bytes]) -> Representation:
    def read(start: int, stop: int) -> Iterator[bytes]:
        return _gather(_part(chunks, start, stop))

    return Representation(tag, modified, sum(map(len, chunks)), read)


def respond(
    request: WebRequest,
    load: Callable[[], Representation],
    headers: Mapping[str, str],
    *,
    compressible: bool = False,
) -> WebResponse:
    """Return a response with the representation from `load`, or 404 if it raises OSError.

    `headers` are added to every response other than 404 and 503, including a 304.
    """
    try:
        return _prepare(request.headers, load, headers, compressible)
    except OSError:
        return text_response(404)
    except StorageError as error:
        logger.error("answering the request for %s with 503: %s", request.path, error)
        return text_response(503)


def _choose(
    headers: Mapping[str, str], stored: Representation, compressible: bool
) -> Representation:
    """Return the representation in the content coding to send."""
    is_gzip_accepted = accepts_gzip(headers)
    if stored.is_gzip:
        if is_gzip_accepted:
            return replace(stored, tag=f"{stored.tag}-gzip")
        return replace(
            stored, read=lambda *part: _inflate(stored.read(*part)), is_gzip=False, has_ranges=False
        )
    is_worthwhile = compressible and stored.length >= _MIN_COMPRESSED_SIZE
    if is_worthwhile and is_gzip_accepted and "range" not in headers:
        return replace(
            stored,
            tag=f"{stored.tag}-gzip",
            read=lambda *part: _deflate(stored.read(*part)),
            is_gzip=True,
            has_ranges=False,
        )
    return stored


def _prepare(
    requested: Mapping[str, str],
    load: Callable[[], Representation],
    headers: Mapping[str, str],
    compressible: bool,
) -> WebResponse:
    """Prepare the response, and read its first piece."""
    representation = load()
    try:
        chosen = _choose(requested, representation, compressible)
        now = time.time()
        decision = decide(requested, chosen, now)
        validators = _validators(chosen, now, varies=compressible or representation.is_gzip)
        all_headers = {**headers, **validators}
        response = WebResponse(decision.status, all_headers, close=representation.close)
        if decision.status == 416:
            response.headers["Content-Range"] = f"bytes */{representation.length}"
        if decision.status in (200, 206):
            _begin(response, chosen, decision)
    except BaseException:
        representation.close()
        raise
    return response


def _validators(chosen: Representation, now: float, *, varies: bool) -> dict[str, str]:
    """Return the headers for conditional requests and ranges."""
    headers = {
        "ETag": f'"{chosen.tag}"',
        "Last-Modified": formatdate(chosen.last_modified(now), usegmt=True),
    }
    if varies:
        headers["Vary"] = "Accept-Encoding"
    if chosen.has_ranges:
        headers["Accept-Ranges"] = "bytes"
    return headers


def _begin(response: WebResponse, chosen: Representation, decision: ConditionalResponse) -> None:
    """Read the first piece, and stream the body only if there are more."""
    if chosen.is_gzip:
        response.headers["Content-Encoding"] = "gzip"
    start, stop = decision.start, chosen.length if decision.stop is None else decision.stop
    if decision.stop is not None:
        response.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{chosen.length}"
    response.length = stop - start if chosen.has_ranges else None
    pieces = chosen.read(start, stop)
    response.body = next(pieces, b"")
    second = next(pieces, b"")
    if second:
        response.pieces = chain((response.body, second), pieces)


def _read(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    file.seek(start)
    while start < stop and (piece := file.read(min(_PIECE_SIZE, stop - start))):
        start += len(piece)
        yield piece


def _part(chunks: Sequence[bytes], start: int, stop: int) -> Iterator[bytes]:
    at = 0
    for chunk in chunks:
        if at < stop and at + len(chunk) > start:
            yield chunk[max(start - at, 0) : stop - at]
        at += len(chunk)


def _gather(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Join small chunks into pieces that are large enough to write efficiently."""
    waiting: list[bytes] = []
    size = 0
    for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size >= _PIECE_SIZE:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def _deflate(pieces: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WBITS)
    for piece in pieces:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()


def _inflate(pieces: Iterator[bytes]) -> Iterator[bytes]:
    opener = zlib.decompressobj(wbits=_GZIP_WBITS)
    for piece in pieces:
        while piece:
            if opened := opener.decompress(piece, _PIECE_SIZE):
                yield opened
            piece = opener.unconsumed_tail
    if rest := opener.flush():
        yield rest


_TAG = re.compile(r'(W/)?"([^"]*)"')
_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*", re.ASCII | re.IGNORECASE)
_GZIP = re.compile(r"\s*(gzip|x-gzip|\*)\s*(?:;\s*q\s*=\s*([\d.]+)\s*)?", re.IGNORECASE)


class ConditionalResponse(Struct, frozen=True):
    """How to respond: the status code, and which bytes to send. If `stop` is None, send all."""

    status: int
    start: int = 0
    stop: int | None = None


def decide(headers: Mapping[str, str], chosen: Representation, now: float) -> ConditionalResponse:
    """Decide how to respond to a GET or HEAD, in the order of RFC 9110 §13.2.2."""
    modified = int(chosen.modified)
    if (match := headers.get("if-match")) is not None:
        if not _matches(match, chosen.tag, weak=False):
            return ConditionalResponse(412)
    elif (unmodified := _date(headers, "if-unmodified-since")) is not None and (
        modified > unmodified
    ):
        return ConditionalResponse(412)
    if (none_match := headers.get("if-none-match")) is not None:
        if _matches(none_match, chosen.tag, weak=True):
            return ConditionalResponse(304)
    elif (since := _date(headers, "if-modified-since")) is not None and modified <= since:
        return ConditionalResponse(304)
    if not (chosen.has_ranges and _range_applies(headers, chosen, now)):
        return ConditionalResponse(200)
    return _range(headers.get("range", ""), chosen.length)


def _matches(condition: str, tag: str, *, weak: bool) -> bool:
    return condition.strip() == "*" or any(
        known == tag and (weak or not is_weak) for is_weak, known in _TAG.findall(condition)
    )


def _date(headers: Mapping[str, str], name: str) -> float | None:
    """Return a date in seconds since 1970; None if it is missing or invalid."""
    try:
        date = parsedate_to_datetime(headers.get(name, ""))
    except (ValueError, OverflowError):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _range_applies(headers: Mapping[str, str], chosen: Representation, now: float) -> bool:
    """Return whether the requested range applies to these bytes (RFC 9110 §13.1.5)."""
    condition = headers.get("if-range", "").strip()
    if not condition:
        return True
    if condition.startswith(('"', "W/")):
        return condition == f'"{chosen.tag}"'
    return _date(headers, "if-range") == chosen.last_modified(now)


def _range(header: str, length: int) -> ConditionalResponse:
    """Parse a `Range` header. Multiple and invalid ranges select the whole representation."""
    match = _RANGE.fullmatch(header)
    first, last = match.groups() if match else ("", "")
    if first and last and int(last) < int(first):
        return ConditionalResponse(200)
    if first:
        start, stop = int(first), min(int(last) + 1, length) if last else length
    elif last:
        start, stop = max(length - int(last), 0), length
    else:
        return ConditionalResponse(200)
    return ConditionalResponse(206, start, stop) if start < stop else ConditionalResponse(416)


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    """Return whether a client accepts gzip (RFC 9110 §12.5.3)."""
    weights = {}
    for part in headers.get("accept-encoding", "").split(","):
        if match := _GZIP.fullmatch(part):
            weights[match[1].lower()] = match[2] is None or match[2].strip("0.") != ""
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))
