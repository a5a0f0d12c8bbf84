"""Writes the packages of one dump, one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import SpooledTemporaryFile
from zipfile import ZipFile

from msgspec import Struct

from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import MAX_BYTES, Rel
from rsnotify.format.writer import Profile
from rsnotify_publisher.dumps.bitstreams import BitstreamSupplier, EntryBitstream
from rsnotify_publisher.dumps.entries import DumpEntries
from rsnotify_publisher.dumps.package import PackageFile
from rsnotify_publisher.files import all_or_none, atomic, write_atomically

# Leaves space for one more entry, whose length is known only after its content was copied.
_MANIFEST_BYTES = MAX_BYTES * 9 // 10
_IN_MEMORY = 1_000_000


class WrittenPackage(Struct, frozen=True):
    """A package that was written.

    Args:
        entry: Its entry in the dump document (core §11.1, §13.1).
        files: The ZIP and the copy of its manifest, relative to the base URL.
        count: Entries in the manifest.
    """

    entry: Resource
    files: tuple[str, str]
    count: int


class PackageSeries(Struct, frozen=True):
    """Writes packages into the folder with the URI `base_url`; see `DumpWriter` for the bounds."""

    folder: Path
    base_url: str
    max_resources: int
    max_content: int
    profile: Profile

    def write(
        self,
        stem: str,
        entries: DumpEntries,
        resources: Iterable[Resource],
        supply: BitstreamSupplier,
    ) -> list[WrittenPackage]:
        """Write all packages, at least one; after any error, no file is left behind."""
        written: list[WrittenPackage] = []
        with closing(supply.of(resources)) as offers, all_or_none(self.folder) as names:
            pending = next(offers, None)
            while pending is not None or not written:
                number = len(written) + 1
                files = f"{stem}-{number:05}.zip", f"{stem}-{number:05}-manifest.xml"
                names.extend(files)
                package, pending = self._write_one(files, entries, pending, offers, supply.check)
                written.append(package)
        return written

    def _write_one(
        self,
        files: tuple[str, str],
        entries: DumpEntries,
        pending: EntryBitstream | None,
        offers: Iterator[EntryBitstream],
        check: Callable[[], None],
    ) -> tuple[WrittenPackage, EntryBitstream | None]:
        """Write one package and the copy of its manifest; return the entry that did not fit."""
        path, copy = (self.folder / name for name in files)
        with (
            atomic(path) as file,
            SpooledTemporaryFile(max_size=_IN_MEMORY) as buffer,
            ZipFile(file, "w") as zip,
        ):
            package = PackageFile(zip, buffer, entries.folder, entries.stamp, check, self.profile)
            while pending is not None and self._fits(package, pending):
                entries.put(package, *pending)
                pending = next(offers, None)
            head = entries.manifest(is_last=pending is None)
            package.finish(head)
            write_atomically(copy, package.manifest(head))
        return WrittenPackage(self._entry(files, head), files, package.count), pending

    def _fits(self, package: PackageFile, offer: EntryBitstream) -> bool:
        size = offer[1].size if offer[1] else 0
        return package.count == 0 or (
            package.count < self.max_resources
            and package.content_size + size <= self.max_content
            and package.manifest_size <= _MANIFEST_BYTES
        )

    def _entry(self, files: tuple[str, str], head: Document) -> Resource:
        path, copy = self.folder / files[0], self.base_url + files[1]
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Resource(
            self.base_url + files[0],
            at=head.at,
            completed=head.completed,
            from_=head.from_,
            until=head.until,
            hash=f"sha-256:{digest}",
            length=path.stat().st_size,
            type="application/zip",
            links=(Link(Rel.CONTENTS, copy, type="application/xml"),),
        )
