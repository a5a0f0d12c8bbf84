"""Downloads the ZIP packages of dumps, and reads their members (core §11, §13).

Packages are untrusted. No file is ever written under a name from a package. A package cannot
exhaust memory or be ambiguous (see `_fault` and `_check_overlaps`).

A package stays open while its members are applied. The follower requests the next one only when few
members of the last one are left, so at most two large packages are open, or several small ones. A
member that is missing from its package is fetched from its own URI.
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

logger = logging.getLogger("rsnotify.subscriber")

#: The path of the manifest in a package (core §11.2, §13.2).
MANIFEST = "manifest.xml"
#: Maximum number of bytes in the directory of a package. It is read at once. 50,000 members need
#: 5 MB.
_DIRECTORY_BYTES = 16_000_000
#: The compression methods of ISO/IEC 21320-1. With others, zipfile does not limit the size of what
#: it inflates at once.
_METHODS = (ZIP_STORED, ZIP_DEFLATED)
#: Maximum inflation factor. Honest documents inflate up to 73 times, bombs 1,000 times.
_MAX_INFLATION = 200
#: Number of bytes to which any member may inflate, regardless of its factor.
_SMALL_BYTES = 1_000_000
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
    """A file that rejects large reads, to limit the size of a ZIP directory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _DIRECTORY_BYTES:
            raise BadZipFile(f"its directory is larger than {_DIRECTORY_BYTES} bytes")
        return super().read(size)


class ZipPackage:
    """An open package. Its methods block on the disk, and can be called in any thread.

    The constructor raises `MalformedDocument` if the package is not usable.
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
            raise MalformedDocument(f"not a usable ZIP package: {error}", source=uri) from None
        self._members: dict[str, ZipInfo | None] = {}
        for info in self._zip.infolist():
            self._members[info.filename] = None if info.filename in self._members else info

    @property
    def names(self) -> list[str]:
        """The names of all members except folders, in the order of the directory."""
        return [name for name in self._members if not name.endswith("/")]

    def manifest(self) -> Document:
        """Return the manifest. Raise `ContentMismatch` if it is missing or damaged."""
        return read_document(self.pieces(MANIFEST), source=f"{self.uri} ({MANIFEST})")

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield the content of a member in pieces. The path may have a leading slash.

        Raises:
            ContentMismatch: The member is missing, rejected or damaged.
        """
        name = path.removeprefix("/")
        info = self._members.get(name)
        fault = _fault(info) if info else "is duplicated" if name in self._members else "is missing"
        if info is None or fault is not None:
            raise ContentMismatch(self.uri, f"the package's member {name!r} {fault}")
        try:
            with self._zip.open(info) as stream:
                while piece := stream.read(_PIECE):
                    yield piece
        except _DAMAGE as error:
            raise ContentMismatch(self.uri, f"the member {name!r} is damaged: {error}") from None

    def small(self, path: str) -> bytes | None:
        """Return the content of a small member, or None if `pieces` must be used.

        This avoids the streams of `zipfile`, which are slow.
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
        """Return a member's compressed bytes, or None if its local header does not match."""
        with self._lock:
            self._small.seek(info.header_offset)
            signature, flags, name, extra = _HEADER.unpack(self._small.read(_HEADER.size))
            data = self._small.read(name + extra + info.compress_size)
        encoding = "utf-8" if flags & _IS_UTF8 else "cp437"
        if signature != _SIGNATURE or data[:name].decode(encoding) != info.orig_filename:
            return None
        return data[name + extra :]

    def close(self) -> None:
        """Close the package, and delete its file."""
        self._zip.close()
        self._file.close()
        self._small.close()
        self._path.unlink(missing_ok=True)


def _fault(info: ZipInfo) -> str | None:
    """Return why a member is rejected, as a predicate, or None if it is not."""
    name = info.filename
    if name.startswith("/") or ".." in name.split("/"):
        return "leads out of the package"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "is a symbolic link"
    if name.endswith("/"):  # `is_dir` raises IndexError for an empty name
        return "is a folder"
    if info.flag_bits & 0x1:
        return "is encrypted"
    if info.compress_type not in _METHODS:
        return "has a compression method other than deflate"
    if info.file_size > max(_SMALL_BYTES, _MAX_INFLATION * info.compress_size):
        return "inflates too much"
    return None


def _inflated(data: bytes | None, info: ZipInfo) -> bytes | None:
    """Return a member's content, up to one byte more than its stated length, to detect excess."""
    if data is None or info.compress_type == ZIP_STORED:
        return data
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, info.file_size + 1)


def _check_overlaps(infos: list[ZipInfo], end: int) -> None:
    """Reject members that share bytes, as in decompression bombs."""
    for info in sorted(infos, key=lambda info: info.header_offset, reverse=True):
        least = _HEADER.size + len(info.filename) + info.compress_size
        if info.header_offset + least > end:
            raise BadZipFile(f"its member {info.filename!r} overlaps the next one")
        end = info.header_offset


#: Minimum number of packages that stay open, whatever their size.
_MIN_OPEN = 2
#: Maximum number of open packages, and of their total bytes if there are more than two.
_MAX_OPEN, _MAX_OPEN_BYTES = 16, 64_000_000
#: Maximum number of bytes in a package, unless its dump announces less.
_MAX_PACKAGE_BYTES = 16 * 2**30


class DumpPackages:
    """The open packages of dumps."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self.opened: list[ZipPackage] = []

    async def open(self, entry: Resource) -> Document:
        """GET, verify and open a package, and return its manifest.

        If the package is not usable, return the separate copy of its manifest (core §11.1), if the
        Source has one.

        Raises:
            FetchError: The package could not be fetched, or differs from the announcement.
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
            logger.warning("using the separate copy of a package's manifest: %s", error)
            return await self._fetcher.document(resolve(entry.uri, copy))

    async def _manifest(self, entry: Resource) -> Document:
        # Without the media type, which does not matter: the package must be a ZIP with a manifest.
        entry_without_type = replace(entry, type=None)
        content = await self._fetcher.content(entry_without_type, most=_MAX_PACKAGE_BYTES)
        opening = asyncio.ensure_future(asyncio.to_thread(_opened, content, entry.uri))
        try:
            package, manifest = await asyncio.shield(opening)
        except asyncio.CancelledError:
            package, _ = await opening  # the thread continues, so wait to close its package
            package.close()
            raise
        self.opened.append(package)
        while len(self.opened) > _MIN_OPEN and self._are_too_many:
            await self._close(self.opened[:1])
        return manifest

    @property
    def _are_too_many(self) -> bool:
        size = sum(one.size for one in self.opened)
        return len(self.opened) > _MAX_OPEN or size > _MAX_OPEN_BYTES

    async def member(self, package: str, entry: Resource) -> Content:
        """Return the content of an entry, verified against its hash and length.

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
        """Return the verified content of each small member, or None for any other.

        Each wanted member is a package and an entry, as in `member`. The result for a member that
        is large or unusable is None.
        """
        opened = {package.uri: package for package in self.opened}
        found = await asyncio.to_thread(_read_small, opened, wanted)
        return [None if each is None else self._fetcher.store(*each) for each in found]

    async def close(self) -> None:
        """Close all packages, and delete their files."""
        await self._close(self.opened[:])

    async def _close(self, packages: Sequence[ZipPackage]) -> None:
        for package in packages:
            await asyncio.to_thread(package.close)
            if package in self.opened:  # removed only after closing, because this may be cancelled
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
    """Return the content and hashes of each small member, or None for any other."""
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
