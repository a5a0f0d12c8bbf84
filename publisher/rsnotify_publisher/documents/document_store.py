"""Writes all documents of a Source to a folder that any web server can serve."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rsnotify.errors import RsnotifyError, StorageError
from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import Capability, Document, Resource
from rsnotify_publisher.changes import as_listed, check_resource
from rsnotify_publisher.documents.archives import Archives
from rsnotify_publisher.documents.change_lists import ChangeLists
from rsnotify_publisher.documents.dumps import SourceDumps
from rsnotify_publisher.documents.resource_list import write_resource_list
from rsnotify_publisher.files import write_atomically
from rsnotify_publisher.journal import Journal, Recorder
from rsnotify_publisher.source_context import ResourceCallback, SourceContext
from rsnotify_publisher.source_documents import (
    CAPABILITY_LIST,
    DESCRIPTION,
    FRAMEWORK,
    RESOURCE_LIST,
    digest_of,
    stem,
)

logger = logging.getLogger("rsnotify.publisher")
#: Maximum number of notices in the channel's document. Clients that lack more read the documents.
_MAX_SHOWN_NOTICES = 100
#: Minimum number of changes after which a Resource List is outdated. There must also be at least as
#: many changes as the list has entries, so that the cost of writing it per change stays small.
MIN_CHANGES_TO_OUTDATE = 1_000


class WritingStopped(RsnotifyError):
    """A document was not written because the Publisher is closing."""


class DocumentStore:
    """Keeps the folder of documents up to date with the journal, in one process at a time.

    Every method raises OSError if the folder is not writable, StorageError if the journal or the
    Source's resources cannot be read, and WritingStopped after `close` was called.
    """

    def __init__(self, source: SourceContext, recorder: Recorder) -> None:
        self._source = source
        self._folder = source.documents_folder
        self._recorder = recorder
        self._archives = Archives(source, recorder)
        self._dumping = SourceDumps(source, recorder, self._archives, self._check_running)
        self._change_lists = ChangeLists(source, recorder, self._archives)
        self._prepared = False
        #: Whether the Capability List and every document that it must list have been written.
        self.is_complete = False
        #: The datetime of the last change that the Resource List covers; -1 if it has not been
        #: written yet.
        self.listed = -1
        #: The number of entries in the Resource List.
        self._list_entries = 0
        #: The number of changes written before the Resource List.
        self._changes_before_list = 0
        #: The datetime of the last notice in the channel's document.
        self._last_notice = -1
        # A cancelled job may still be running in its thread.
        self._locks = {name: threading.Lock() for name in ("changes", "resources", "dumps")}
        self._offering = threading.Lock()
        self._stopping = threading.Event()

    def close(self) -> None:
        """Stop writing, and wait until no thread is writing."""
        self._stopping.set()
        for lock in self._locks.values():
            with lock:
                pass

    def _check_running(self) -> None:
        if self._stopping.is_set():
            raise WritingStopped

    @contextmanager
    def _working(self, name: str) -> Iterator[Journal]:
        with self._locks[name], self._source.open_journal() as journal:
            self._check_running()
            yield journal

    def _prepare(self, journal: Journal) -> None:
        """Write the archives and live dumps, and remove documents that are no longer offered."""
        self._write_capability_list()  # before any document that it lists is removed
        self._archives.prepare(journal)
        self._change_lists.views.prepare(journal)
        self._dumping.prepare(journal)
        self._prepared = True

    def _has_baseline(self) -> bool:
        return (self._folder / RESOURCE_LIST).exists()

    def _write_capability_list(self) -> None:
        """Write the Capability List with the documents that exist.

        Do nothing until there is a Resource List: a Destination that finds a Capability List
        expects to find the set of resources through it.
        """
        documents = self._source.documents
        with self._offering:
            if self._has_baseline():
                missing = frozenset(
                    name
                    for name in documents.offered.values()
                    if self._dumping.awaits(name) or not (self._folder / name).exists()
                )
                self._write(CAPABILITY_LIST, documents.capability_list(missing))

    def _offer(self) -> bool:
        """Write the Capability List and Source Description once. Return whether it did."""
        if self.is_complete or not self._has_baseline():
            return False
        self._write_capability_list()
        with self._offering:
            self._write(DESCRIPTION, self._source.documents.description())
        if self._source.documents.framework is None:
            (self._folder / FRAMEWORK).unlink(missing_ok=True)
        self.is_complete = True
        return True

    def _write(self, name: str, document: Document) -> None:
        documents = self._source.documents
        body = documents.write(document)
        write_atomically(self._folder / name, [body])
        notice = Resource(documents.uri(name), capability=document.capability)
        documents.notify_version(self._recorder, notice, digest_of(body))

    def rotate(self) -> None:
        """Close all changes up to the rotation's last scheduled time."""
        schedule = self._source.rotation.schedule
        scheduled = None if schedule is None else schedule.last_time(self._source.wall_clock())
        if scheduled is not None:
            self.write_change_lists(scheduled)

    def write_change_lists(self, scheduled: int | None = None) -> None:
        """Update the open Change List and the channel, and close changes as the rotation requires.

        Call this before any other method, because the first call prepares the folder. `scheduled`
        is a scheduled time of the rotation (µs), up to which all changes are closed.
        """
        with self._working("changes") as journal:
            if not self._prepared:
                self._prepare(journal)
            closed = self._change_lists.write(journal, scheduled)
            if closed and self._source.retention.schedule is None:
                self._drop_expired(journal)
            self._write_framework(journal)
            if self._offer():
                self._write_framework(journal)

    def _write_framework(self, journal: Journal) -> None:
        documents = self._source.documents
        until = journal.last_notice()
        if documents.framework is None or until == self._last_notice:
            return
        notices = journal.notices(0)[-_MAX_SHOWN_NOTICES:]
        first = notices[0].datetime if notices else None
        from_ = journal.last_notice_at(to_microseconds(first) - 1) if first else until
        shown = documents.framework.content(notices, from_, until, documents.description_uri)
        write_atomically(self._folder / FRAMEWORK, [documents.write(shown)])
        self._last_notice = until

    def write_capability_list(self) -> None:
        """Rewrite the Capability List after its offer has changed."""
        with self._working("changes"):
            if self._prepared:
                self._write_capability_list()

    def write_resource_list(self) -> None:
        """Write the Resource List if anything has changed since it was last written."""
        with self._working("resources") as journal:
            self._write_resource_list(journal)

    def complete(self) -> None:
        """Write the Resource List unless all documents have been written."""
        with self._working("resources") as journal:
            if not self.is_complete:
                self._write_resource_list(journal)

    def is_outdated(self, last_change: int) -> bool:
        """Return whether the Resource List lacks many of the changes through `last_change` (µs)."""
        missing = self._change_lists.count - self._changes_before_list
        is_older = 0 <= self.listed < last_change
        return is_older and missing >= max(MIN_CHANGES_TO_OUTDATE, self._list_entries)

    def _write_resource_list(self, journal: Journal) -> None:
        if journal.state().last_change != self.listed:
            before = self._change_lists.count
            state = self._recorder.run(Journal.promise)
            self._archives.reclaim(stem(Capability.RESOURCE_LIST, state.reached))
            resources = self._resources(journal)
            document = write_resource_list(
                self._source, state.reached, resources, self._recorder.promise
            )
            self._archives.replace(journal, document)
            self.listed = state.last_change
            self._list_entries, self._changes_before_list = document.entries, before
            self._offer()

    def write_resource_dump(self) -> None:
        """Write the Resource Dump if it is due and anything has changed since the last one."""
        with self._working("dumps") as journal:
            if self._dumping.resource_dump_is_due(journal):
                self._dumping.write_resource_dump(journal, self._resources(journal))
                self._write_capability_list()

    def write_change_dumps(self) -> None:
        with self._working("dumps") as journal:
            self._dumping.write_change_dumps(journal)

    def drop_expired(self) -> None:
        """Drop expired documents from the archives, only at scheduled times if there are any."""
        schedule = self._source.retention.schedule
        if schedule is None or schedule.last_time(self._source.wall_clock()) is not None:
            with self._working("changes") as journal:
                self._drop_expired(journal)

    def _drop_expired(self, journal: Journal) -> None:
        if self._archives.drop_expired(journal):
            self._change_lists.views.link(journal)

    def delete_discarded(self) -> None:
        """Delete files that no document has referred to for `Options.linger` seconds."""
        with self._working("changes") as journal:
            self._archives.delete_discarded(journal, self._source.clock())

    def _resources(self, journal: Journal) -> Iterator[Resource]:
        """Yield the current set, from the journal or from the Source's callback."""
        if self._source.resources is not None:
            resources = self._resources_from_callback(self._source.resources)
        else:
            last = journal.state().last_change
            while self._recorder.run(lambda journal: journal.apply_changes(last)):
                pass  # each transaction is short, so that other writers do not wait long
            resources = journal.resources()
        for resource in resources:
            self._check_running()
            yield resource

    def _resources_from_callback(self, callback: ResourceCallback) -> Iterator[Resource]:
        try:
            for resource in callback():
                yield as_listed(check_resource(resource), None)
        except RsnotifyError:
            raise
        except Exception as error:  # the Source's own code may raise anything
            logger.exception("the callback `resources` failed")
            raise StorageError(f"the callback `resources` failed: {error!r}") from error
