"""The archives of a Source: documents that are no longer live but that the retention policy keeps.

A document is added to the archive before it is removed from the live document. A client that reads
the live document first, and then the archive, therefore misses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rsnotify.format.model import Capability, ChangeType, Resource
from rsnotify_publisher.documents.resource_list import write_long_document
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
                if self._documents.has_archive(kind):
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
        current = [
            f"{PARTS}{kind}-archive-" for kind in ARCHIVES if self._documents.has_archive(kind)
        ]
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
        with self._lock:  # otherwise `delete_discarded` could delete the rewritten files
            self._recorder.run(lambda journal: journal.reclaim(stem))

    def keep_only(self, stem: str, parts: Sequence[str]) -> None:
        """Discard all parts whose names begin with `stem`, except the current ones."""
        found = {PARTS + path.name for path in (self._folder / PARTS).glob(f"{stem}*")}
        if not found:
            return

        def update_journal(journal: Journal) -> None:
            journal.keep(parts)
            journal.discard(found.difference(parts))

        self._recorder.run(update_journal)

    def add(
        self,
        journal: Journal,
        documents: Sequence[FinishedDocument],
        update_journal: Callable[[Journal], None],
    ) -> None:
        """Add documents of one kind to their archive, if there is one, then update the journal.

        The documents must be newer than all in the archive. `update_journal` records that they have
        been archived.
        """
        kind = documents[0].kind
        with self._lock:
            # The journal is updated last: until then, readers find them in the live document.
            archived = journal.finished(kind, archived=True)
            self._rewrite(kind, [*archived, *documents], update_journal)

    def replace(self, journal: Journal, document: FinishedDocument) -> None:
        """Replace the live documents of a kind with a new one.

        The former documents move to the archive if there is one and they have separate files.
        Otherwise their files are discarded.
        """
        former = [
            other
            for other in journal.finished(document.kind, archived=False)
            if other.begin != document.begin
        ]
        kept = [other for other in former if self._documents.can_be_archived(other)]

        def update_journal(journal: Journal) -> None:
            journal.put(document)
            journal.archive(kept)
            journal.drop(other for other in former if other not in kept)
            notice = self._documents.live_notice(document, is_first=not former)
            self._documents.notify(journal, notice)

        if kept:
            self.add(journal, kept, update_journal)
        else:
            self._recorder.run(update_journal)

    def drop_expired(self, journal: Journal) -> bool:
        """Drop expired documents from the archives. Return whether any were dropped."""
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
        if self._documents.has_archive(kind):
            expired = self._source.retention.expired(documents, self._source.clock())
        if kind == Capability.CHANGE_LIST:
            oldest_needed = self._oldest_needed_change(journal)
            expired = [document for document in expired if document.end <= oldest_needed]
        if expired:
            # Their files are discarded only when no document refers to them any longer.
            kept = documents[len(expired) :]
            self._rewrite(kind, kept, lambda journal: journal.drop(expired))
        return bool(expired)

    def _oldest_needed_change(self, journal: Journal) -> int:
        """Return the instant after which a Destination needs changes if it starts now."""
        live = (journal.finished(kind, archived=False) for kind in _BASELINES)
        begins = [document.begin for documents in live for document in documents]
        return min(begins, default=journal.state().closed)

    def _rewrite(
        self,
        kind: str,
        documents: list[FinishedDocument],
        update_journal: Callable[[Journal], None],
    ) -> None:
        """Write the archive of a kind, if there is one, then update the journal."""
        if not self._documents.has_archive(kind):
            self._recorder.run(update_journal)
            return
        self._write(kind, documents)
        uri, capability = self._documents.uri(ARCHIVES[kind]), f"{kind}-archive"
        notice = Resource(uri, capability=capability, change=ChangeType.UPDATED)

        def update_and_notify(journal: Journal) -> None:
            update_journal(journal)
            self._documents.notify(journal, notice)

        self._recorder.run(update_and_notify)

    def _write(self, kind: str, documents: list[FinishedDocument]) -> None:
        stem = f"{PARTS}{kind}-archive-"
        if documents:
            stem += f"{compact(documents[0].begin)}-{compact(documents[-1].end)}"
        parts = write_long_document(
            self._source,
            ARCHIVES[kind],
            stem,
            self._documents.archive_part(kind),
            (
                self._documents.entry(self._documents.archive_entry(document))
                for document in documents
            ),
            lambda parts: self._documents.archive(kind, parts),
        )
        self.keep_only(f"{kind}-archive-", parts)
