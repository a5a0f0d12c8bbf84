"""Writes the Change Lists: updates the open list, closes changes when due, and archives them."""

from __future__ import annotations

from rsnotify.format.model import Capability
from rsnotify_publisher.documents.archives import Archives
from rsnotify_publisher.documents.open_change_list import ListToClose, OpenChangeList
from rsnotify_publisher.documents.view_documents import ViewDocuments
from rsnotify_publisher.files import also_as, write_atomically
from rsnotify_publisher.journal import FinishedDocument, Journal, Recorder
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import CHANGE_LIST, CHANNEL, OPEN_PART, compact, stem

#: Maximum number of changes read at once while catching up with the journal.
_MAX_BATCH = 20_000


class ChangeLists:
    """Keeps the Change Lists up to date with the journal."""

    def __init__(self, source: SourceContext, recorder: Recorder, archives: Archives) -> None:
        self._captured = source.captured
        self._clock = source.clock
        self._documents = source.documents
        self._folder = source.documents_folder
        self._rotation = source.rotation
        self._recorder = recorder
        self._archives = archives
        self._open = OpenChangeList(source.documents)
        self.views = ViewDocuments(source, recorder)
        #: The number of changes written since the start.
        self.count = 0
        self._published = ""

    def write(self, journal: Journal, scheduled: int | None = None) -> bool:
        """Update the open Change List and the channel. Return whether any changes were closed.

        The rotation decides what to close. Changes through `scheduled` (µs) are closed in any case.
        Changes that arrive during the call wait for the next one. Otherwise this would never return
        during a flood of changes.
        """
        closed = False
        last = journal.state().last_change
        while True:
            is_behind = self._open.through < last
            changes = self._open.refresh(journal, _MAX_BATCH if is_behind else 0)
            self.count += len(changes)
            self.views.follow(self._open.begin, changes)
            if self._captured is not None:
                # The process that recorded these changes may have ended before it kept their
                # content. This comes before anything that may fail, because `refresh` returns each
                # change only once.
                self._captured.keep(changes)
            if self._close_next(journal, scheduled):
                closed = True
            elif not changes:
                break
        if not self.views.is_linked:
            self.views.link(journal)
        self._publish()
        return closed

    def _close_next(self, journal: Journal, scheduled: int | None) -> bool:
        now = self._clock()
        if parts := self._open.parts_to_archive(self._rotation, now, scheduled):
            self._archive(journal, parts)
            return True
        closing = self._open.next_to_close(self._rotation, now, scheduled)
        if closing is not None:
            self._close(journal, closing)
        return closing is not None

    def _archive(self, journal: Journal, parts: list[FinishedDocument]) -> None:
        """Move closed parts of the open period to the archive."""

        def update_journal(journal: Journal) -> None:
            journal.archive(parts)
            self._documents.notify(journal, self._documents.reopened_notice(parts[-1].end))

        self._archives.add(journal, parts, update_journal)

    def _close(self, journal: Journal, closing: ListToClose) -> None:
        """Publish a closed list: first the list, then the documents that refer to it."""
        # The name includes the end: if a crash prevents the update of the journal, the list is
        # closed again, and may then end at another change.
        own = f"{stem(Capability.CHANGE_LIST, self._open.begin)}-{compact(closing.until)}"
        name = own + self._documents.suffix
        self._archives.reclaim(own)
        size = write_atomically(self._folder / name, self._open.closed(closing))
        document = FinishedDocument(
            Capability.CHANGE_LIST,
            self._open.begin,
            closing.until,
            closing.count,
            size,
            files=(name,),
            archived=closing.archived,
        )
        document = self.views.close(document)

        def update_journal(journal: Journal) -> None:
            journal.close_list(document)
            closed = self._documents.closed_notice(document)
            reopened = self._documents.reopened_notice(document.end)
            self._documents.notify(journal, closed, reopened)

        if closing.archived:
            self._archives.add(journal, [document], update_journal)
            return
        if not (self._folder / OPEN_PART).exists():
            write_atomically(self._folder / OPEN_PART, self._open.open_chunks())
        self._recorder.run(update_journal)

    def _publish(self) -> None:
        version = self._open.version
        if version == self._published:
            return
        top, part = self._folder / CHANGE_LIST, self._folder / OPEN_PART
        if self._open.is_indexed:
            # In this order, a client that reads both meanwhile finds an overlap, not a gap.
            write_atomically(top, self._open.chunks())
            write_atomically(part, self._open.open_chunks())
            also_as(part, self._folder / CHANNEL)
        else:
            write_atomically(top, self._open.chunks())
            also_as(top, self._folder / CHANNEL)
            if part.exists():  # some clients may still be polling it
                also_as(top, part)
        self.views.publish()
        self._published = version
