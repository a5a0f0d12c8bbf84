"""The documents as files in a folder, which any web server can serve.

Whoever reads the open Change List first finds in the archive all that came before it,
because a closed list is published in this order: the list, the archive, the open list.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from rsnotify.model import Resource
from rsnotify.writing import write_document
from rsnotify_publisher.documents import (
    ARCHIVE,
    CAPABILITY_LIST,
    CHANGE_LIST,
    CHANNEL,
    DESCRIPTION,
    closed_list_name,
)
from rsnotify_publisher.files import also_as, write_atomically
from rsnotify_publisher.journal import Journal, Span
from rsnotify_publisher.openlist import OpenList
from rsnotify_publisher.recorder import Recorder
from rsnotify_publisher.resourcelist import ResourceListWriter
from rsnotify_publisher.source import Source


class Stopped(Exception):
    """The writing of a long document was broken off, because the Publisher closes."""


class Library:
    """Keeps the folder of documents in step with the journal; one process does so at a time.

    Args:
        source: Whose documents they are.
        recorder: Makes promises and closed lists durable.
    """

    def __init__(self, source: Source, recorder: Recorder) -> None:
        options = source.options
        self._folder = source.documents_folder
        self._documents = source.documents
        self._open_journal = source.open_journal
        self._recorder = recorder
        self._options = options
        self._open = OpenList(source.documents)
        self._framed = False
        self._published = ""
        self._listed = -1
        # A job that was cancelled may still be at work in its thread.
        self._change_lists = threading.Lock()
        self._resource_lists = threading.Lock()
        self._stopping = threading.Event()
        self._resource_list = ResourceListWriter(
            source.documents,
            source.documents_folder,
            max_entries=options.max_entries,
            max_bytes=options.max_bytes,
        )

    def close(self) -> None:
        """Break off what takes long, and return when nothing is being written any more."""
        self._stopping.set()
        with self._change_lists, self._resource_lists:
            pass

    def _write_frame(self, journal: Journal) -> None:
        """Write what changes only with the configuration, and the archive."""
        frame = {
            DESCRIPTION: self._documents.description(),
            CAPABILITY_LIST: self._documents.capability_list(),
        }
        for name, document in frame.items():
            write_atomically(self._folder / name, [write_document(document)])
        self._write_archive(journal.closed_lists())
        self._framed = True

    def write_change_lists(self) -> None:
        """Bring the open Change List and the channel up to date; close what is too long.

        The first time, write what changes only with the configuration, too.

        Raises:
            OSError: The folder cannot be written.
            StorageError: The journal cannot be used.
        """
        with self._change_lists, self._open_journal() as journal:
            if not self._framed:
                self._write_frame(journal)
            self._open.refresh(journal)
            while span := self._to_close():
                self._close(journal, span)
                self._open.refresh(journal)
            self._publish_open_list()

    def _publish_open_list(self) -> None:
        version = self._open.version
        if version != self._published:
            write_atomically(self._folder / CHANGE_LIST, self._open.chunks())
            also_as(self._folder / CHANGE_LIST, self._folder / CHANNEL)
            self._published = version

    def _to_close(self) -> Span | None:
        return self._open.to_close(self._options.max_open, self._options.max_bytes // 2)

    def _close(self, journal: Journal, span: Span) -> None:
        keep = self._options.archived_lists
        write_atomically(self._folder / closed_list_name(span), self._open.closed(span))
        self._write_archive([*journal.closed_lists(), span][-keep:])
        # Only now may a reader of the journal see the open list begin later.
        noted = self._recorder.submit(lambda journal: journal.close_list(span, keep=keep))
        for forgotten in noted.result():
            (self._folder / closed_list_name(forgotten)).unlink(missing_ok=True)

    def _write_archive(self, closed: list[Span]) -> None:
        archive = self._documents.archive(closed)
        write_atomically(self._folder / ARCHIVE, [write_document(archive)])

    def write_resource_list(self) -> None:
        """Write the Resource List, if anything changed since it was last written.

        Raises:
            OSError: The folder cannot be written.
            StorageError: The journal cannot be used.
            Stopped: `close` was called meanwhile.
        """
        with self._resource_lists, self._open_journal() as journal:
            if journal.state().last_change == self._listed:
                return
            # The promise makes the snapshot's instant a recent one.
            self._recorder.submit(Journal.promise).result()
            with journal.snapshot() as state:
                self._resource_list.write(state.reached, self._until_stopped(journal))
            self._listed = state.last_change

    def _until_stopped(self, journal: Journal) -> Iterator[Resource]:
        for resource in journal.resources():
            if self._stopping.is_set():
                raise Stopped
            yield resource
