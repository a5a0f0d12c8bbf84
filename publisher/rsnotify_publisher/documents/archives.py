"""The archives of a Source: documents that are no longer live but kept by the retention policy.

A document is added to the archive before it leaves the live document. A client that first reads the
live document and then its archive therefore misses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rsnotify.format.model import Capability, ChangeType, Resource
from rsnotify_publisher.documents.document_writer import notify, write_long_document
from rsnotify_publisher.files import remove, sweep
from rsnotify_publisher.journal import FinishedDocument, Journal, Recorder
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import ARCHIVES, PARTS, compact, is_final

_BASELINES = (Capability.RESOURCE_LIST, Capability.RESOURCE_DUMP)


class Archives:
    """Writes the archives of one Source, and removes documents that were dropped from them."""

    def __init__(self, source: SourceContext, recorder: Recorder) -> None:
        self._source = source
        self._documents = source.documents
        self._folder = source.documents_folder
        self._recorder = recorder
        # Several jobs may archive documents at the same time.
        self._lock = threading.Lock()

    def prepare(self, journal: Journal) -> None:
        """Write the archives, and discard files left over from a crash or from former options.

        Call this before anything else is written.
        """
        with self._lock:
            sweep(self._folder)
            for kind, name in ARCHIVES.items():
                if self._documents.keeps(kind):
                    self._write(kind, journal.finished(kind, archived=True))
                else:
                    remove(self._folder, [name])
            former = [kind for kind in ARCHIVES if kind not in self._documents.offered]
            remove(self._folder, [f"{kind}.xml" for kind in former])
            dropped = [document for kind in former for document in journal.finished(kind)]
            self._recorder.run(lambda journal: journal.drop(dropped))
            self._discard_lost(journal)

    def _discard_lost(self, journal: Journal) -> None:
        """Discard files that no document refers to."""
        # The writers of these parts discard outdated ones themselves; see `keep_only`.
        current = [f"{PARTS}{kind}-archive-" for kind in ARCHIVES if self._documents.keeps(kind)]
        if Capability.CHANGE_DUMP in self._documents.offered:
            current.append(f"{PARTS}{Capability.CHANGE_DUMP}-part-")
        found = {PARTS + path.name for path in (self._folder / PARTS).glob("*")}
        lost = [name for name in found - journal.files() if is_final(name)]
        lost = [name for name in lost if not name.startswith(tuple(current))]
        self._recorder.run(lambda journal: journal.discard(lost))

    def reclaim(self, stem: str) -> None:
        """Keep the discarded files whose names begin with `stem`, since they will be rewritten.

        Call this before writing, because writing may take longer than `Options.linger`.
        """
        with self._lock:  # otherwise `delete_discarded` might delete the rewritten files
            self._recorder.run(lambda journal: journal.reclaim(stem))

    def keep_only(self, stem: str, parts: Sequence[str]) -> None:
        """Discard all parts whose names begin with `stem`, except the current ones."""
        found = {PARTS + path.name for path in (self._folder / PARTS).glob(f"{stem}*")}
        if not found:
            return

        def note(journal: Journal) -> None:
            journal.keep(parts)
            journal.discard(found.difference(parts))

        self._recorder.run(note)

    def add(
        self,
        journal: Journal,
        documents: Sequence[FinishedDocument],
        note: Callable[[Journal], None],
    ) -> None:
        """Add documents of one kind to its archive, if there is one, then run `note`.

        The documents must be newer than all in the archive. `note` records in the journal that they
        have been archived.
        """
        kind = documents[0].kind
        with self._lock:
            # Only after this may a reader of the journal see the live document without them.
            self._rewrite(kind, [*journal.finished(kind, archived=True), *documents], note)

    def replace(self, journal: Journal, document: FinishedDocument) -> None:
        """Insert a new live document in place of the former documents of its kind.

        The former documents move to the archive if there is one and they have separate files.
        Otherwise their files are discarded.
        """
        former = [
            other
            for other in journal.finished(document.kind, archived=False)
            if other.begin != document.begin
        ]
        kept = [other for other in former if self._documents.is_own(other)]

        def note(journal: Journal) -> None:
            journal.put(document)
            journal.archive(kept)
            journal.drop(other for other in former if other not in kept)
            notice = self._documents.live_notice(document, is_first=not former)
            notify(self._documents, journal, notice)

        if kept:
            self.add(journal, kept, note)
        else:
            self._recorder.run(note)

    def drop_expired(self, journal: Journal) -> bool:
        """Drop expired documents from the archives, and return whether there were any."""
        with self._lock:
            dropped = [self._drop_expired(journal, kind) for kind in ARCHIVES]
        return any(dropped)

    def delete_discarded(self, journal: Journal, now: int) -> None:
        with self._lock:
            linger = round(self._source.options.linger * 1e6)
            if gone := journal.discarded(now - linger):
                remove(self._folder, gone)
                self._recorder.run(lambda journal: journal.keep(gone))

    def _drop_expired(self, journal: Journal, kind: str) -> bool:
        documents = journal.finished(kind, archived=True)
        expired = documents
        if self._documents.keeps(kind):
            expired = self._source.retention.expired(documents, self._source.clock())
        if kind == Capability.CHANGE_LIST:
            needed = self._needed_after(journal)
            expired = [document for document in expired if document.end <= needed]
        if expired:
            # Their files are not discarded until no document refers to them.
            kept = documents[len(expired) :]
            self._rewrite(kind, kept, lambda journal: journal.drop(expired))
        return bool(expired)

    def _needed_after(self, journal: Journal) -> int:
        """Return the instant after which Destinations that begin with a baseline need changes."""
        live = [v.begin for kind in _BASELINES for v in journal.finished(kind, archived=False)]
        return min(live, default=journal.state().closed)

    def _rewrite(
        self, kind: str, documents: list[FinishedDocument], note: Callable[[Journal], None]
    ) -> None:
        """Write the archive of a kind, if there is one, then run `note` with the journal."""
        if not self._documents.keeps(kind):
            self._recorder.run(note)
            return
        self._write(kind, documents)
        uri, capability = self._documents.uri(ARCHIVES[kind]), f"{kind}-archive"
        notice = Resource(uri, capability=capability, change=ChangeType.UPDATED)

        def note_all(journal: Journal) -> None:
            note(journal)
            notify(self._documents, journal, notice)

        self._recorder.run(note_all)

    def _write(self, kind: str, documents: list[FinishedDocument]) -> None:
        stem = f"{PARTS}{kind}-archive-"
        if documents:
            stem += f"{compact(documents[0].begin)}-{compact(documents[-1].end)}"
        parts = write_long_document(
            self._source,
            ARCHIVES[kind],
            stem,
            self._documents.archive_part(kind),
            (self._documents.entry(self._documents.archived(document)) for document in documents),
            lambda parts: self._documents.archive(kind, parts),
        )
        self.keep_only(f"{kind}-archive-", parts)
