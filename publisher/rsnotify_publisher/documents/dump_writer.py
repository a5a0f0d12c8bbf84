"""Writes dumps: packages with manifests, and the documents that list them (core §11.1, §13.1).

`SourceDumps` decides when dumps are written and what they contain. The Resource Dump is written on
its schedule, if anything changed. Each closed Change List also gets a closed Change Dump. The live
Change Dump lists the packages of the newest ones.

`DumpWriter` writes entries and contents to files in a folder. Its memory use does not grow with the
size of a dump.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from shutil import rmtree
from tempfile import SpooledTemporaryFile
from zipfile import ZipFile

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import counted
from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
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
from rsnotify.format.reader import read_document
from rsnotify.format.writer import Profile, entry, write_document
from rsnotify_publisher.changes import CheckedContents
from rsnotify_publisher.documents.archives import Archives
from rsnotify_publisher.documents.document_writer import notify_version
from rsnotify_publisher.documents.open_change_list import changes_in, still_listed
from rsnotify_publisher.documents.packages import (
    Bitstream,
    EntryBitstream,
    EntryContent,
    PackageFile,
    opened,
    with_bitstreams,
)
from rsnotify_publisher.files import all_or_none, also_as, atomic, write_atomically
from rsnotify_publisher.journal import FinishedDocument, Journal, Recorder
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import (
    ARCHIVES,
    CAPABILITY_LIST,
    CHANGE_DUMP,
    RESOURCE_DUMP,
    compact,
    stem,
)

# Leaves space for one more entry, whose length is known only after its content has been copied.
_MANIFEST_BYTES = MAX_BYTES * 9 // 10
_IN_MEMORY = 1_000_000
# Number of the newest Change Dumps that stay in the live one if there is an archive.
_LIVE = 10
# Later than any instant (µs).
_NEVER = 2**63
log = logging.getLogger("rsnotify.publisher")


class WrittenPackage(Struct, frozen=True):
    """A package that was written.

    `files` are the ZIP and the copy of its manifest, which has `count` entries.
    """

    entry: Resource
    files: tuple[str, str]
    count: int


@dataclass(eq=False)
class DumpWriter:
    """Writes the dumps of one Source to a folder, in which a file N has the URI `base_url` + N.

    Documents and manifests point `up` to `capability_list`. One package has at most `max_resources`
    entries and `max_content` bytes of content, unless a single one is larger. A dump document with
    more than `max_entries` packages gets an index.
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
        """Write the packages of a Resource Dump: at least one, even if there are no resources.

        The manifest states the hash and length of the bytes in the package, which may differ from
        those in the entry. If the content has changed since `at`, the entry has no `lastmod`, since
        it is unknown. Resources without content are left out. After any error, including exceptions
        from the arguments, no file is left behind.

        The names of all files begin with `stem`. `now` returns the time at which a package is
        completed. `check` is called often, and raises an exception to stop.
        """
        entries = ResourceEntries(at, now, self._links)
        written = self._write_packages(stem, entries, resources, content, check)
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
        """Write the packages for a closed interval of changes: at least one, even if it is empty.

        The manifests have an entry for every change. It has a bitstream if `content` returns one
        with the hash of the change; see `ChangeEntries`. In all other respects this works like
        `resource_packages`.
        """
        entries = ChangeEntries(from_, until, content, self._links)
        written = self._write_packages(stem, entries, changes, content, check)
        if entries.missing:
            log.warning(
                "%s: the content of %s was not kept; these entries have no path",
                stem,
                counted(entries.missing, "change"),
            )
        return written

    def write_document(self, name: str, head: Document, packages: Iterable[Resource]) -> list[str]:
        """Write a dump document (core §11.1, §13.1), and return the names of its parts, if any.

        A dump that does not fit into one document is written as parts, followed by their index.
        Names are relative to the base URL. `head` is the document without its entries and common
        links. A Change Dump without `until` is open: packages may still be added.
        """
        head = replace(head, links=(*self._links, *head.links))
        groups = list(self._groups(packages))
        if len(groups) == 1:
            self._write(name, replace(head, resources=groups[0]))
            return []
        parts = list(self._parts(name, head, groups))
        for part, document in parts:
            self._write(part, document)
        listed = tuple(
            Resource(
                self.base_url + part,
                at=document.at,
                completed=document.completed,
                from_=document.from_,
                until=document.until,
            )
            for part, document in parts
        )
        self._write(name, replace(head, index=True, resources=listed))
        return [part for part, _ in parts]

    def _groups(self, packages: Iterable[Resource]) -> Iterator[tuple[Resource, ...]]:
        """Yield at least one group of entries, each small enough for one document."""
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
        """Yield the names and contents of the parts. If the dump is open, so is its last part."""
        links = (*head.links, Link(Rel.INDEX, self.base_url + name))
        for number, group in enumerate(groups, 1):
            part = replace(head, resources=group, links=links, completed=group[-1].completed)
            if head.from_ is not None:
                until = head.until if number == len(groups) else group[-1].until
                part = replace(part, from_=group[0].from_, until=until)
            yield _part_name(name, part, number), part

    def _write(self, name: str, document: Document) -> None:
        write_atomically(self.folder / name, [write_document(document)])

    def _write_packages(
        self,
        stem: str,
        entries: DumpEntries,
        resources: Iterable[Resource],
        content: EntryContent,
        check: Callable[[], None],
    ) -> list[WrittenPackage]:
        """Write at least one package. After any error, no file is left behind."""
        written: list[WrittenPackage] = []
        with (
            closing(with_bitstreams(resources, content, check)) as offers,
            all_or_none(self.folder) as names,
        ):
            pending = next(offers, None)
            while pending is not None or not written:
                number = len(written) + 1
                files = f"{stem}-{number:05}.zip", f"{stem}-{number:05}-manifest.xml"
                names.extend(files)
                package, pending = self._write_one(files, entries, pending, offers, check)
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
        """Write one package and its manifest. Return it and the first entry that did not fit."""
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


def _part_name(name: str, part: Document, number: int) -> str:
    """Return a name that no part of a former index has, since clients may still use that index."""
    begin, end = part.at or part.from_, part.resources[-1].until
    assert begin is not None
    own = stem(f"{PurePosixPath(name).stem}-part", to_microseconds(begin))
    if end is not None:  # a Change Dump that is still growing has different bytes for each end
        own += f"-{compact(to_microseconds(end))}{'' if part.until else '-open'}"
    return f"{own}-{number:05}.xml"


class ResourceEntries:
    """The entries of a Resource Dump Manifest (core §11.2).

    Attributes:
        stamp: The modification time of all members of a package.
        missing: The number of entries without a bitstream.
    """

    folder = "resources"

    def __init__(self, at: Instant, now: Callable[[], Instant], links: tuple[Link, ...]) -> None:
        self.stamp = at
        self.missing = 0
        self._now = now
        self._links = links

    def put(self, package: PackageFile, entry: Resource, bitstream: Bitstream | None) -> None:
        """Copy a bitstream into the package, and add the entry to its manifest.

        Every entry must have a bitstream (core §11.2). A resource without one is left out: it was
        deleted after the snapshot, and the Change List contains that change.
        """
        if bitstream is None:
            self.missing += 1
            return
        stored, as_recorded = package.store(entry, bitstream)
        # If the content changed since it was recorded, its modification time is unknown.
        lastmod = None if as_recorded is False else entry.lastmod
        # Patches apply to a version that the reader of a dump does not have (core §14.4).
        package.note(replace(stored, lastmod=lastmod, links=_unpatched(entry)))

    def manifest(self, *, is_last: bool) -> Document:
        """Return the manifest of the package just completed, without entries."""
        return Document(
            Capability.RESOURCE_DUMP_MANIFEST,
            at=self.stamp,
            completed=self._now(),
            links=self._links,
        )


class ChangeEntries:
    """The entries of a Change Dump Manifest (core §13.2). See `ResourceEntries`.

    Every change in the interval has an entry. An entry has a `path` only if the hash proves that
    the bitstream is the resource's content right after the change. If that content is lost, the
    entry keeps its hash and length but has no `path`: Destinations GET the resource, or apply the
    later change that replaced the content.
    """

    folder = "changes"

    def __init__(
        self, from_: Instant, until: Instant, content: EntryContent, links: tuple[Link, ...]
    ) -> None:
        self.stamp = until
        self.missing = 0
        self._from = self._last = from_
        self._content = content
        self._links = links

    def put(self, package: PackageFile, entry: Resource, bitstream: Bitstream | None) -> None:
        assert entry.datetime is not None, "a change has a datetime"
        self._last = entry.datetime
        if bitstream is not None and entry.hash and matches(entry.hash, bitstream.chunks()):
            stored, as_recorded = package.store(entry, bitstream)
            if as_recorded:  # a file may change while it is copied
                package.note(replace(stored, links=self._with_patches(package, entry)))
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
        """Add the entry's patches to the package (core §14.4), and return its links.

        Patches whose content is not available are left out.
        """
        links: list[Link] = []
        for link in entry.links:
            links += self._patch(package, link) if link.rel == Rel.PATCH else [link]
        return tuple(links)

    def _patch(self, package: PackageFile, link: Link) -> list[Link]:
        if link.href.startswith("data:"):  # the Source's callback has no content for it
            return []
        patch = Resource(link.href, hash=link.hash, length=link.length, type=link.type)
        with opened(self._content(patch)) as bitstream:
            if bitstream is None or not (
                link.hash is None or matches(link.hash, bitstream.chunks())
            ):
                return []
            stored, _ = package.store(patch, bitstream)
        return [replace(link, path=stored.path, hash=stored.hash, length=stored.length)]


DumpEntries = ResourceEntries | ChangeEntries


def _unpatched(entry: Resource) -> tuple[Link, ...]:
    return tuple(link for link in entry.links if link.rel != Rel.PATCH)


@dataclass(eq=False)
class SourceDumps:
    """Writes and replaces the dumps of one Source. `check` raises an exception to stop."""

    source: SourceContext
    recorder: Recorder
    archives: Archives
    check: Callable[[], None]

    def __post_init__(self) -> None:
        source = self.source
        self._documents = source.documents
        self._folder = source.documents_folder
        self._writer = DumpWriter(
            source.documents_folder,
            source.base_url,
            source.documents.uri(CAPABILITY_LIST),
            max_resources=source.options.max_entries,
            max_entries=source.options.max_entries,
            profile=source.documents.profile,
        )
        self._captured = source.captured
        self._begin = 0
        self._forgotten = -1
        self._shown: list[FinishedDocument] = []

    def awaits(self, name: str) -> bool:
        """Return whether `name` is the Resource Dump or its archive, and no dump exists yet."""
        dump = name in (RESOURCE_DUMP, ARCHIVES[Capability.RESOURCE_DUMP])
        return dump and not (self._folder / RESOURCE_DUMP).exists()

    # The Resource Dump

    def resource_dump_is_due(self, journal: Journal) -> bool:
        """Return whether a Resource Dump is due and anything has changed since the last one."""
        schedule = self.source.resource_dump_schedule
        live = journal.finished(Capability.RESOURCE_DUMP, archived=False)
        if schedule is None or not live:
            return schedule is not None
        at, now = live[-1].begin, self.source.clock()
        if journal.state().last_change <= at:
            return False
        if at > now:
            # The clock was set back. The file's modification time follows it, unlike the journal.
            at = (self._folder / RESOURCE_DUMP).stat().st_mtime_ns // 1000
            at = at if at <= now else 0
        if schedule.cron is None:
            return now >= at + schedule.seconds * 1e6
        scheduled = schedule.last_time(now)
        return scheduled is not None and scheduled > at

    def write_resource_dump(self, journal: Journal, resources: Iterable[Resource]) -> None:
        """Write the Resource Dump while the set may change (core §11.1).

        Raises:
            StorageError: The content of a resource in the set is not available.
        """
        assert self.source.contents is not None
        at = self.recorder.promise()
        own = stem(Capability.RESOURCE_DUMP, at)
        contents = CheckedContents(
            self.source.contents, lambda uris: still_listed(uris, at, journal, self._folder)
        )
        self.archives.reclaim(own)
        packages = self._writer.resource_packages(
            own,
            from_microseconds(at),
            resources,
            lambda resource: contents.get(resource.uri),
            now=lambda: from_microseconds(self.recorder.promise()),
            check=self.check,
        )

        def head() -> Document:
            contents.check()
            return Document(
                Capability.RESOURCE_DUMP,
                at=from_microseconds(at),
                completed=from_microseconds(self.recorder.promise()),
                links=self._documents.archives_link(Capability.RESOURCE_DUMP),
            )

        dump = self._write_dump(own, packages, head)
        also_as(self._folder / f"{own}.xml", self._folder / RESOURCE_DUMP)
        self.archives.replace(journal, dump)

    def _write_dump(
        self, own: str, packages: list[WrittenPackage], head: Callable[[], Document]
    ) -> FinishedDocument:
        """Write the document of a dump, which `head` returns without its entries.

        After any error, the files of the packages are deleted.
        """
        with all_or_none(self._folder) as files:
            files += chain.from_iterable(package.files for package in packages)
            document = head()
            entries = [package.entry for package in packages]
            parts = self._writer.write_document(f"{own}.xml", document, entries)
        files = [f"{own}.xml", *parts, *files]
        kind = document.capability
        begin, end = document.at or document.from_, document.completed or document.until
        assert kind is not None
        assert begin is not None
        assert end is not None
        return FinishedDocument(
            kind,
            to_microseconds(begin),
            to_microseconds(end),
            entries=sum(package.count for package in packages),
            size=sum((self._folder / name).stat().st_size for name in files),
            files=tuple(files),
        )

    # Change Dumps

    def prepare(self, journal: Journal) -> None:
        """Rewrite the live dumps, before anything else is written.

        Without earlier packages, the Change Dump begins at the `from` in its file, but no later
        than the open Change List.
        """
        for dump in journal.finished(Capability.RESOURCE_DUMP, archived=False)[-1:]:
            # A crash or full disk may have left another dump, whose packages will be deleted.
            also_as(self._folder / dump.files[0], self._folder / RESOURCE_DUMP)
        self._begin = min(self._announced(), journal.state().closed)
        if self._captured is not None:
            self._write_live(journal.finished(Capability.CHANGE_DUMP, archived=False))
        else:
            rmtree(self.source.captured_folder, ignore_errors=True)

    def _announced(self) -> int:
        """Return the `from` of the live Change Dump file (µs), or `_NEVER`.

        The previous leader may have stopped before it packed the lists that were closed since.
        """
        try:
            text = (self._folder / CHANGE_DUMP).read_bytes()
        except FileNotFoundError:
            return _NEVER
        from_ = read_document(text, source=CHANGE_DUMP).from_
        return _NEVER if from_ is None else to_microseconds(from_)

    def write_change_dumps(self, journal: Journal) -> None:
        """Pack the changes of each Change List closed since the last Change Dump (core §13.1)."""
        written = journal.finished(Capability.CHANGE_DUMP)
        through = written[-1].end if written else self._begin
        closed = journal.finished(Capability.CHANGE_LIST)
        new = [document for document in closed if document.begin >= through]
        self._forget(new[0].begin if new else through)
        for document in new:
            self._write_change_dump(document)
            self._forget(document.end)
        self._retire(journal)
        live = journal.finished(Capability.CHANGE_DUMP, archived=False)
        if live != self._shown:
            self._write_live(live)

    def _forget(self, through: int) -> None:
        """Delete the kept content of changes that have been packed or will never be packed."""
        if self._captured is not None and through != self._forgotten:
            self._captured.forget(from_microseconds(through))
            self._forgotten = through

    def _retire(self, journal: Journal) -> None:
        """Remove packages that no longer belong in the live Change Dump."""
        live = journal.finished(Capability.CHANGE_DUMP, archived=False)
        archives = self._documents.keeps(Capability.CHANGE_DUMP)
        if archives:
            removed = live[:-_LIVE]
        else:
            removed = self.source.retention.expired(live, self.source.clock())
        # The live dump must cover its interval without gaps, even if a list was dropped before it
        # was packed.
        gaps = (n for n in range(len(live) - 1, 0, -1) if live[n].begin > live[n - 1].end)
        removed = live[: max(len(removed), next(gaps, 0))]
        if not removed:
            return
        if archives:
            self.archives.add(journal, removed, lambda journal: journal.archive(removed))
        else:
            self.recorder.run(lambda journal: journal.drop(removed))
        self._begin = max(self._begin, removed[-1].end)

    def _write_live(self, live: list[FinishedDocument]) -> None:
        begin = live[0].begin if live else self._begin
        head = Document(
            Capability.CHANGE_DUMP,
            from_=from_microseconds(begin),
            links=self._documents.archives_link(Capability.CHANGE_DUMP),
        )
        entries = [entry for document in live for entry in self._entries(document.files[0])]
        parts = self._writer.write_document(CHANGE_DUMP, head, entries)
        self.archives.keep_only(f"{Capability.CHANGE_DUMP}-part-", parts)
        self._shown = live
        dump = Resource(
            self._documents.uri(CHANGE_DUMP),
            capability=Capability.CHANGE_DUMP,
            from_=from_microseconds(begin),
        )
        through = live[-1].end if live else begin
        notify_version(self._documents, self.recorder, dump, f"{begin}-{through}")

    def _entries(self, name: str) -> Iterator[Resource]:
        document = read_document((self._folder / name).read_bytes(), source=name)
        for listed in document.resources:
            if document.index:
                yield from self._entries(listed.uri.removeprefix(self.source.base_url))
            else:
                yield listed

    def _write_change_dump(self, closed: FinishedDocument) -> None:
        captured, contents = self._captured, self.source.contents
        assert captured is not None
        assert contents is not None
        # The name includes the end, because another list may begin at this instant if the journal
        # was restored from a backup.
        own = f"{stem(Capability.CHANGE_DUMP, closed.begin)}-{compact(closed.end)}"
        from_, until = from_microseconds(closed.begin), from_microseconds(closed.end)
        self.archives.reclaim(own)
        packages = self._writer.change_packages(
            own,
            from_,
            until,
            changes_in(self._folder, closed),
            lambda change: captured.content(change) or contents.get(change.uri),
            check=self.check,
        )
        links = self._documents.archives_link(Capability.CHANGE_DUMP)
        head = Document(Capability.CHANGE_DUMP, from_=from_, until=until, links=links)
        dump = self._write_dump(own, packages, lambda: head)
        self.recorder.run(lambda journal: journal.put(dump))
