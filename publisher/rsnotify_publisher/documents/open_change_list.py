"""Keeps the open Change List in memory as serialized entries, and reads closed ones from files.

The open Change List follows the journal: new changes are appended, and closed changes are dropped,
so that each change is serialized only once. If the open period has outgrown one document, its older
parts are already closed, and a Change List Index lists all parts (core §12.2).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import Capability, Document, Resource
from rsnotify.format.reader import SitemapReader
from rsnotify.format.writer import closing, opening
from rsnotify_publisher.files import reading
from rsnotify_publisher.journal import FinishedDocument, Journal
from rsnotify_publisher.rotation_and_retention import MinimumOpen, RotationPolicy
from rsnotify_publisher.source_documents import SourceDocuments

#: Upper bound for the bytes before and after the entries of a document.
_MAX_HEAD_SIZE = 50_000


class ListToClose(Struct, frozen=True):
    """The changes to close next: the `count` oldest in the open list, through `until` (µs).

    If `archived`, they leave the open period at once.
    """

    count: int
    until: int
    archived: bool


class OpenChangeList:
    """The open Change List, which follows the journal with `refresh`."""

    def __init__(self, documents: SourceDocuments) -> None:
        options = documents.options
        self._documents = documents
        self._max_entries = options.max_entries
        self._max_bytes = max(1, options.max_bytes - min(_MAX_HEAD_SIZE, options.max_bytes // 2))
        #: Where the open Change List begins (µs).
        self.begin = 0
        self._parts: list[FinishedDocument] = []
        self._datetimes: list[int] = []
        self._entries: list[bytes] = []
        self._size = 0

    def refresh(self, journal: Journal, limit: int = -1) -> list[Resource]:
        """Append the next changes, at most `limit` unless it is negative, and return them."""
        with journal.snapshot() as state:
            changes = journal.changes(max(state.closed, self.through), limit)
            self._parts = journal.finished(Capability.CHANGE_LIST, archived=False)
        if state.closed != self.begin:
            self._drop(state.closed)
        for change in changes:
            assert change.datetime is not None
            self._datetimes.append(to_microseconds(change.datetime))
            self._entries.append(self._documents.entry(change))
            self._size += len(self._entries[-1])
        return changes

    def _drop(self, begin: int) -> None:
        gone = bisect_right(self._datetimes, begin)
        self._size -= sum(map(len, self._entries[:gone]))
        del self._datetimes[:gone]
        del self._entries[:gone]
        self.begin = begin

    @property
    def through(self) -> int:
        """The datetime of the last change (µs), or the beginning of the list if it is empty."""
        return self._datetimes[-1] if self._datetimes else self.begin

    @property
    def is_indexed(self) -> bool:
        """Whether the open period consists of several documents."""
        return bool(self._parts)

    @property
    def version(self) -> str:
        """A string that differs for different bytes of the document."""
        head = crc32(self._head())
        return f"{self.through:x}-{head:x}"

    def _head(self) -> bytes:
        if self._parts:
            return self._documents.write(self._documents.change_list_index(self._parts, self.begin))
        return opening(self._documents.change_list(self.begin))

    def chunks(self) -> list[bytes]:
        """Return changelist.xml in pieces: the list, or the index of its parts."""
        return [self._head()] if self._parts else self.open_chunks()

    def open_chunks(self) -> list[bytes]:
        """Return the open Change List itself, in pieces.

        An open list promises nothing after its last entry, so it may end with the last entry that
        fits into one document. The other changes appear in the next list, a moment later.
        """
        head = self._documents.change_list(self.begin, is_part=bool(self._parts))
        return _joined(head, self._entries[: self._max_entries])

    def closed(self, part: ListToClose) -> list[bytes]:
        head = self._documents.change_list(self.begin, part.until, is_part=not part.archived)
        return _joined(head, self._entries[: part.count])

    def parts_to_archive(
        self, rotation: RotationPolicy, now: int, scheduled: int | None = None
    ) -> list[FinishedDocument]:
        """Return the closed parts to move from the open period to the archive.

        Changes through `scheduled` (µs) are moved in any case.
        """
        changes = len(self._entries) + sum(part.entries for part in self._parts)
        size = self._size + sum(part.size for part in self._parts)
        removed: list[FinishedDocument] = []
        if not self._parts:
            return removed
        minimum = rotation.minimum_open(changes, size, self._parts[0].begin, now, scheduled)
        for part in self._parts:
            changes -= part.entries
            size -= part.size
            if minimum is None or not minimum.allows(changes, size, part.end):
                break
            removed.append(part)
        return removed

    def next_to_close(
        self, rotation: RotationPolicy, now: int, scheduled: int | None = None
    ) -> ListToClose | None:
        """Return the changes to close next, because the rotation requires it or a document is full.

        Changes through `scheduled` (µs) are closed in any case.
        """
        count = 0 if self._parts else self._count_to_rotate(rotation, now, scheduled)
        if count:
            return ListToClose(count, self._datetimes[count - 1], archived=True)
        if len(self._entries) > self._max_entries or self._size > self._max_bytes:
            count = self._count_fitting(self._max_entries, self._max_bytes)
            return ListToClose(count, self._datetimes[count - 1], archived=False)
        return None

    def _count_to_rotate(self, rotation: RotationPolicy, now: int, scheduled: int | None) -> int:
        """Return the number of changes that the rotation closes, limited to one document."""
        changes, size = len(self._entries), self._size
        minimum: MinimumOpen | None = None
        if changes:
            minimum = rotation.minimum_open(changes, size, self._datetimes[0], now, scheduled)
        if minimum is None:
            return 0
        # After a flood, even the older half may be more than one document.
        most = min(self._max_entries, rotation.changes or self._max_entries)
        count = 0
        for at, written in zip(self._datetimes[:most], self._entries[:most], strict=True):
            changes -= 1
            size -= len(written)
            if not minimum.allows(changes, size, at):
                break
            count += 1
        return self._count_fitting(count, min(self._max_bytes, rotation.size or self._max_bytes))

    def _count_fitting(self, max_count: int, size: int) -> int:
        """Return the number of oldest changes that fit into one document: at least one, if any."""
        count = 0
        for written in self._entries[:max_count]:
            size -= len(written)
            if count and size < 0:
                break
            count += 1
        return count


def _joined(head: Document, entries: Sequence[bytes]) -> list[bytes]:
    # Writing thousands of small pieces would take longer.
    return [opening(head), b"".join(entries), closing(head)]


def changes_in(folder: Path, closed: FinishedDocument) -> Iterator[Resource]:
    """Yield the changes of a closed Change List, each with its datetime."""
    reader = SitemapReader()
    for piece in reading(folder / closed.files[0]):
        for change in reader.feed(piece):
            # In a 1.0 list, the datetime of the change is only in lastmod.
            yield replace(change, datetime=change.changed_at)
