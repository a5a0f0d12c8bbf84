"""Writes dumps: packages with manifests, and the documents that list them (core §11.1, §13.1).

The input are entries and contents, the output are files in a folder. Which entries, when a dump is
written, and how long it is kept is decided in `source_dumps`. Memory does not grow with the size of
a dump.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import SpooledTemporaryFile
from zipfile import ZipFile

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import counted
from rsnotify.format.datetimes import Instant
from rsnotify.format.hashes import matches
from rsnotify.format.model import (
    MAX_BYTES,
    MAX_ENTRIES,
    Capability,
    ChangeType,
    Document,
    Link,
    Rel,
    Resource,
)
from rsnotify.format.writer import Profile, entry, write_document
from rsnotify_publisher.documents.packages import (
    Bitstream,
    BitstreamSupplier,
    EntryBitstream,
    EntryContent,
    PackageFile,
)
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
        return self._write_document(name, head, packages)

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
        return self._write_document(name, head, packages)

    def _write_document(self, name: str, head: Document, packages: Iterable[Resource]) -> list[str]:
        """Write the document, or its parts and then the index; return the names of the parts.

        The name is relative to the base URL; `head` is the document without its entries.
        """
        groups = list(self._groups(packages))
        if len(groups) == 1:
            self._write(name, replace(head, resources=groups[0]))
            return []
        parts = list(self._parts(name, head, groups))
        for part, document in parts:
            self._write(part, document)
        listed = tuple(self._listed(part, document) for part, document in parts)
        self._write(name, replace(head, index=True, resources=listed))
        return [part for part, _ in parts]

    def _groups(self, packages: Iterable[Resource]) -> Iterator[tuple[Resource, ...]]:
        """Yield groups of entries that fit into a document each; at least one group."""
        group: list[Resource] = []
        size = 0
        for package in packages:
            length = len(entry(package))
            if group and (len(group) == self.max_entries or size + length > MAX_BYTES):
                yield tuple(group)
                group, size = [], 0
            group.append(package)
            size += length
        yield tuple(group)

    def _parts(
        self, name: str, head: Document, groups: list[tuple[Resource, ...]]
    ) -> Iterator[tuple[str, Document]]:
        """Yield the parts. If the dump is open, its last part is open, too."""
        links = (*head.links, Link(Rel.INDEX, self.base_url + name))
        for number, group in enumerate(groups, 1):
            part = replace(head, resources=group, links=links, completed=group[-1].completed)
            if head.from_ is not None:
                until = head.until if number == len(groups) else group[-1].until
                part = replace(part, from_=group[0].from_, until=until)
            yield _part_name(name, part, number), part

    def _listed(self, name: str, part: Document) -> Resource:
        return Resource(
            self.base_url + name,
            at=part.at,
            completed=part.completed,
            from_=part.from_,
            until=part.until,
        )

    def _write(self, name: str, document: Document) -> None:
        write_atomically(self.folder / name, [write_document(document)])

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


_PARTS = "resourcesync"
_COMPACT = "%Y%m%dT%H%M%S%fZ"


def _part_name(name: str, part: Document, number: int) -> str:
    """Return a name that no part of a former index has, since clients may still hold that index."""
    path = PurePosixPath(name)
    folder = path.parent if path.parent.parts else PurePosixPath(_PARTS)
    begin, end = part.at or part.from_, part.resources[-1].until
    assert begin is not None
    stem = f"{path.stem}-part-{begin:{_COMPACT}}"
    if end is not None:  # a Change Dump that still grows has other bytes for each end
        stem += f"-{end:{_COMPACT}}" if part.until else f"-{end:{_COMPACT}}-open"
    return str(folder / f"{stem}-{number:05}.xml")


class DumpEntries(ABC):
    """The entries of one kind of dump.

    All members have the modification time `stamp`. Entries that are no deletions and have no
    bitstream are counted as `missing`.
    """

    folder: str

    def __init__(self, stamp: Instant, links: tuple[Link, ...]) -> None:
        self.stamp = stamp
        self.missing = 0
        self._links = links

    @abstractmethod
    def put(self, package: PackageFile, entry: Resource, bitstream: Bitstream | None) -> None:
        """Copy a bitstream, and add the entry to the manifest."""

    @abstractmethod
    def manifest(self, *, is_last: bool) -> Document:
        """Return the manifest, without entries, of the package that is complete now."""


class ResourceEntries(DumpEntries):
    """The entries of a Resource Dump Manifest (core §11.2)."""

    folder = "resources"

    def __init__(self, at: Instant, now: Callable[[], Instant], links: tuple[Link, ...]) -> None:
        super().__init__(at, links)
        self._now = now

    def put(self, package: PackageFile, entry: Resource, bitstream: Bitstream | None) -> None:
        """Copy a bitstream, and add the entry to the manifest.

        Every entry must have a bitstream (core §11.2). A resource without one is left out: it was
        deleted after the snapshot, and the Change List has that change.
        """
        if bitstream is None:
            self.missing += 1
            return
        stored = package.store(entry, bitstream)
        # If the content changed since it was recorded, its modification time is unknown.
        lastmod = None if stored.as_recorded is False else entry.lastmod
        # A patch applies to a version that the reader of a dump does not have (core §14.4).
        package.note(replace(stored.describe(entry), lastmod=lastmod, links=_unpatched(entry)))

    def manifest(self, *, is_last: bool) -> Document:
        return Document(
            Capability.RESOURCE_DUMP_MANIFEST,
            at=self.stamp,
            completed=self._now(),
            links=self._links,
        )


class ChangeEntries(DumpEntries):
    """The entries of a Change Dump Manifest (core §13.2).

    Every change of the interval has an entry. An entry has a `path` only if the hash proves that
    the bitstream is the content that the change gave the resource. If that content is lost, the
    entry keeps its hash and length and has no `path`: Destinations GET the resource, or apply the
    later change that replaced the content.
    """

    folder = "changes"

    def __init__(
        self, from_: Instant, until: Instant, supply: BitstreamSupplier, links: tuple[Link, ...]
    ) -> None:
        super().__init__(until, links)
        self._from = self._last = from_
        self._supply = supply

    def put(self, package: PackageFile, entry: Resource, bitstream: Bitstream | None) -> None:
        assert entry.datetime is not None, "a change has a datetime"
        self._last = entry.datetime
        stored = None
        if bitstream is not None and entry.hash and matches(entry.hash, bitstream.chunks()):
            stored = package.store(entry, bitstream)
        # A file may change while it is copied.
        if stored is not None and stored.as_recorded:
            links = self._with_patches(package, entry)
            package.note(replace(stored.describe(entry), links=links))
            return
        self.missing += entry.change is not ChangeType.DELETED
        package.note(replace(entry, path=None, links=_unpatched(entry)))

    def manifest(self, *, is_last: bool) -> Document:
        from_, until = self._from, self.stamp if is_last else self._last
        self._from = until
        return Document(
            Capability.CHANGE_DUMP_MANIFEST, from_=from_, until=until, links=self._links
        )

    def _with_patches(self, package: PackageFile, entry: Resource) -> tuple[Link, ...]:
        """Add patches to the package as core §14.4 requires, or leave them out."""
        links: list[Link] = []
        for link in entry.links:
            links += self._patch(package, link) if link.rel == Rel.PATCH else [link]
        return tuple(links)

    def _patch(self, package: PackageFile, link: Link) -> list[Link]:
        if link.href.startswith("data:"):  # a Source has no content for it
            return []
        patch = Resource(link.href, hash=link.hash, length=link.length, type=link.type)
        with self._supply.opened(patch) as bitstream:
            if bitstream is None or not (
                link.hash is None or matches(link.hash, bitstream.chunks())
            ):
                return []
            stored = package.store(patch, bitstream)
        return [replace(link, path=stored.path, hash=stored.hash, length=stored.length)]


def _unpatched(entry: Resource) -> tuple[Link, ...]:
    return tuple(link for link in entry.links if link.rel != Rel.PATCH)
