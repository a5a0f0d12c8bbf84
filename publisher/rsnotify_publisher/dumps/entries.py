"""How resources, and changes, are put into a package, and what its manifest says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from rsnotify.datetimes import Instant
from rsnotify.model import Document, Link, Resource
from rsnotify.vocabulary import Capability, Rel
from rsnotify_publisher.dumps.package import PackageFile, Stored
from rsnotify_publisher.dumps.supply import Bitstream, Supply, agrees


class Entries(Protocol):
    """One kind of dump.

    Args:
        folder: In which folder of a package bitstreams stand.
        stamp: The time that all members show.
    """

    folder: str
    stamp: Instant

    def put(self, package: PackageFile, entry: Resource, bitstream: Bitstream | None) -> None:
        """Copy a bitstream, and put the entry into the manifest."""

    def manifest(self, *, is_last: bool) -> Document:
        """Say how the manifest begins of the package that is complete now."""


class ResourceEntries:
    """The entries of a Resource Dump Manifest (core §11.2).

    Args:
        at: The instant of the snapshot.
        now: Tells when a package was completed.
        links: Those of every manifest.
    """

    folder = "resources"

    def __init__(self, at: Instant, now: Callable[[], Instant], links: tuple[Link, ...]) -> None:
        self.stamp = at
        self._now = now
        self._links = links

    def put(self, package: PackageFile, entry: Resource, bitstream: Bitstream | None) -> None:
        """Copy a bitstream, and put the entry into the manifest."""
        assert bitstream is not None, "nothing in a set of resources is deleted"
        stored = package.store(entry, bitstream)
        # When it became what it is now is not known if it is no longer what it was.
        lastmod = None if stored.as_recorded is False else entry.lastmod
        # A patch leads from a version that whoever reads a dump does not have (core §14.4).
        links = tuple(link for link in entry.links if link.rel != Rel.PATCH)
        package.note(replace(stored.describe(entry), lastmod=lastmod, links=links))

    def manifest(self, *, is_last: bool) -> Document:
        """Say how the manifest begins of the package that is complete now."""
        return Document(
            Capability.RESOURCE_DUMP_MANIFEST,
            at=self.stamp,
            completed=self._now(),
            links=self._links,
        )


class ChangeEntries:
    """The entries of a Change Dump Manifest (core §13.2).

    Args:
        from_: Where the interval of all packages begins.
        until: Where it ends.
        supply: Where patches come from.
        links: Those of every manifest.
    """

    folder = "changes"

    def __init__(
        self, from_: Instant, until: Instant, supply: Supply, links: tuple[Link, ...]
    ) -> None:
        self.stamp = until
        self._from = self._last = from_
        self._until = until
        self._supply = supply
        self._links = links
        self._newer: dict[str, Stored] = {}

    def put(self, package: PackageFile, entry: Resource, bitstream: Bitstream | None) -> None:
        """Copy a bitstream, and put the entry into the manifest."""
        assert entry.datetime is not None, "a change has a datetime"
        self._last = entry.datetime
        if bitstream is None:
            package.note(replace(entry, path=None))
            return
        stored = self._stored(package, entry, bitstream)
        links = self._with_patches(package, entry, stored)
        package.note(replace(stored.describe(entry), links=links))

    def manifest(self, *, is_last: bool) -> Document:
        """Say how the manifest begins of the package that is complete now."""
        from_, until = self._from, self._until if is_last else self._last
        self._from = until
        self._newer.clear()
        return Document(
            Capability.CHANGE_DUMP_MANIFEST, from_=from_, until=until, links=self._links
        )

    def _stored(self, package: PackageFile, entry: Resource, bitstream: Bitstream) -> Stored:
        """Copy a bitstream, unless it stands in the package already.

        That happens where the content of several changes is gone, and the newest stands for
        each of them.
        """
        before = self._newer.get(entry.uri)
        if before is not None and _is_same(before, bitstream):
            return before
        stored = package.store(entry, bitstream)
        if not stored.as_recorded:
            self._newer[entry.uri] = stored
        return stored

    def _with_patches(
        self, package: PackageFile, entry: Resource, stored: Stored
    ) -> tuple[Link, ...]:
        """Bring patches into the package too, as core §14.4 demands, or leave them out."""
        links = []
        for link in entry.links:
            if link.rel != Rel.PATCH:
                links.append(link)
            elif stored.as_recorded is not False:
                links += self._patch(package, link)
        return tuple(links)

    def _patch(self, package: PackageFile, link: Link) -> list[Link]:
        if link.href.startswith("data:"):  # there is nothing to ask for
            return []
        patch = Resource(link.href, hash=link.hash, length=link.length, type=link.type)
        with self._supply.opened(patch) as bitstream:
            if bitstream is None or not (link.hash is None or agrees(bitstream, link.hash)):
                return []
            stored = package.store(patch, bitstream)
        return [replace(link, path=stored.path, hash=stored.hash, length=stored.length)]


def _is_same(stored: Stored, bitstream: Bitstream) -> bool:
    return stored.length == bitstream.size and agrees(bitstream, stored.hash)
