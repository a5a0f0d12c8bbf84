"""Adds resources and changes to a package and to its manifest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import Capability, ChangeType, Rel
from rsnotify_publisher.dumps.bitstreams import Bitstream, BitstreamSupplier
from rsnotify_publisher.dumps.package import PackageFile
from rsnotify_publisher.hashes import matches


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
