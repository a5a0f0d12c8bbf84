"""Writes one package: a ZIP whose last member is the manifest (core §11.2, §13.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document, Resource
from rsnotify.format.writer import Profile, closing, entry, opening
from rsnotify_publisher.dumps.bitstreams import CHUNK, Bitstream, chunks
from rsnotify_publisher.dumps.members import is_compressed, member_path
from rsnotify_publisher.hashes import Digests

_MANIFEST = "manifest.xml"
_UNIX = 3
_PLAIN_FILE = 0o100644 << 16


class StoredBitstream(Struct, frozen=True):
    """A bitstream that was copied into the package.

    Args:
        path: With a leading slash, as in a manifest.
        hash: Of the bytes that were copied.
        length: Number of these bytes.
        as_recorded: Whether they have the hash of the entry; None if it has none of use.
    """

    path: str
    hash: str
    length: int
    as_recorded: bool | None

    def describe(self, resource: Resource) -> Resource:
        """Return an entry with the path, hash and length of its bitstream."""
        return replace(resource, path=self.path, hash=self.hash, length=self.length)


class PackageFile:
    """A ZIP being written, and its manifest, whose entries do not stay in memory.

    Args:
        zip: The ZIP, open to be written.
        manifest: Buffers the entries until the package is complete.
        folder: The folder of the ZIP for bitstreams.
        stamp: The modification time of all members, so that equal contents give equal bytes.
        check: Called before every chunk; raises an exception to stop.
        profile: How the manifest is written.
    """

    def __init__(
        self,
        zip: ZipFile,
        manifest: IO[bytes],
        folder: str,
        stamp: Instant,
        check: Callable[[], None],
        profile: Profile,
    ) -> None:
        self._zip = zip
        self._manifest = manifest
        self._folder = folder
        self._stamp = stamp
        self._check = check
        self._profile = profile
        self._members = 0
        #: Entries in the manifest, bytes of the manifest, bytes of content.
        self.count = self.manifest_size = self.content_size = 0

    def store(self, resource: Resource, bitstream: Bitstream) -> StoredBitstream:
        """Copy a bitstream into the ZIP.

        The content may change meanwhile, so the hash is of the bytes that were copied.

        Raises:
            OSError: The bitstream cannot be read, or the ZIP cannot be written.
        """
        self._members += 1
        path = f"{self._folder}/{member_path(self._members, resource)}"
        digests = Digests(resource.hash)
        length = 0
        with self._zip.open(self._info(path, resource, bitstream.size), "w") as member:
            for chunk in chunks(bitstream):
                self._check()
                digests.update(chunk)
                length += member.write(chunk)
        self.content_size += length
        return StoredBitstream("/" + path, digests.text, length, digests.agree)

    def note(self, resource: Resource) -> None:
        """Put an entry into the manifest."""
        self.count += 1
        self.manifest_size += self._manifest.write(entry(resource, profile=self._profile))

    def finish(self, head: Document) -> None:
        """Write the manifest into the ZIP.

        Args:
            head: The manifest without its entries.
        """
        described = Resource(_MANIFEST, type="application/xml")
        info = self._info(_MANIFEST, described, self.manifest_size)
        with self._zip.open(info, "w") as member:
            for chunk in self.manifest(head):
                member.write(chunk)

    def manifest(self, head: Document) -> Iterator[bytes]:
        """Return the manifest in pieces."""
        yield opening(head)
        self._manifest.seek(0)
        while chunk := self._manifest.read(CHUNK):
            yield chunk
        yield closing(head)

    def _info(self, path: str, resource: Resource, size: int) -> ZipInfo:
        # A ZIP can store years from 1980 to 2107.
        year = min(max(self._stamp.year, 1980), 2107)
        info = ZipInfo(path, (year, *self._stamp.timetuple()[1:6]))
        info.compress_type = ZIP_STORED if is_compressed(resource) else ZIP_DEFLATED
        info.create_system, info.external_attr = _UNIX, _PLAIN_FILE
        info.file_size = size  # by which zipfile decides whether it must be ZIP64
        return info
