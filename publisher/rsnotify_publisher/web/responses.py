"""Responds with representations as clients request them: whole, in part, or compressed.

Reading, compressing and inflating happen while a response is sent, a piece at a time, so that a
long document does not occupy memory.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import formatdate
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import StorageError
from rsnotify.runtime.web.messages import WebRequest, WebResponse, text_response
from rsnotify_publisher.files import TICK
from rsnotify_publisher.web.conditions import RepresentationVersion, accepts_gzip, decide

_log = logging.getLogger("rsnotify.publisher")
_PIECE = 256 * 1024
#: A response with fewer bytes than this fits into one packet anyway.
_WORTH_COMPRESSING = 1_400
_GZIP_WINDOW = 31
_GZIP_LEVEL = 2  # lists are so repetitive that more effort makes them hardly smaller


class Representation(Struct):
    """Bytes that can be sent.

    Args:
        tag: Differs whenever the bytes do.
        modified: When they were last modified, in seconds since 1970.
        length: How many bytes there are.
        read: Reads a part of them, from a start to a stop, in pieces.
        close: Called at the end.
        is_gzip: Whether they are the compressed document.
    """

    tag: str
    modified: float
    length: int
    read: Callable[[int, int], Iterator[bytes]]
    close: Callable[[], None] = lambda: None
    is_gzip: bool = False


def file_representation(path: Path, *, is_gzip: bool = False) -> Representation:
    """Open a file; OSError if it cannot be read, or is not a file."""
    file = open(path, "rb")  # noqa: SIM115 - closed by the caller of `close`
    status = os.fstat(file.fileno())
    tag = f"{status.st_mtime_ns:x}-{status.st_size:x}"
    read = partial(_read, file)
    return Representation(tag, status.st_mtime, status.st_size, read, file.close, is_gzip)


def resource_representation(path: Path) -> Representation:
    """Open a file that others may write at any time.

    The entity tag is made of size and modification time, which prove nothing until the clock of
    the file system has moved on (RFC 9110 §8.8.1). Until then each response has another tag, so
    that no later request gets a 304.
    """
    representation = file_representation(path)
    if time.time() - representation.modified < TICK:
        representation.tag += f"-{time.time_ns():x}"
    return representation


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
    """Return the response to a GET or HEAD: what `load` returns, or 404 if it raises OSError.

    The headers are those of every response, also of a 304.
    """
    try:
        return _prepare(request.headers, load, headers, compressible)
    except OSError:
        return text_response(404)
    except StorageError as error:
        _log.error("%s is answered by 503: %s", request.path, error)
        return text_response(503)


class _Form(Struct):
    version: RepresentationVersion
    is_gzip: bool
    read: Callable[[int, int], Iterator[bytes]]


def _choose(
    headers: Mapping[str, str], representation: Representation, compressible: bool
) -> _Form:
    # A range refers to stored bytes, so a version that is coded for the response has no length.
    gzip = accepts_gzip(headers)
    plain = RepresentationVersion(
        representation.tag, representation.modified, representation.length
    )
    compressed = replace(plain, tag=f"{plain.tag}-gzip")
    read = representation.read
    if representation.is_gzip:
        if gzip:
            return _Form(compressed, True, read)
        return _Form(replace(plain, length=None), False, lambda *part: _inflate(read(*part)))
    worthwhile = compressible and representation.length >= _WORTH_COMPRESSING
    if worthwhile and gzip and "range" not in headers:
        return _Form(replace(compressed, length=None), True, lambda *part: _deflate(read(*part)))
    return _Form(plain, False, read)


def _prepare(
    requested: Mapping[str, str],
    load: Callable[[], Representation],
    headers: Mapping[str, str],
    compressible: bool,
) -> WebResponse:
    """Decide how to respond, and read the first piece."""
    representation = load()
    try:
        form = _choose(requested, representation, compressible)
        now = time.time()
        decision = decide(requested, form.version, now)
        own = _headers(form, now, varies=compressible or representation.is_gzip)
        response = WebResponse(decision.status, {**headers, **own}, close=representation.close)
        if decision.status == 416:
            response.headers["Content-Range"] = f"bytes */{representation.length}"
        if decision.status in (200, 206):
            _begin(response, form, decision.start, representation.length, decision.stop)
    except BaseException:
        representation.close()
        raise
    return response


def _headers(form: _Form, now: float, *, varies: bool) -> dict[str, str]:
    headers: dict[str, str] = {
        "ETag": f'"{form.version.tag}"',
        "Last-Modified": formatdate(form.version.last_modified(now), usegmt=True),
    }
    if varies:
        headers["Vary"] = "Accept-Encoding"
    if form.version.length is not None:
        headers["Accept-Ranges"] = "bytes"
    return headers


def _begin(response: WebResponse, form: _Form, start: int, whole: int, stop: int | None) -> None:
    """Read the first pieces; stream only if there are more."""
    if form.is_gzip:
        response.headers["Content-Encoding"] = "gzip"
    response.length = form.version.length
    if stop is not None:
        response.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{whole}"
        response.length = stop - start
    pieces = form.read(start, whole if stop is None else stop)
    response.body = next(pieces, b"")
    second = next(pieces, b"")
    if second:
        response.pieces = chain((response.body, second), pieces)


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
    """Join small chunks to pieces that are worth a write."""
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
