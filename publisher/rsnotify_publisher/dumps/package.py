"""Writes one package: a ZIP whose last member is the manifest (core §11.2, §13.2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify.format.media_types import extension
from rsnotify.format.model import Document, Resource
from rsnotify.format.writer import Profile, closing, entry, opening
from rsnotify_publisher.dumps.bitstreams import CHUNK, Bitstream
from rsnotify_publisher.hashes import Digests

_MANIFEST = "manifest.xml"
_UNIX = 3
_PLAIN_FILE = 0o100644 << 16
# Characters that some file systems do not allow, or that could name a parent folder.
_UNSAFE = re.compile(r"(?:[^A-Za-z0-9._-]|\.{2,})+")
_LONGEST = 100
# Deflating these again costs time and gains nothing.
_COMPRESSED = re.compile(
    r"audio/|video/"
    r"|image/(jpeg|png|gif|webp|avif|heic|jp2|jxl)"
    r"|application/(zip|gzip|zstd|x-bzip2|x-xz|x-7z-compressed|vnd\.rar|vnd\.openxmlformats-)"
    r"|[^;]*\+(zip|gzip|zstd)\b",
    re.IGNORECASE,
)


class StoredBitstream(Struct, frozen=True):
    """A bitstream that was copied into the package, with the hash and length of the copied bytes.

    Args:
        path: With a leading slash, as in a manifest.
        hash: Of the bytes.
        length: Number of bytes.
        as_recorded: Whether they have the hash of the entry; None if it has none of use.
    """

    path: str
    hash: str
    length: int
    as_recorded: bool | None

    def describe(self, resource: Resource) -> Resource:
        """Return an entry with the path, hash and length of its bitstream."""
        return replace(resource, path=self.path, hash=self.hash, length=self.length)


@dataclass(eq=False)
class PackageFile:
    """A ZIP being written, and its manifest, whose entries do not stay in memory.

    Args:
        zip: The ZIP, open to be written.
        buffer: Holds the entries of the manifest until the package is complete.
        folder: The folder of the ZIP for bitstreams.
        stamp: The modification time of all members, so that equal contents give equal bytes.
        check: Called before every chunk; raises an exception to stop.
        profile: How the manifest is written.
        count: Entries in the manifest, with `manifest_size` bytes, on `content_size` bytes.
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

    def store(self, resource: Resource, bitstream: Bitstream) -> StoredBitstream:
        """Copy a bitstream into the ZIP.

        The content may change meanwhile, so the hash is of the bytes that were copied.
        """
        self.members += 1
        path = f"{self.folder}/{_member_path(self.members, resource)}"
        digests = Digests(resource.hash)
        length = 0
        with self.zip.open(self._info(path, resource, bitstream.size), "w") as member:
            for chunk in bitstream.chunks():
                self.check()
                digests.update(chunk)
                length += member.write(chunk)
        self.content_size += length
        return StoredBitstream("/" + path, digests.text, length, digests.agree)

    def note(self, resource: Resource) -> None:
        """Put an entry into the manifest."""
        self.count += 1
        self.manifest_size += self.buffer.write(entry(resource, profile=self.profile))

    def finish(self, head: Document) -> None:
        """Write the manifest into the ZIP; `head` is the manifest without its entries."""
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
        # A ZIP can store years from 1980 to 2107.
        year = min(max(self.stamp.year, 1980), 2107)
        info = ZipInfo(path, (year, *self.stamp.timetuple()[1:6]))
        info.compress_type = ZIP_STORED if _is_compressed(resource) else ZIP_DEFLATED
        info.create_system, info.external_attr = _UNIX, _PLAIN_FILE
        info.file_size = size  # by which zipfile decides whether it must be ZIP64
        return info


def _member_path(number: int, resource: Resource) -> str:
    """Return the path of a bitstream below its folder in the package.

    The number alone distinguishes members; the last part of the URI is for people.
    """
    last = re.split(r"[?#]", resource.uri, maxsplit=1)[0].rpartition("/")[2]
    name = _UNSAFE.sub("_", unquote(last))[-_LONGEST:].rstrip(".")
    suffix = "" if "." in name else extension(resource.type or "")
    return f"{number:06}-{name}{suffix}" if name else f"{number:06}{suffix}"


def _is_compressed(resource: Resource) -> bool:
    coded = resource.encoding not in (None, "", "identity")
    return coded or bool(_COMPRESSED.match(resource.type or ""))
