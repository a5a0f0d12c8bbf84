"""Decides when dumps are written, and what they hold.

The Resource Dump is written by its schedule, if something changed. Each closed Change List gets
a closed Change Dump, too; the live Change Dump lists the packages of the newest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from shutil import rmtree

from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify.format.model import Capability, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher.changes import CheckedContents
from rsnotify_publisher.documents.archives import Archives
from rsnotify_publisher.documents.change_list_files import changes_in, still_listed
from rsnotify_publisher.documents.document_writer import notify_version
from rsnotify_publisher.documents.dump_writer import DumpWriter, WrittenPackage
from rsnotify_publisher.files import all_or_none, also_as
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

# How many of the newest Change Dumps stay in the live one if there is an archive.
_LIVE = 10
# Later than any instant (µs).
_NEVER = 2**63


@dataclass(eq=False)
class SourceDumps:
    """Keeps the dumps of one Source.

    While it writes, it calls `check` often, which raises an exception to stop.
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
            max_resources=source.options.max_entries,
            max_entries=source.options.max_entries,
            profile=source.documents.profile,
        )
        self._captured = source.captured
        self._begin = 0
        self._forgotten = -1
        self._shown: list[FinishedDocument] = []

    def awaits(self, name: str) -> bool:
        """Return whether a document is a Resource Dump that was never written, or its archive."""
        dump = name in (RESOURCE_DUMP, ARCHIVES[Capability.RESOURCE_DUMP])
        return dump and not (self._folder / RESOURCE_DUMP).exists()

    # The Resource Dump

    def resource_dump_is_due(self, journal: Journal) -> bool:
        """Return whether it is time for a Resource Dump, and something changed since the last."""
        schedule = self.source.resource_dump_schedule
        live = journal.finished(Capability.RESOURCE_DUMP, archived=False)
        if schedule is None or not live:
            return schedule is not None
        at, now = live[-1].begin, self.source.clock()
        if journal.state().last_change <= at:
            return False
        if schedule.cron is None:
            return now >= at + schedule.seconds * 1e6
        scheduled = schedule.last_time(now)
        return scheduled is not None and scheduled > at

    def write_resource_dump(self, journal: Journal, resources: Iterable[Resource]) -> None:
        """Write the Resource Dump while the set changes (core §11.1).

        Raises:
            StorageError: A resource is in the set, but its content is not available.
        """
        assert self.source.contents is not None
        at = self.recorder.promise()
        own = stem(Capability.RESOURCE_DUMP, at)
        contents = CheckedContents(
            self.source.contents,
            lambda uris: still_listed(uris, at, journal, self._folder),
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
        with all_or_none(self._folder) as files:
            files += _names(packages)
            contents.check()
            end = self.recorder.promise()
            parts = self._writer.write_resource_dump(
                f"{own}.xml",
                from_microseconds(at),
                from_microseconds(end),
                [package.entry for package in packages],
                links=self._documents.archives_link(Capability.RESOURCE_DUMP),
            )
        also_as(self._folder / f"{own}.xml", self._folder / RESOURCE_DUMP)
        files = [f"{own}.xml", *parts, *files]
        dump = self._finished(Capability.RESOURCE_DUMP, at, end, files, packages)
        self.archives.replace(journal, dump)

    def _finished(
        self, kind: str, begin: int, end: int, files: list[str], packages: list[WrittenPackage]
    ) -> FinishedDocument:
        count = sum(package.count for package in packages)
        size = sum((self._folder / name).stat().st_size for name in files)
        return FinishedDocument(kind, begin, end, count, size, tuple(files))

    # Change Dumps

    def prepare(self, journal: Journal) -> None:
        """Rewrite the live dumps; the Change Dump begins with what is open now."""
        for dump in journal.finished(Capability.RESOURCE_DUMP, archived=False)[-1:]:
            # A crash or a full disk may have left another one, whose packages will be deleted.
            also_as(self._folder / dump.files[0], self._folder / RESOURCE_DUMP)
        self._begin = min(self._announced(), journal.state().closed)
        if self._captured is not None:
            self._write_live(journal.finished(Capability.CHANGE_DUMP, archived=False))
        else:
            rmtree(self.source.captured_folder, ignore_errors=True)

    def _announced(self) -> int:
        """Return the instant (µs) from which the live Change Dump claims to hold changes.

        The former leader may have ended before it packed what was closed since.
        """
        try:
            text = (self._folder / CHANGE_DUMP).read_bytes()
        except FileNotFoundError:
            return _NEVER
        from_ = read_document(text, source=CHANGE_DUMP).from_
        return _NEVER if from_ is None else to_microseconds(from_)

    def write_change_dumps(self, journal: Journal) -> None:
        """Pack the changes of each Change List that was closed since (core §13.1)."""
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
        """Delete the content of changes that are packed, or will never be packed."""
        if self._captured is not None and through != self._forgotten:
            self._captured.forget(from_microseconds(through))
            self._forgotten = through

    def _retire(self, journal: Journal) -> None:
        """Remove from the live Change Dump what belongs there no longer."""
        live = journal.finished(Capability.CHANGE_DUMP, archived=False)
        archives = self._documents.keeps(Capability.CHANGE_DUMP)
        if archives:
            removed = live[:-_LIVE]
        else:
            removed = self.source.retention.expired(live, self.source.clock())
        # It covers an interval without a gap, even if a list was dropped before it was packed.
        gaps = (n for n in range(len(live) - 1, 0, -1) if live[n].begin > live[n - 1].end)
        removed = live[: max(len(removed), next(gaps, 0))]
        if removed and archives:
            self.archives.add(journal, removed, lambda journal: journal.archive(removed))
        elif removed:
            self.recorder.run(lambda journal: journal.drop(removed))
        if removed:
            self._begin = max(self._begin, removed[-1].end)

    def _write_live(self, live: list[FinishedDocument]) -> None:
        begin = live[0].begin if live else self._begin
        parts = self._writer.write_change_dump(
            CHANGE_DUMP,
            from_microseconds(begin),
            None,
            [entry for document in live for entry in self._entries(document.files[0])],
            links=self._documents.archives_link(Capability.CHANGE_DUMP),
        )
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
        for entry in document.resources:
            if document.index:
                yield from self._entries(entry.uri.removeprefix(self.source.base_url))
            else:
                yield entry

    def _write_change_dump(self, closed: FinishedDocument) -> None:
        captured, contents = self._captured, self.source.contents
        assert captured is not None
        assert contents is not None
        # If the journal was restored from a backup, another list may begin at this instant.
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
        with all_or_none(self._folder) as files:
            files += _names(packages)
            parts = self._writer.write_change_dump(
                f"{own}.xml",
                from_,
                until,
                [package.entry for package in packages],
                links=self._documents.archives_link(Capability.CHANGE_DUMP),
            )
        files = [f"{own}.xml", *parts, *files]
        dump = self._finished(Capability.CHANGE_DUMP, closed.begin, closed.end, files, packages)
        self.recorder.run(lambda journal: journal.put(dump))


def _names(packages: list[WrittenPackage]) -> Iterator[str]:
    """Yield the files of packages, which are deleted if no document comes to list them."""
    return chain.from_iterable(package.files for package in packages)
