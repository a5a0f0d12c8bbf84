"""Reads entries by their positions, and keeps some in memory that were read or have just come."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from rsnotify.errors import StorageError
from rsnotify_hub.store.interface import LogEntry
from rsnotify_hub.store.jetstream.records import Kind, read_record, read_stored_fragment
from rsnotify_hub.store.jetstream.stream import LogStream, StoredMessage

#: The bytes of all bodies in memory.
CACHE_BYTES = 16 * 1024 * 1024


class EntryReader:
    """Reads entries.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: LogStream) -> None:
        self._stream = stream
        self._cache: OrderedDict[int, LogEntry] = OrderedDict()
        self._size = 0

    def keep(self, entry: LogEntry) -> None:
        """Keep an entry in memory, in place of the one that was used longest ago."""
        size = len(entry.fragment.body)
        if size > CACHE_BYTES // 8 or entry.position in self._cache:
            return
        self._cache[entry.position] = entry
        self._size += size
        while self._size > CACHE_BYTES:
            self._size -= len(self._cache.popitem(last=False)[1].fragment.body)

    async def read(self, positions: Sequence[int]) -> list[LogEntry]:
        """Return the entries at some positions, in their order.

        Another node may have trimmed an entry already; such an entry is left out.
        """
        found = await asyncio.gather(*map(self._entry, positions), return_exceptions=True)
        entries = []
        for entry in found:
            if isinstance(entry, BaseException):
                raise entry
            if entry is not None:
                entries.append(entry)
        return entries

    async def _entry(self, position: int) -> LogEntry | None:
        entry = self._cache.get(position)
        if entry is not None:
            self._cache.move_to_end(position)
            return entry
        message = await self._stream.get(position)
        if message is None:
            return None
        entry = entry_of(message)
        if entry is None:
            raise StorageError(f"the record {position} of the log in NATS is not a fragment")
        self.keep(entry)
        return entry


def entry_of(message: StoredMessage) -> LogEntry | None:
    """Return the entry that a message of the stream contains, if any."""
    record = read_record(message.position, message.headers, message.size)
    if record is None or record.kind in (Kind.RESET, Kind.CHECK):
        return None
    fragment = read_stored_fragment(record, message.headers, message.body)
    return LogEntry(message.position, fragment)
