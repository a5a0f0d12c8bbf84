"""Writes one package of a dump: a ZIP whose last member is the manifest (core §11.2, §13.2).

The bitstreams are opened one at a time, just before each is copied.

A Change Dump has one bitstream for each change (core §13.2), but the Source can only return the
current content. `Captured` therefore keeps the content from the time the change is recorded until
the dump is written, in one file per change, named after the change's datetime.
"""

from __future__ import annotations

import io
import logging
import os
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import StorageError, counted
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.hashes import Digester, are_included
from rsnotify.format.media_types import extension
from rsnotify.format.model import ChangeType, Document, Resource
from rsnotify.format.writer import Profile, closing, entry, opening

#: Number of bytes copied at a time.
CHUNK = 262_144

#: Returns the content for an entry: the bytes, the path of a file, or None if it is gone.
EntryContent = Callable[[Resource], bytes | Path | None]


class Bitstream(Struct, frozen=True):
    """A seekable file with content to copy. It may grow beyond `size` while it is being copied."""

    file: BinaryIO
    size: int

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes from the beginning, up to `size`."""
        self.file.seek(0)
        left = self.size
        while left and (chunk := self.file.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk


#: An entry with its bitstream, if there is one.
EntryBitstream = tuple[Resource, Bitstream | None]


@contextmanager
def opened(found: bytes | Path | None) -> Iterator[Bitstream | None]:
    """Open the result of an `EntryContent` as a bitstream, or None if there is no content."""
    if isinstance(found, bytes):
        yield Bitstream(io.BytesIO(found), len(found))
    elif found is None or (file := _open(found)) is None:
        yield None
    else:
        with file:
            yield Bitstream(file, os.fstat(file.fileno()).st_size)


def _open(path: Path) -> BinaryIO | None:
    try:
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError):  # deleted in the meantime
        return None


def with_bitstreams(
    entries: Iterable[Resource], content: EntryContent, check: Callable[[], None]
) -> Generator[EntryBitstream]:
    """Yield entries with their bitstreams. Each is open until the next one is requested."""
    for resource in entries:
        check()
        is_deletion = resource.change is ChangeType.DELETED
        with opened(None if is_deletion else content(resource)) as bitstream:
            yield resource, bitstream


_MANIFEST = "manifest.xml"
_UNIX = 3
_PLAIN_FILE = 0o100644 << 16
# Characters that some file systems do not allow, or that could name a parent folder.
_UNSAFE = re.compile(r"(?:[^A-Za-z0-9._-]|\.{2,})+")
_LONGEST = 100
# Media types that are already compressed: deflating them costs time and gains nothing.
_COMPRESSED = re.compile(
    r"audio/|video/"
    r"|image/(jpeg|png|gif|webp|avif|heic|jp2|jxl)"
    r"|application/(zip|gzip|zstd|x-bzip2|x-xz|x-7z-compressed|vnd\.rar|vnd\.openxmlformats-)"
    r"|[^;]*\+(zip|gzip|zstd)\b",
    re.IGNORECASE,
)


@dataclass(eq=False)
class PackageFile:
    """A ZIP being written and its manifest, whose entries need not fit in memory.

    `buffer` stores the entries of the manifest until the package is complete. Bitstreams are in
    `folder`. All members have the modification time `stamp`, so that equal contents give equal
    bytes. `check` is called before every chunk, and raises an exception to stop.
    """

    zip: ZipFile
    buffer: IO[bytes]
    folder: str
    stamp: Instant
    check: Callable[[], None]
    profile: Profile
    count: int = 0
    manifest_size: int = 0
    content_size: int = 0
    members: int = 0

    def store(self, resource: Resource, bitstream: Bitstream) -> tuple[Resource, bool | None]:
        """Copy a bitstream into the ZIP. Return its entry with the path, hash and length.

        Also return whether the copied bytes have the hash of `resource`; None if it has no usable
        hash. The content may change while it is copied, so its hash is computed from these bytes.
        """
        self.members += 1
        path = f"{self.folder}/{_member_path(self.members, resource)}"
        digester = Digester(resource.hash)
        with self.zip.open(self._info(path, resource, bitstream.size), "w") as member:
            for chunk in bitstream.chunks():
                self.check()
                digester.update(chunk)
                member.write(chunk)
        self.content_size += digester.length
        hashes = digester.hashes
        stored = replace(resource, path="/" + path, hash=hashes, length=digester.length)
        return stored, are_included(resource.hash, hashes)

    def note(self, resource: Resource) -> None:
        """Add an entry to the manifest."""
        self.count += 1
        self.manifest_size += self.buffer.write(entry(resource, profile=self.profile))

    def finish(self, head: Document) -> None:
        """Write the manifest to the ZIP. `head` is the manifest without its entries."""
        described = Resource(_MANIFEST, type="application/xml")
        info = self._info(_MANIFEST, described, self.manifest_size)
        with self.zip.open(info, "w") as member:
            for chunk in self.manifest(head):
                member.write(chunk)

    def manifest(self, head: Document) -> Iterator[bytes]:
        """Yield the manifest in pieces."""
        yield opening(head)
        self.buffer.seek(0)
        while chunk := self.buffer.read(CHUNK):
            yield chunk
        yield closing(head)

    def _info(self, path: str, resource: Resource, size: int) -> ZipInfo:
        # ZIP can only store years from 1980 to 2107.
        year = min(max(self.stamp.year, 1980), 2107)
        info = ZipInfo(path, (year, *self.stamp.timetuple()[1:6]))
        info.compress_type = ZIP_STORED if _is_compressed(resource) else ZIP_DEFLATED
        info.create_system, info.external_attr = _UNIX, _PLAIN_FILE
        info.file_size = size  # zipfile uses it to decide whether ZIP64 is needed
        return info


def _member_path(number: int, resource: Resource) -> str:
    """Return the path of a bitstream below its folder in the package.

    The number alone distinguishes members. The last part of the URI is there for human readers.
    """
    last = re.split(r"[?#]", resource.uri, maxsplit=1)[0].rpartition("/")[2]
    name = _UNSAFE.sub("_", unquote(last))[-_LONGEST:].rstrip(".")
    suffix = "" if "." in name else extension(resource.type or "")
    return f"{number:06}-{name}{suffix}" if name else f"{number:06}{suffix}"


def _is_compressed(resource: Resource) -> bool:
    coded = resource.encoding not in (None, "", "identity")
    return coded or bool(_COMPRESSED.match(resource.type or ""))


_log = logging.getLogger("rsnotify.publisher")


class Captured:
    """A folder with the contents of changes. Any number of threads and processes may write to it.

    Content is kept only for changes with a hash. Without one, nothing shows whether the resource's
    current content is still the content after the change.
    """

    def __init__(self, folder: Path, content: Callable[[str], bytes | Path | None]) -> None:
        self._folder = folder
        self._content = content

    def put(self, change: Resource, content: bytes) -> None:
        """Keep the content that came with a change."""
        with opened(content) as bitstream:
            assert bitstream is not None
            _copy(bitstream, change.hash or "", self._path(change))

    def keep(self, changes: Iterable[Resource]) -> None:
        """Keep the current content of the changed resources, if it still matches the change's hash.

        The sooner this is called after a change, the fewer resources have changed again. Existing
        files are not overwritten. Files are not flushed to the disk, because the hash reveals a
        file that was damaged in a crash.

        Errors are logged. In the Change Dump, the entry of such a change has no bitstream.
        """
        failed: list[Exception] = []
        for change in changes:
            if change.change is ChangeType.DELETED or change.hash is None:
                continue
            path = self._path(change)
            try:
                if not path.exists():
                    with opened(self._content(change.uri)) as bitstream:
                        if bitstream is not None:
                            _copy(bitstream, change.hash, path)
            except (StorageError, OSError) as error:
                failed.append(error)
        if failed:
            _log.error(
                "the content of %s could not be kept for the Change Dump; the first: %s",
                counted(len(failed), "change"),
                failed[0],
            )

    def content(self, change: Resource) -> Path | None:
        """Return the file with the kept content of a change, or None. The caller must verify it."""
        path = self._path(change)
        return path if path.exists() else None

    def forget(self, through: Instant) -> None:
        last = _name(through)
        for path in self._folder.glob("*"):
            if path.name <= last:
                path.unlink(missing_ok=True)

    def _path(self, change: Resource) -> Path:
        assert change.datetime is not None, "a change that was recorded has a datetime"
        return self._folder / _name(change.datetime)


def _name(instant: Instant) -> str:
    return f"{to_microseconds(instant):020}"


def _copy(bitstream: Bitstream, hashes: str, path: Path) -> None:
    """Copy a bitstream to a file, unless its hash differs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several threads and processes may keep the same content at the same time.
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
    digester = Digester(hashes)
    try:
        with open(temporary, "wb") as file:
            for chunk in bitstream.chunks():
                digester.update(chunk)
                file.write(chunk)
        if are_included(hashes, digester.hashes):
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
