"""Writes dumps: packages, and the documents that list them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from zipfile import ZipFile

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import MAX_BYTES, MAX_ENTRIES, Capability, Rel
from rsnotify.format.writer import Profile
from rsnotify.plural import counted
from rsnotify_publisher.dumps.bitstreams import BitstreamSupplier, EntryBitstream, EntryContent
from rsnotify_publisher.dumps.dump_document import DumpDocument
from rsnotify_publisher.dumps.entries import ChangeEntries, DumpEntries, ResourceEntries
from rsnotify_publisher.dumps.package import PackageFile
from rsnotify_publisher.files import all_or_none, atomic, write_atomically

# Leaves space for one more entry, whose length is known only after its content was copied.
_MANIFEST_BYTES = MAX_BYTES * 9 // 10
_IN_MEMORY = 1_000_000
log = logging.getLogger("rsnotify.publisher")


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


@dataclass(eq=False)
class DumpWriter:
    """Writes the dumps of one Source.

    Args:
        folder: The folder of the files; the file with the name N has the URI `base_url` + N.
        base_url: Ends in a slash.
        capability_list: The URI that documents and manifests point `up` to.
        max_resources: Entries in one package.
        max_content: Bytes of content in one package; a single larger one gets its own.
        max_entries: Packages in one dump document, before it gets an index.
        profile: How documents and manifests are written.
    """

    folder: Path
    base_url: str
    capability_list: str
    max_resources: int = MAX_ENTRIES
    max_content: int = 1_000_000_000
    max_entries: int = MAX_ENTRIES
    profile: Profile = Profile.V1_1

    def __post_init__(self) -> None:
        self._links = (Link(Rel.UP, self.capability_list),)
        self._document = DumpDocument(self.folder, self.base_url, self.max_entries)

    def resource_packages(
        self,
        stem: str,
        at: Instant,
        resources: Iterable[Resource],
        content: EntryContent,
        *,
        now: Callable[[], Instant],
        check: Callable[[], None] = lambda: None,
    ) -> list[WrittenPackage]:
        """Write the packages of a Resource Dump; at least one, even without resources.

        Hash and length are those of the bytes in the package, not those of the entry. If the
        content has changed since `at`, the entry has no `lastmod`, which is unknown. A resource
        without content is left out. After any error, also one that an argument raises, no file is
        left behind.

        Args:
            stem: Beginning of the names of all files.
            at: The instant of the snapshot; all packages have it, since the set is as of then.
            resources: The set, streamed.
            content: Returns the current content of each.
            now: Returns when a package was completed.
            check: Called often; raises an exception to stop.
        """
        supply = BitstreamSupplier(content, check)
        entries = ResourceEntries(at, now, self._links)
        written = self._write_packages(stem, entries, resources, supply)
        if entries.missing:
            log.info("%s: %d resources without content were left out", stem, entries.missing)
        return written

    def change_packages(
        self,
        stem: str,
        from_: Instant,
        until: Instant,
        changes: Iterable[Resource],
        content: EntryContent,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> list[WrittenPackage]:
        """Write the packages of a closed interval of changes; at least one, even if it is empty.

        The manifests have an entry for every change, with a bitstream wherever `content` returns
        one with the hash of the change; see `ChangeEntries`. Otherwise as `resource_packages`.
        """
        supply = BitstreamSupplier(content, check)
        entries = ChangeEntries(from_, until, supply, self._links)
        written = self._write_packages(stem, entries, changes, supply)
        if entries.missing:
            log.warning(
                "%s: the content of %s was not kept; these entries have no path",
                *(stem, counted(entries.missing, "change")),
            )
        return written

    def write_resource_dump(
        self,
        name: str,
        at: Instant,
        completed: Instant,
        packages: Iterable[Resource],
        *,
        links: tuple[Link, ...] = (),
    ) -> list[str]:
        """Write a Resource Dump (core §11.1), or an index and its parts; return their names."""
        all_links = (*self._links, *links)
        head = Document(Capability.RESOURCE_DUMP, at=at, completed=completed, links=all_links)
        return self._document.write(name, head, packages)

    def write_change_dump(
        self,
        name: str,
        from_: Instant,
        until: Instant | None,
        packages: Iterable[Resource],
        *,
        links: tuple[Link, ...] = (),
    ) -> list[str]:
        """Write a Change Dump (core §13.1), as `write_resource_dump` does.

        It is open without `until`: packages may still be added.
        """
        all_links = (*self._links, *links)
        head = Document(Capability.CHANGE_DUMP, from_=from_, until=until, links=all_links)
        return self._document.write(name, head, packages)

    def _write_packages(
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
