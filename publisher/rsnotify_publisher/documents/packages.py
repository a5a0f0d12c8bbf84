"""Writes one package of a dump: a ZIP whose last member is the manifest (core §11.2, §13.2)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify.format.hashes import Digester, are_included
from rsnotify.format.media_types import extension
from rsnotify.format.model import Document, Resource
from rsnotify.format.writer import Profile, closing, entry, opening
from rsnotify_publisher.source_contents import CHUNK_SIZE, Bitstream

_MANIFEST = "manifest.xml"
#: The values of `ZipInfo` for a regular file on Unix, readable by all.
_UNIX, _REGULAR_FILE = 3, 0o100644 << 16
# Characters that some file systems do not allow, or that could name a parent folder.
_UNSAFE = re.compile(r"(?:[^A-Za-z0-9._-]|\.{2,})+")
#: Maximum number of characters of a member's name that are taken from its URI.
_MAX_NAME_LENGTH = 100
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
    """A ZIP being written, and its manifest.

    `buffer` stores the entries of the manifest until the package is complete, since they may not
    fit into memory. Bitstreams are in `folder`. All members have the modification time `stamp`, so
    that equal contents result in equal bytes. `check` is called before every chunk, and raises an
    exception to stop.
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

        Also return whether the copied bytes have the hash of `resource`, or None if it has no
        usable hash. The content may change while it is copied, so the hash in the entry is computed
        from the copied bytes.
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

    def add_entry(self, resource: Resource) -> None:
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
        while chunk := self.buffer.read(CHUNK_SIZE):
            yield chunk
        yield closing(head)

    def _info(self, path: str, resource: Resource, size: int) -> ZipInfo:
        # ZIP can only store years from 1980 to 2107.
        year = min(max(self.stamp.year, 1980), 2107)
        info = ZipInfo(path, (year, *self.stamp.timetuple()[1:6]))
        info.compress_type = ZIP_STORED if _is_compressed(resource) else ZIP_DEFLATED
        info.create_system, info.external_attr = _UNIX, _REGULAR_FILE
        info.file_size = size  # zipfile uses it to decide whether ZIP64 is needed
        return info


def _member_path(number: int, resource: Resource) -> str:
    """Return the path of a bitstream below its folder in the package.

    The number distinguishes the members. The last part of the URI is for human readers.
    """
    last = re.split(r"[?#]", resource.uri, maxsplit=1)[0].rpartition("/")[2]
    name = _UNSAFE.sub("_", unquote(last))[-_MAX_NAME_LENGTH:].rstrip(".")
    suffix = "" if "." in name else extension(resource.type or "")
    return f"{number:06}-{name}{suffix}" if name else f"{number:06}{suffix}"


def _is_compressed(resource: Resource) -> bool:
    coded = resource.encoding not in (None, "", "identity")
    return coded or bool(_COMPRESSED.match(resource.type or ""))


logger = logging.getLogger("rsnotify.publisher")
