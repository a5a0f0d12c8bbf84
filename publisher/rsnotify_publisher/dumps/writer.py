"""Writes dumps: packages, and the documents that list them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import MAX_ENTRIES, Capability, Rel
from rsnotify.format.writer import Profile
from rsnotify.plural import counted
from rsnotify_publisher.dumps.bitstreams import BitstreamSupplier, EntryContent
from rsnotify_publisher.dumps.dump_document import DumpDocument
from rsnotify_publisher.dumps.entries import ChangeEntries, ResourceEntries
from rsnotify_publisher.dumps.packages import PackageSeries, WrittenPackage

log = logging.getLogger("rsnotify.publisher")


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

    def __init__(
        self,
        folder: Path,
        base_url: str,
        capability_list: str,
        *,
        max_resources: int = MAX_ENTRIES,
        max_content: int = 1_000_000_000,
        max_entries: int = MAX_ENTRIES,
        profile: Profile = Profile.V1_1,
    ) -> None:
        self._links = (Link(Rel.UP, capability_list),)
        self._packages = PackageSeries(folder, base_url, max_resources, max_content, profile)
        self._document = DumpDocument(folder, base_url, max_entries)

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
        written = self._packages.write(stem, entries, resources, supply)
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
        written = self._packages.write(stem, entries, changes, supply)
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
