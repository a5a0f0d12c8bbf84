"""Keeps the ZIP packages of a dump open while their members are applied (core §11, §13).

A package is untrusted input. Nothing is ever written under a name from a package, and a package can
neither exhaust memory nor be ambiguous: see `_fault` and `_check_overlaps`.

The follower requests the next package only when few members of the last one remain to be applied,
so at most two large packages are open. Several small ones may have members that are still to be
applied. A member that is missing from its package is fetched from its own URI.
"""

from __future__ import annotations

import asyncio
import io
import logging
import stat
import struct
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from msgspec.structs import replace

from rsnotify.errors import (
    ContentMismatch,
    DocumentError,
    FetchError,
    MalformedDocument,
    StorageError,
    Unavailable,
)
from rsnotify.format.hashes import verified_hashes
from rsnotify.format.links import resolve
from rsnotify.format.model import Document, Rel, Resource
from rsnotify.format.reader import read_document
from rsnotify.runtime.reasons import reason_of
from rsnotify_subscriber.fetching.fetcher import Content, Fetcher

#: The path of the manifest in a package (core §11.2, §13.2).
MANIFEST = "manifest.xml"
#: Maximum size of a package's directory in bytes. It is read at once; 50,000 members need 5 MB.
_DIRECTORY_BYTES = 16_000_000
#: The compression methods that can be inflated in pieces of bounded size (also the only ones in
#: ISO/IEC 21320-1). For others, zipfile inflates everything that it has read at once.
_METHODS = (ZIP_STORED, ZIP_DEFLATED)
#: Maximum inflation factor. Honest documents inflate up to 73 times, bombs 1,000 times.
_INFLATION = 200
#: Number of bytes to which any member may inflate, regardless of its factor.
_SMALL = 1_000_000
_PIECE = 131_072
#: A ZIP local file header: signature, flags, name length, extra-field length.
_HEADER = struct.Struct("<4s2xH18xHH")
_SIGNATURE = b"PK\x03\x04"
_IS_UTF8 = 0x800
#: The flags of unreadable members: patched data, strong encryption.
_UNREADABLE = 0x60
#: The exceptions that reading a damaged ZIP raises.
_DAMAGE = (BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError,
           OverflowError, IndexError, OSError)  # fmt: skip


class _BoundedFile(io.BufferedReader):
    """A file that refuses large reads, which limits the size of a ZIP directory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _DIRECTORY_BYTES:
            raise BadZipFile(f"its directory is larger than {_DIRECTORY_BYTES} bytes")
        return super().read(size)


class ZipPackage:
    """An open package. Its methods block on the disk, and may be called from any thread.

    The constructor raises `MalformedDocument` for an unusable package. `close` removes the file.
    """

    def __init__(self, path: Path, uri: str) -> None:
        self.uri = uri
        self._path = path
        self.size = path.stat().st_size
        self._file = _BoundedFile(io.FileIO(path))
        #: Reads small members, one thread at a time.
        self._small = open(path, "rb", buffering=_PIECE)  # noqa: SIM115
        self._lock = Lock()
        try:
            self._zip = ZipFile(self._file)
            _check_overlaps(self._zip.infolist(), self._zip.start_dir)
        except _DAMAGE as error:
            self._file.close()
            self._small.close()
            raise MalformedDocument(f"no usable ZIP package: {error}", source=uri) from None
        self._members: dict[str, ZipInfo | None] = {}
        for info in self._zip.infolist():
            self._members[info.filename] = None if info.filename in self._members else info

    @property
    def names(self) -> list[str]:
        """The names of all members except folders, in the order of the ZIP directory."""
        return [name for name in self._members if not name.endswith("/")]

    def manifest(self) -> Document:
        """Return the manifest. Raise `ContentMismatch` if it is missing or damaged."""
        return read_document(self.pieces(MANIFEST), source=f"{self.uri} ({MANIFEST})")

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield a member piece by piece. The path may have a leading slash.

        Raises:
            ContentMismatch: The member is missing, refused or damaged.
        """
        name = path.removeprefix("/")
        info = self._members.get(name)
        fault = _fault(info) if info else "is twice in it" if name in self._members else "is not"
        if info is None or fault is not None:
            raise ContentMismatch(self.uri, f"the package has a member {name!r} that {fault}")
        try:
            with self._zip.open(info) as stream:
                while piece := stream.read(_PIECE):
                    yield piece
        except _DAMAGE as error:
            raise ContentMismatch(self.uri, f"the member {name!r} is damaged: {error}") from None

    def small(self, path: str) -> bytes | None:
        """Return a small member; None if it is large, or has to be read with `pieces`.

        `pieces` reports any error. This method avoids the streams of `zipfile`, which would take
        most of the time.
        """
        info = self._members.get(path.removeprefix("/"))
        if info is None or _fault(info) or info.flag_bits & _UNREADABLE:
            return None
        if max(info.file_size, info.compress_size) > _PIECE:
            return None
        try:
            content = _inflated(self._raw(info), info)
        except _DAMAGE:
            return None
        if content is None or len(content) != info.file_size:
            return None
        return content if zlib.crc32(content) == info.CRC else None

    def _raw(self, info: ZipInfo) -> bytes | None:
        """Return a member's stored bytes; None if the header before them is another member's."""
        with self._lock:
            self._small.seek(info.header_offset)
            signature, flags, name, extra = _HEADER.unpack(self._small.read(_HEADER.size))
            data = self._small.read(name + extra + info.compress_size)
        encoding = "utf-8" if flags & _IS_UTF8 else "cp437"
        if signature != _SIGNATURE or data[:name].decode(encoding) != info.orig_filename:
            return None
        return data[name + extra :]

    def close(self) -> None:
        """Close the package, and remove its file."""
        self._zip.close()
        self._file.close()
        self._small.close()
        self._path.unlink(missing_ok=True)


def _fault(info: ZipInfo) -> str | None:
    """Return, in a clause, why a member is refused; None if it is not."""
    name = info.filename
    if name.startswith("/") or ".." in name.split("/"):
        return "leads out of it"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "is a link"
    if name.endswith("/"):  # `is_dir` raises IndexError for an empty name
        return "is a folder"
    if info.flag_bits & 0x1:
        return "is encrypted"
    if info.compress_type not in _METHODS:
        return "is compressed by another method than deflate"
    if info.file_size > max(_SMALL, _INFLATION * info.compress_size):
        return "inflates beyond measure"
    return None


def _inflated(data: bytes | None, info: ZipInfo) -> bytes | None:
    """Return a member's content, cut off one byte after its stated length to reveal excess."""
    if data is None or info.compress_type == ZIP_STORED:
        return data
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, info.file_size + 1)


def _check_overlaps(infos: list[ZipInfo], end: int) -> None:
    """Refuse members that share bytes, as in decompression bombs."""
    for info in sorted(infos, key=lambda info: info.header_offset, reverse=True):
        least = _HEADER.size + len(info.filename) + info.compress_size
        if info.header_offset + least > end:
            raise BadZipFile(f"its member {info.filename!r} overlaps what comes after it")
        end = info.header_offset


logger = logging.getLogger("rsnotify.subscriber")

#: Number of packages that stay open regardless of their size: the last and the previous one.
_KEPT = 2
#: Maximum number of open packages, and of their total bytes if there are more than two.
_MOST_KEPT = 16
_KEPT_BYTES = 64_000_000
#: Maximum size of a package in bytes, unless its dump announces a smaller one.
_MOST_BYTES = 16 * 2**30


class DumpPackages:
    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self.opened: list[ZipPackage] = []

    async def open(self, entry: Resource) -> Document:
        """GET a package, verify it, open it, and return its manifest.

        If the package is unusable, return the copy of its manifest that the Source may have next to
        it (core §11.1), and open no package.

        Raises:
            FetchError: The package could not be fetched, or differs from what was announced.
            DocumentError: The file is not a package, or its manifest cannot be read.
            StorageError: The package could not be written.
        """
        try:
            return await self._manifest(entry)
        except Unavailable:
            raise
        except OSError as error:
            raise StorageError(f"{entry.uri}: {reason_of(error)}") from error
        except (FetchError, DocumentError) as error:
            copy = next((link.href for link in entry.links if link.rel == Rel.CONTENTS), None)
            if copy is None:
                raise
            logger.warning("the copy of its manifest is used instead: %s", error)
            return await self._fetcher.document(resolve(entry.uri, copy))

    async def _manifest(self, entry: Resource) -> Document:
        # The media type is not checked: anything but a ZIP with a manifest is refused anyway.
        content = await self._fetcher.content(replace(entry, type=None), most=_MOST_BYTES)
        opening = asyncio.ensure_future(asyncio.to_thread(_opened, content, entry.uri))
        try:
            package, manifest = await asyncio.shield(opening)
        except asyncio.CancelledError:
            package, _ = await opening  # the thread continues, and its package must be closed
            package.close()
            raise
        self.opened.append(package)
        while len(self.opened) > _KEPT and self._too_many:
            await self._close(self.opened[:1])
        return manifest

    @property
    def _too_many(self) -> bool:
        return len(self.opened) > _MOST_KEPT or sum(one.size for one in self.opened) > _KEPT_BYTES

    async def member(self, package: str, entry: Resource) -> Content:
        """Return the member at `entry.path`, verified against the entry's hash and length.

        Raises:
            FetchError: The package is closed, or does not have the member.
        """
        opened = next((one for one in reversed(self.opened) if one.uri == package), None)
        if opened is None or entry.path is None:
            raise Unavailable(entry.uri, f"the package {package} is no longer open")
        return await self._fetcher.collect(entry, _asynchronous(opened.pieces(entry.path)))

    async def small_members(
        self, wanted: Sequence[tuple[str | None, Resource]]
    ) -> list[Content | None]:
        """Return members of packages, each of them verified as in `member`.

        A member is None if it is not small, or if `member` would raise an error for it.
        """
        opened = {package.uri: package for package in self.opened}
        found = await asyncio.to_thread(_read_small, opened, wanted)
        return [None if each is None else self._fetcher.store(*each) for each in found]

    async def close(self) -> None:
        """Close all packages, and remove their files."""
        await self._close(self.opened[:])

    async def _close(self, packages: Sequence[ZipPackage]) -> None:
        for package in packages:
            await asyncio.to_thread(package.close)
            if package in self.opened:  # removed only after closing, since this may be cancelled
                self.opened.remove(package)


def _opened(content: Content, uri: str) -> tuple[ZipPackage, Document]:
    with ExitStack() as failing:
        failing.callback(content.discard)
        content.write()
        package = ZipPackage(content.path, uri)
        failing.callback(package.close)
        manifest = package.manifest()
        failing.pop_all()
    return package, manifest


def _read_small(
    opened: Mapping[str, ZipPackage], wanted: Sequence[tuple[str | None, Resource]]
) -> list[tuple[bytes, str] | None]:
    """Return the content and hashes of each member; None for members not read or not verified."""
    found: list[tuple[bytes, str] | None] = []
    for uri, entry in wanted:
        package = opened.get(uri or "")
        data = package.small(entry.path) if package is not None and entry.path else None
        hashes = None if data is None else verified_hashes(data, entry.hash, entry.length)
        found.append(None if data is None or hashes is None else (data, hashes))
    return found


async def _asynchronous(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
