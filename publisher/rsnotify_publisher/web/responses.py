"""Sending what is held, as the client wants it: whole, in part, compressed, or not at all.

Reading, compressing and inflating go on in threads, a piece at a time, so that a long document
costs neither memory nor the patience of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import formatdate
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from aiohttp import hdrs, web
from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify_publisher.files import TICK
from rsnotify_publisher.web.conditions import RepresentationVersion, accepts_gzip, decide

_log = logging.getLogger("rsnotify.publisher")
_PIECE = 256 * 1024
#: Below this many bytes an answer fits into one packet anyway.
_WORTH_COMPRESSING = 1_400
_GZIP_WINDOW = 31
_GZIP_LEVEL = 2  # lists are so repetitive that more effort makes them hardly smaller


class Representation(Struct):
    """Bytes that may be sent.

    Args:
        tag: Differs whenever the bytes do.
        modified: When they were last modified, in seconds since 1970.
        length: How many there are.
        read: Reads a part of them, from a start to a stop, in pieces.
        close: Called at the end.
        is_gzip: Whether they are the document compressed.
    """

    tag: str
    modified: float
    length: int
    read: Callable[[int, int], Iterator[bytes]]
    close: Callable[[], None] = lambda: None
    is_gzip: bool = False


def file_representation(path: Path, *, is_gzip: bool = False) -> Representation:
    """Open a file.

    Raises:
        OSError: It cannot be read, or is no file.
    """
    file = open(path, "rb")  # noqa: SIM115 - closed by whoever holds it
    status = os.fstat(file.fileno())
    tag = f"{status.st_mtime_ns:x}-{status.st_size:x}"

    def read(start: int, stop: int) -> Iterator[bytes]:
        return _read(file, start, stop)

    return Representation(tag, status.st_mtime, status.st_size, read, file.close, is_gzip)


def resource_representation(path: Path) -> Representation:
    """Open a file that others may write at any time.

    Its entity tag is made of its size and its time of modification, which prove nothing while the
    file system's clock has not moved on (RFC 9110 §8.8.1): until then each answer has a tag of its
    own, so that no later request is answered by 304.

    Raises:
        OSError: It cannot be read, or is no file.
    """
    held = file_representation(path)
    if time.time() - held.modified < TICK:
        held.tag += f"-{time.time_ns():x}"
    return held


def memory_representation(tag: str, modified: float, chunks: Sequence[bytes]) -> Representation:
    """Hold what is in memory already."""

    def read(start: int, stop: int) -> Iterator[bytes]:
        return _gather(_part(chunks, start, stop))

    return Representation(tag, modified, sum(map(len, chunks)), read)


async def respond(
    request: web.Request,
    hold: Callable[[], Representation],
    headers: Mapping[str, str],
    *,
    compressible: bool = False,
) -> web.StreamResponse:
    """Answer a GET or HEAD.

    Args:
        request: The request.
        hold: Makes what is sent; called in a thread.
        headers: What every answer says, also 304.
        compressible: Whether it may be compressed on its way.

    Raises:
        HTTPNotFound: `hold` raised OSError.
        HTTPServiceUnavailable: It raised StorageError.
    """
    try:
        reply = await asyncio.to_thread(_prepare, request, hold, headers, compressible)
    except OSError:
        raise web.HTTPNotFound from None
    except StorageError as error:
        _log.error("%s is answered by 503: %s", request.rel_url, error)
        raise web.HTTPServiceUnavailable from None
    try:
        if reply.rest is None:
            return web.Response(status=reply.status, headers=reply.headers, body=reply.body)
        return await _stream(request, reply, reply.rest)
    finally:
        reply.close()


class _Form(Struct):
    """What is held, in the one form that suits the client."""

    version: RepresentationVersion
    length: int | None
    is_gzip: bool
    read: Callable[[int, int], Iterator[bytes]]


class _Reply(Struct):
    """What is sent: a body, or the pieces of a long one."""

    status: int
    headers: dict[str, str]
    close: Callable[[], None]
    body: bytes = b""
    rest: Iterator[bytes] | None = None
    length: int | None = None


def _choose(request: web.Request, held: Representation, compressible: bool) -> _Form:
    # A range is one of bytes that are kept, not of what is made of them on the way.
    gzip = accepts_gzip(request.headers)
    plain = RepresentationVersion(held.tag, held.modified, held.length)
    compressed = RepresentationVersion(
        f"{held.tag}-gzip", held.modified, held.length if held.is_gzip else None
    )
    if held.is_gzip and gzip:
        return _Form(compressed, held.length, True, held.read)
    if held.is_gzip:
        version = RepresentationVersion(held.tag, held.modified, None)
        return _Form(version, None, False, lambda *part: _inflate(held.read(*part)))
    worthwhile = compressible and held.length >= _WORTH_COMPRESSING
    if worthwhile and gzip and hdrs.RANGE not in request.headers:
        return _Form(compressed, None, True, lambda *part: _deflate(held.read(*part)))
    return _Form(plain, held.length, False, held.read)


def _prepare(
    request: web.Request,
    hold: Callable[[], Representation],
    headers: Mapping[str, str],
    compressible: bool,
) -> _Reply:
    """Decide, and read what fits into one piece."""
    held = hold()
    try:
        form = _choose(request, held, compressible)
        now = time.time()
        decision = decide(request, form.version, now)
        told = _describe(form, now, varies=compressible or held.is_gzip)
        reply = _Reply(decision.status, {**headers, **told}, held.close)
        if decision.status == 416:
            reply.headers[hdrs.CONTENT_RANGE] = f"bytes */{held.length}"
        if decision.status in (200, 206):
            _begin(reply, form, decision.start, held.length, decision.stop)
    except BaseException:
        held.close()
        raise
    return reply


def _describe(form: _Form, now: float, *, varies: bool) -> dict[str, str]:
    told: dict[str, str] = {
        hdrs.ETAG: f'"{form.version.tag}"',
        hdrs.LAST_MODIFIED: formatdate(form.version.last_modified(now), usegmt=True),
    }
    if varies:
        told[hdrs.VARY] = hdrs.ACCEPT_ENCODING
    if form.version.length is not None:
        told[hdrs.ACCEPT_RANGES] = "bytes"
    return told


def _begin(reply: _Reply, form: _Form, start: int, whole: int, stop: int | None) -> None:
    """Read the first pieces; there is no need to stream if that was all."""
    if form.is_gzip:
        reply.headers[hdrs.CONTENT_ENCODING] = "gzip"
    reply.length = form.length
    if stop is not None:
        reply.headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{stop - 1}/{whole}"
        reply.length = stop - start
    pieces = form.read(start, whole if stop is None else stop)
    reply.body = next(pieces, b"")
    second = next(pieces, b"")
    if second:
        reply.rest = chain((reply.body, second), pieces)


async def _stream(
    request: web.Request, reply: _Reply, pieces: Iterator[bytes]
) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    response.content_length = reply.length
    with suppress(ConnectionError):  # the client may hang up at any moment
        await response.prepare(request)
        if request.method != hdrs.METH_HEAD:
            await _send(request, response, pieces)
        await response.write_eof()
    return response


async def _send(
    request: web.Request, response: web.StreamResponse, pieces: Iterator[bytes]
) -> None:
    sent = 0
    while piece := await asyncio.to_thread(next, pieces, b""):
        await response.write(piece)
        sent += len(piece)
    if sent < (response.content_length or 0) and request.transport is not None:
        # The file was cut short meanwhile: only a broken connection tells the client so.
        request.transport.abort()


def _read(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    file.seek(start)
    while start < stop and (piece := file.read(min(_PIECE, stop - start))):
        start += len(piece)
        yield piece


def _part(chunks: Sequence[bytes], start: int, stop: int) -> Iterator[bytes]:
    at = 0
    for chunk in chunks:
        if at < stop and at + len(chunk) > start:
            yield chunk[max(start - at, 0) : stop - at]
        at += len(chunk)


def _gather(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Make pieces worth a write of many small chunks."""
    waiting: list[bytes] = []
    size = 0
    for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size >= _PIECE:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def _deflate(pieces: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WINDOW)
    for piece in pieces:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()


def _inflate(pieces: Iterator[bytes]) -> Iterator[bytes]:
    opener = zlib.decompressobj(wbits=_GZIP_WINDOW)
    for piece in pieces:
        while piece:
            if opened := opener.decompress(piece, _PIECE):
                yield opened
            piece = opener.unconsumed_tail
    if rest := opener.flush():
        yield rest
