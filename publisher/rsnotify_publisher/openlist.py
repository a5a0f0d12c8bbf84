"""The open Change List, kept as written entries, so that a change is written once.

It follows the journal: what is new is appended, what another has closed is dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from zlib import crc32

from rsnotify.datetimes import to_microseconds
from rsnotify.writing import closing, entry, opening
from rsnotify_publisher.documents import Documents
from rsnotify_publisher.journal import Journal, Span


class OpenList:
    """The open Change List as one reader of the journal sees it.

    Args:
        documents: Says how a Change List begins.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._from = 0
        self._datetimes: list[int] = []
        self._entries: list[bytes] = []

    def refresh(self, journal: Journal) -> None:
        """Bring it to where the journal is now."""
        with journal.snapshot():
            begin = journal.closed_through()
            changes = journal.changes(max(begin, self._through))
        if begin != self._from:
            self._drop(begin)
        for change in changes:
            assert change.datetime is not None
            self._datetimes.append(to_microseconds(change.datetime))
            self._entries.append(entry(change))

    def _drop(self, begin: int) -> None:
        gone = bisect_right(self._datetimes, begin)
        del self._datetimes[:gone]
        del self._entries[:gone]
        self._from = begin

    @property
    def _through(self) -> int:
        return self._datetimes[-1] if self._datetimes else self._from

    @property
    def version(self) -> str:
        """A text that differs whenever the bytes of the document do."""
        head = crc32(opening(self._documents.change_list(self._from)))
        return f"{self._through:x}-{head:x}"

    def chunks(self) -> list[bytes]:
        """Return the document in pieces."""
        head = self._documents.change_list(self._from)
        return [opening(head), *self._entries, closing(head)]

    def closed(self, span: Span) -> list[bytes]:
        """Return the beginning of it as a closed Change List, in pieces."""
        head = self._documents.change_list(span.from_at, span.until_at)
        count = bisect_right(self._datetimes, span.until_at)
        return [opening(head), *self._entries[:count], closing(head)]

    def to_close(self, max_entries: int, max_bytes: int) -> Span | None:
        """Decide what to close: the older half of a list that is full.

        What stays open still reaches back `max_entries / 2` changes, so that a reader that
        polls now and then seldom needs the archive.

        Args:
            max_entries: With as many changes the list is full.
            max_bytes: Or with as many bytes.
        """
        total = len(self._entries)
        if total < 2 or (total < max_entries and sum(map(len, self._entries)) < max_bytes):
            return None
        # After a flood the older half may itself be more than one document.
        count, size = 0, 0
        for written in self._entries[: min(total // 2, max_entries)]:
            size += len(written)
            if count and size > max_bytes:
                break
            count += 1
        return Span(self._from, self._datetimes[count - 1])
