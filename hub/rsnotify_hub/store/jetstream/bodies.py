"""Reads entries by their positions, and keeps some in memory that were read or have just come.

Any server with a copy of the stream may answer, and a copy may be wrong (`CopyScan`). So each entry
is compared with the digest in the index, and read from other copies if it is another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping

from rsnotify.errors import StorageError
from rsnotify_hub.store.interface import LogEntry
from rsnotify_hub.store.jetstream.copies import StoredMessage
from rsnotify_hub.store.jetstream.records import (
    RecordKind,
    digest_of,
    read_record,
    read_stored_fragment,
)
from rsnotify_hub.store.jetstream.stream import LogStream

log = logging.getLogger("rsnotify.hub.store")

#: The bytes of all bodies in memory.
CACHE_BYTES = 16 * 1024 * 1024
#: How often a record is read that is not the expected one, until the leader of the stream is asked.
_ATTEMPTS = 8


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

    async def read(self, expected: Mapping[int, bytes]) -> list[LogEntry]:
        """Return the entries at some positions, in their order.

        Another node may have trimmed an entry already; such an entry is left out.

        Args:
            expected: The digest of each entry, by its position.
        """
        reads = (self._entry(position, digest) for position, digest in expected.items())
        found = await asyncio.gather(*reads, return_exceptions=True)
        entries = []
        for entry in found:
            if isinstance(entry, BaseException):
                raise entry
            if entry is not None:
                entries.append(entry)
        return entries

    async def _entry(self, position: int, digest: bytes) -> LogEntry | None:
        entry = self._cache.get(position)
        if entry is not None:
            self._cache.move_to_end(position)
            return entry
        message = await self._stream.get(position)
        for _ in range(_ATTEMPTS):
            if message is None or (entry := _checked(message, digest)) is not None:
                break
            log.warning("a NATS server has a wrong record %d", position)
            message = await self._stream.get(position)  # of a random server
        else:
            message = await self._stream.get_from_leader(position)
            entry = None if message is None else _checked(message, digest)
        if message is None:
            return None
        if entry is None:
            raise StorageError(
                f"the record {position} of the log in NATS is not the one that was stored: a copy "
                "of the stream is damaged; see `nats stream info`, and remove the server with it"
            )
        self.keep(entry)
        return entry


def _checked(message: StoredMessage, digest: bytes) -> LogEntry | None:
    """Return the entry in a message, if it is the expected one."""
    record = read_record(message.position, message.headers, message.size)
    if record is None or record.kind in (RecordKind.RESET, RecordKind.CHECK):
        return None
    fragment = read_stored_fragment(record, message.headers, message.body)
    return LogEntry(message.position, fragment) if digest_of(fragment) == digest else None
