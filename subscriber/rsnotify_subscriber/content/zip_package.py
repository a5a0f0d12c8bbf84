"""One ZIP package of a Source, read member by member.

A package is untrusted input. Nothing is ever written under a name from a package, and it can
neither exhaust the memory nor be ambiguous: see `_fault` and `_check_overlaps`.
"""

from __future__ import annotations

import io
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from rsnotify.errors import ContentMismatch, MalformedDocument
from rsnotify.format.model import Document
from rsnotify.format.reader import read_document

#: The path of the manifest in a package (core §11.2, §13.2).
MANIFEST = "manifest.xml"
#: The most bytes of the directory of a package. It is read at once; 50,000 members need 5 MB.
_DIRECTORY_BYTES = 16_000_000
#: The methods of compression that can be inflated in pieces of bounded size (and the only ones in
#: ISO/IEC 21320-1). With the others, zipfile inflates all that it has read at once.
_METHODS = (ZIP_STORED, ZIP_DEFLATED)
#: Honest documents inflate up to 73 times, bombs 1,000 times.
_INFLATION = 200
#: The bytes to which any member may inflate.
_SMALL = 1_000_000
_PIECE = 131_072
_LOCAL_HEADER = 30
#: The exceptions that reading a damaged ZIP raises.
_DAMAGE = (BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError,
           OverflowError, IndexError, OSError)  # fmt: skip


class _BoundedFile(io.BufferedReader):
    """A file that refuses to read much at once, so that the size of a directory is bounded."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _DIRECTORY_BYTES:
            raise BadZipFile(f"its directory is larger than {_DIRECTORY_BYTES} bytes")
        return super().read(size)


class ZipPackage:
    """An open package. Its methods block on the disk, and may be called from any thread.

    It is refused with a `MalformedDocument`. The file is removed by `close`.
    """

    def __init__(self, path: Path, uri: str) -> None:
        self.uri = uri
        self._path = path
        self.size = path.stat().st_size
        self._file = _BoundedFile(io.FileIO(path))
        try:
            self._zip = ZipFile(self._file)
            _check_overlaps(self._zip.infolist(), self._zip.start_dir)
        except _DAMAGE as error:
            self._file.close()
            raise MalformedDocument(f"no usable ZIP package: {error}", source=uri) from None
        self._members: dict[str, ZipInfo | None] = {}
        for info in self._zip.infolist():
            self._members[info.filename] = None if info.filename in self._members else info

    @property
    def names(self) -> list[str]:
        """The names of members that are no folders, in the order of the directory."""
        return [name for name in self._members if not name.endswith("/")]

    def manifest(self) -> Document:
        """Read the manifest; raise `ContentMismatch` if it is not there, or damaged."""
        return read_document(self.pieces(MANIFEST), source=f"{self.uri} ({MANIFEST})")

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield a member piece by piece; `ContentMismatch` if it is not there, refused, or damaged.

        The path may have a leading slash.
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
        """Return a member; None if it cannot be returned, or is not small."""
        info = self._members.get(path.removeprefix("/"))
        if info is None or info.file_size > _PIECE:
            return None
        try:
            return b"".join(self.pieces(path))
        except ContentMismatch:
            return None

    def close(self) -> None:
        """Close the package, and remove its file."""
        self._zip.close()
        self._file.close()
        self._path.unlink(missing_ok=True)


def _fault(info: ZipInfo) -> str | None:
    """Return what is wrong with a member, if anything is."""
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


def _check_overlaps(infos: list[ZipInfo], end: int) -> None:
    """Refuse members that share bytes, as those of decompression bombs do."""
    for info in sorted(infos, key=lambda info: info.header_offset, reverse=True):
        least = _LOCAL_HEADER + len(info.filename) + info.compress_size
        if info.header_offset + least > end:
            raise BadZipFile(f"its member {info.filename!r} overlaps what comes after it")
        end = info.header_offset
