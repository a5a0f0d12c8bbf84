"""Decides when a Source's dumps are written and what they contain (core §11.1, §13.1).

The Resource Dump is written on its schedule, if anything changed. Each closed Change List also gets
a closed Change Dump. The live Change Dump lists the packages of the newest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from shutil import rmtree

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher.documents.archives import Archives
from rsnotify_publisher.documents.dump_packages import DumpWriter, WrittenPackage
from rsnotify_publisher.documents.open_change_list import changes_in
from rsnotify_publisher.files import all_or_none, also_as
from rsnotify_publisher.journal import FinishedDocument, Journal, Recorder
from rsnotify_publisher.source_contents import SourceContents
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import (
    ARCHIVES,
    CAPABILITY_LIST,
    CHANGE_DUMP,
    RESOURCE_DUMP,
    compact,
    stem,
)

#: Number of Change Dumps whose packages stay in the live one if there is an archive.
_MAX_LIVE = 10
#: Later than any instant (µs).
_NEVER = 2**63
#: Number of missing contents after which they are checked and forgotten.
_MAX_MISSING = 1_000


@dataclass(eq=False)
class SourceDumps:
    """Writes and replaces the dumps of one Source.

    `check` is called often while a dump is written, and raises an exception to stop.
    """

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
            self.check,
            max_entries=source.options.max_entries,
            profile=source.documents.profile,
        )
        self._captured = source.captured
        self._begin = 0
        self._forgotten = -1
        self._shown: list[FinishedDocument] = []

    def awaits(self, name: str) -> bool:
        """Return whether `name` is the Resource Dump or its archive, but no dump exists yet."""
        is_dump = name in (RESOURCE_DUMP, ARCHIVES[Capability.RESOURCE_DUMP])
        return is_dump and not (self._folder / RESOURCE_DUMP).exists()

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
            # The clock was set back. The journal's datetimes are ahead of it, but the file's
            # modification time may not be.
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
        contents = CheckedContents(self.source.contents, at, journal, self._folder)
        self.archives.reclaim(own)
        packages = self._writer.resource_packages(
            own,
            from_microseconds(at),
            resources,
            lambda resource: contents.get(resource.uri),
            now=lambda: from_microseconds(self.recorder.promise()),
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
        """Write the document of a dump; `head` returns it without its entries.

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

        Without earlier packages, the Change Dump begins at the `from` in its file, but not later
        than the open Change List.
        """
        for dump in journal.finished(Capability.RESOURCE_DUMP, archived=False)[-1:]:
            # A crash or full disk may have left another dump, whose packages will be deleted.
            also_as(self._folder / dump.files[0], self._folder / RESOURCE_DUMP)
        self._begin = min(self._published_begin(), journal.state().closed)
        if self._captured is not None:
            self._write_live(journal.finished(Capability.CHANGE_DUMP, archived=False))
        else:
            rmtree(self.source.captured_folder, ignore_errors=True)

    def _published_begin(self) -> int:
        """Return the `from` in the file of the live Change Dump (µs), or `_NEVER`.

        The previous leader may have stopped before it packed the lists that were closed since then.
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
        """Delete the captured content of changes that are packed, or that will never be packed."""
        if self._captured is not None and through != self._forgotten:
            self._captured.forget(from_microseconds(through))
            self._forgotten = through

    def _retire(self, journal: Journal) -> None:
        """Remove packages that no longer belong in the live Change Dump."""
        live = journal.finished(Capability.CHANGE_DUMP, archived=False)
        archives = self._documents.has_archive(Capability.CHANGE_DUMP)
        if archives:
            removed = live[:-_MAX_LIVE]
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
        self._documents.notify_version(self.recorder, dump, f"{begin}-{through}")

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
        )
        links = self._documents.archives_link(Capability.CHANGE_DUMP)
        head = Document(Capability.CHANGE_DUMP, from_=from_, until=until, links=links)
        dump = self._write_dump(own, packages, lambda: head)
        self.recorder.run(lambda journal: journal.put(dump))


@dataclass(eq=False)
class CheckedContents:
    """Reads contents, and detects missing ones whose resource was not deleted since `at` (µs)."""

    contents: SourceContents
    at: int
    journal: Journal
    folder: Path
    missing: list[str] = field(default_factory=list)

    def get(self, uri: str) -> bytes | Path | None:
        """Return the current content of a resource, and remember the resource if it is gone."""
        found = self.contents.get(uri)
        if found is None:
            self.missing.append(uri)
            if len(self.missing) > _MAX_MISSING:
                self.check()
        return found

    def check(self) -> None:
        """Raise StorageError if the content of a resource is missing but no change deleted it."""
        for uri in self._still_listed():
            if self.contents.get(uri) is None:
                raise StorageError(
                    f"{uri} was not deleted, but `content` returned nothing for it; if it no "
                    "longer exists, record its deletion"
                )
        self.missing.clear()

    def _still_listed(self) -> list[str]:
        """Return the missing resources that were in the set at `at` and have not been deleted.

        If a callback returns the set, only the changes show which resources were deleted.
        """
        if not self.missing:
            return []
        if self.journal.state().tracked:
            return [uri for uri in self.missing if self.journal.resource(uri) is not None]
        deleted = self._deleted()
        return [uri for uri in self.missing if uri not in deleted]

    def _deleted(self) -> set[str]:
        """Return the URIs of resources that were deleted since `at` and not created again."""
        with self.journal.snapshot() as state:
            closed = self.journal.finished(Capability.CHANGE_LIST)
            opened = self.journal.changes(max(self.at, state.closed))
        lists = [changes_in(self.folder, each) for each in closed if each.end > self.at]
        deleted: set[str] = set()
        for change in chain(*lists, opened):
            if change.change is ChangeType.DELETED:
                deleted.add(change.uri)
            else:
                deleted.discard(change.uri)
        return deleted
