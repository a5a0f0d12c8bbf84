"""The Change Lists as files: the open one, those that are closed, and their archive."""

from __future__ import annotations

import logging

from rsnotify.model import Resource
from rsnotify.vocabulary import Capability
from rsnotify_publisher.documents import CHANGE_LIST, CHANNEL, OPEN_PART, compact, stem
from rsnotify_publisher.dumps import Captured
from rsnotify_publisher.files import also_as, write_atomically
from rsnotify_publisher.journal import Journal, Recorder, Volume
from rsnotify_publisher.library.archives import Archives
from rsnotify_publisher.library.openlist import Closing, OpenList
from rsnotify_publisher.source import Source

_log = logging.getLogger("rsnotify.publisher")


class ChangeLists:
    """Keeps the Change Lists of one Source in step with the journal.

    Args:
        source: Whose documents they are.
        recorder: Makes durable what was closed.
        archives: Take what leaves the open period.
        captured: Keeps what new changes made of their resources.
    """

    def __init__(
        self, source: Source, recorder: Recorder, archives: Archives, captured: Captured | None
    ) -> None:
        self._captured = captured
        self._clock = source.clock
        self._folder = source.documents_folder
        self._rotation = source.rotation
        self._suffix = ".xml.gz" if source.options.gzip else ".xml"
        self._recorder = recorder
        self._archives = archives
        self._open = OpenList(source.documents)
        self._published = ""

    def write(self, journal: Journal) -> bool:
        """Bring the open Change List and the channel up to date; close what is too long.

        Returns:
            Whether something was closed.
        """
        changes = self._open.refresh(journal)
        closed = False
        while self._close_next(journal):
            changes += self._open.refresh(journal)
            closed = True
        self._publish()
        self._capture(changes)
        return closed

    def _capture(self, changes: list[Resource]) -> None:
        if self._captured is None:
            return
        try:
            self._captured.keep(changes)
        except Exception:  # the Source's own code; a Change Dump then has what there is later
            _log.exception("the content of changes could not be kept for the Change Dump")

    def _close_next(self, journal: Journal) -> bool:
        now = self._clock()
        if parts := self._open.to_archive(self._rotation, now):
            self._archives.add(journal, parts, lambda journal: journal.archive(parts))
            return True
        closing = self._open.to_close(self._rotation, now)
        if closing is not None:
            self._close(journal, closing)
        return closing is not None

    def _close(self, journal: Journal, closing: Closing) -> None:
        """Publish a closed list: first itself, then what refers to it, then what goes on."""
        # Closed anew after a crash, it may end elsewhere; so the end is in the name too.
        own = f"{stem(Capability.CHANGE_LIST, self._open.begin)}-{compact(closing.until)}"
        name = own + self._suffix
        size = write_atomically(self._folder / name, self._open.closed(closing))
        volume = Volume(
            *(Capability.CHANGE_LIST, self._open.begin, closing.until, closing.count, size),
            files=(name,),
            archived=closing.archived,
        )
        if closing.archived:
            self._archives.add(journal, [volume], lambda journal: journal.close_list(volume))
            return
        rest = self._open.open_chunks(closing.count, closing.until)
        write_atomically(self._folder / OPEN_PART, rest)
        self._recorder.submit(lambda journal: journal.close_list(volume)).result()

    def _publish(self) -> None:
        version = self._open.version
        if version == self._published:
            return
        top, part = self._folder / CHANGE_LIST, self._folder / OPEN_PART
        if self._open.is_indexed:
            write_atomically(part, self._open.open_chunks())
            write_atomically(top, self._open.chunks())
            also_as(part, self._folder / CHANNEL)
        else:
            write_atomically(top, self._open.chunks())
            also_as(top, self._folder / CHANNEL)
            if part.exists():  # some may still poll it
                also_as(top, part)
        self._published = version
