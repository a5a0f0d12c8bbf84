"""The archives of a Source: what is no longer live, as long as the policy keeps it.

Whoever reads a live document first finds in its archive all that came before it, because
what leaves the live document stands in the archive before it leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rsnotify.format.vocabulary import Capability
from rsnotify_publisher.documents.notifications import (
    NO_NOTIFICATIONS,
    NotificationBuilder,
    Notifications,
)
from rsnotify_publisher.documents.paging import Pager
from rsnotify_publisher.files import sweep
from rsnotify_publisher.journal import FinishedDocument, Journal, Recorder
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import ARCHIVES, PARTS, compact, is_final

_BASELINES = (Capability.RESOURCE_LIST, Capability.RESOURCE_DUMP)


class Archives:
    """Keeps the archives of one Source, and removes what they no longer hold.

    Args:
        source: Whose archives they are.
        recorder: Makes durable what stands where.
    """

    def __init__(self, source: SourceContext, recorder: Recorder) -> None:
        self._source = source
        self._documents = source.documents
        self._folder = source.documents_folder
        self._recorder = recorder
        self._retention = source.retention
        self._pager = Pager(source.documents, source.documents_folder, source.options)
        self._telling = NotificationBuilder(source.documents)
        # Several jobs may have something to archive at the same time.
        self._lock = threading.Lock()

    def prepare(self, journal: Journal) -> None:
        """Write the archives, and part with what a crash or former options have left.

        To be called before anything else is written.
        """
        with self._lock:
            sweep(self._folder)
            for kind, name in ARCHIVES.items():
                if self._documents.keeps(kind):
                    self._write(kind, journal.finished(kind, archived=True))
                else:
                    (self._folder / name).unlink(missing_ok=True)
            former = [kind for kind in ARCHIVES if kind not in self._documents.offered]
            for kind in former:
                (self._folder / f"{kind}.xml").unlink(missing_ok=True)
            dropped = [document for kind in former for document in journal.finished(kind)]
            self._note(lambda journal: journal.drop(dropped))
            self._let_linger(journal)

    def _let_linger(self, journal: Journal) -> None:
        """Let files linger that no document refers to any more."""
        # Who writes these parts anew compares them with what there is; see `keep_only`.
        current = [f"{PARTS}{kind}-archive-" for kind in ARCHIVES if self._documents.keeps(kind)]
        if Capability.CHANGE_DUMP in self._documents.offered:
            current.append(f"{PARTS}{Capability.CHANGE_DUMP}-part-")
        found = {PARTS + path.name for path in (self._folder / PARTS).glob("*")}
        lost = [name for name in found - journal.files() if is_final(name)]
        lost = [name for name in lost if not name.startswith(tuple(current))]
        self._note(lambda journal: journal.discard(lost))

    def reclaim(self, stem: str) -> None:
        """Let what a crash left under names that begin so linger no longer.

        To be called before they are written anew, which may take longer than files linger.
        """
        with self._lock:  # or `retire` might remove what is written from now on
            self._note(lambda journal: journal.reclaim(stem))

    def keep_only(self, stem: str, parts: Sequence[str]) -> None:
        """Of all parts whose names begin so, let those linger that are not current any more.

        Args:
            stem: Without the folder.
            parts: The names of those that are, all written.
        """
        found = {PARTS + path.name for path in (self._folder / PARTS).glob(f"{stem}*")}
        if not found:
            return

        def note(journal: Journal) -> None:
            journal.removed(parts)
            journal.discard(found.difference(parts))

        self._note(note)

    def add(
        self,
        journal: Journal,
        documents: Sequence[FinishedDocument],
        note: Callable[[Journal], None],
    ) -> None:
        """Put documents of one kind into its archive, if there is one.

        Args:
            journal: Read only.
            documents: At least one; newer than what the archive holds.
            note: Enters in the journal that they stand there; run when they do.
        """
        kind = documents[0].kind
        with self._lock:
            told = NO_NOTIFICATIONS
            if self._documents.keeps(kind):
                self._write(kind, [*journal.finished(kind, archived=True), *documents])
                told = self._telling.archive(kind)
            # Only now may a reader of the journal see the live document without them.
            self._note(note, told)

    def replace(self, journal: Journal, document: FinishedDocument) -> None:
        """Note a new live document, in place of the former ones of its kind.

        These go into the archive, if there is one and they have a file of their own; or else
        their files linger.
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
            journal.add_notices(self._telling.live(document, first=not former))

        if kept:
            self.add(journal, kept, note)
        else:
            self._note(note)

    def drop_expired(self, journal: Journal, now: int) -> None:
        """Drop from the archives what the retention policy does not keep.

        Raises:
            OSError: The folder cannot be written.
            StorageError: The journal cannot be used.
        """
        with self._lock:
            for kind in ARCHIVES:
                self._drop_expired(journal, kind, now)

    def delete_discarded(self, journal: Journal, now: int) -> None:
        """Delete the files that have lingered long enough; errors as in `drop_expired`."""
        with self._lock:
            linger = round(self._source.options.linger * 1e6)
            if gone := journal.discarded(now - linger):
                for name in gone:
                    (self._folder / name).unlink(missing_ok=True)
                self._note(lambda journal: journal.removed(gone))

    def _drop_expired(self, journal: Journal, kind: str, now: int) -> None:
        documents = journal.finished(kind, archived=True)
        expired = documents
        if self._documents.keeps(kind):
            expired = self._retention.expired(documents, now)
        if kind == Capability.CHANGE_LIST:
            needed = self._needed_after(journal)
            expired = [document for document in expired if document.end <= needed]
        if expired:
            told = NO_NOTIFICATIONS
            if self._documents.keeps(kind):
                self._write(kind, documents[len(expired) :])
                told = self._telling.archive(kind)
            # Only now do their files begin to linger, as no document refers to them.
            self._note(lambda journal: journal.drop(expired), told)

    def _needed_after(self, journal: Journal) -> int:
        """Return after which instant changes are needed by those that begin with a baseline."""
        live = [v.begin for kind in _BASELINES for v in journal.finished(kind, archived=False)]
        return min(live, default=journal.state().closed)

    def _write(self, kind: str, documents: list[FinishedDocument]) -> None:
        stem = f"{PARTS}{kind}-archive-"
        if documents:
            stem += f"{compact(documents[0].begin)}-{compact(documents[-1].end)}"
        parts = self._pager.write(
            ARCHIVES[kind],
            stem,
            self._documents.archive_part(kind),
            (self._documents.entry(self._documents.archived(document)) for document in documents),
            lambda parts: self._documents.archive(kind, parts),
        )
        self.keep_only(f"{kind}-archive-", parts)

    def _note(
        self, operation: Callable[[Journal], None], told: Notifications = NO_NOTIFICATIONS
    ) -> None:
        def note(journal: Journal) -> None:
            operation(journal)
            journal.add_notices(told)

        self._recorder.submit(note).result()
