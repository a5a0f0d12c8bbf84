"""Logs for recovering from a crash: the intents of handlers, and unflushed content.

A change is applied in three steps:

    intent   Store durably which resources a handler is about to change (`IntentLog`). The next
             commit stores the intent's number. After a crash, an intent with a later number than
             the last commit shows which resources may have changed unrecorded. Otherwise, a file in
             a mirror would stay forever if the Source deleted the resource in the meantime.
    commit   Commit the new states and T, together with small content that the handler has not
             flushed yet (`ContentLog`). This costs one database page instead of two flushes. After
             a crash, this content is reapplied first.
    flush    The handler flushes many files at once. Then the stored content is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from rsnotify_subscriber.storage.state_database import StateDatabase

#: A resource and its content, which is None if the resource was deleted.
UnflushedContent = tuple[str, bytes | None]


class ContentLog:
    """The unflushed contents of one state, in the order in which they were applied.

    They are written in the transaction that commits the changes.
    """

    def __init__(self, database: StateDatabase, committed: int) -> None:
        self._database = database
        query = "SELECT number, batch, uri, content FROM {contents} ORDER BY number"
        rows = database.read(query) if database.is_local else []
        #: The last contents that an earlier run did not flush, by URI.
        self.unfinished: dict[str, bytes | None] = {}
        # The numbers differ if an rsnotify version without this table has committed later changes.
        if rows and rows[-1][1] == committed:
            self.unfinished = {uri: content for _, _, uri, content in rows}
        #: The number of the last content. All contents up to it have been applied.
        self.last: int = rows[-1][0] if rows else 0
        self._batch = committed
        self._flushed = 0 if self.unfinished else self.last
        self._deleted = 0

    @property
    def is_flushed(self) -> bool:
        """Whether all contents have been flushed."""
        return self._flushed == self.last

    @property
    def has_flushed(self) -> bool:
        """Whether there are flushed contents for `delete_flushed` to delete."""
        return self._deleted < self._flushed

    def write(self, batch: int, unflushed: Sequence[UnflushedContent] | None) -> None:
        """Store the unflushed contents of a batch. None means that everything is flushed."""
        if unflushed is None:
            self.set_flushed(self.last)
        self.delete_flushed()
        if unflushed:
            numbered = enumerate(unflushed, self.last + 1)
            rows = [(number, batch, uri, content) for number, (uri, content) in numbered]
            self._database.executemany("INSERT INTO {contents} VALUES (?, ?, ?, ?)", rows)
            self.last += len(rows)
        elif batch != self._batch and not self.is_flushed:  # earlier contents stay valid
            query = "UPDATE {contents} SET batch = ? WHERE number = ?"
            self._database.execute(query, (batch, self.last))
        self._batch = batch

    def set_flushed(self, last: int) -> None:
        """Record that all contents up to the number `last` are flushed."""
        self._flushed = max(self._flushed, last)

    def delete_flushed(self) -> None:
        if self.has_flushed:
            flushed = self._flushed
            self._database.execute("DELETE FROM {contents} WHERE number <= ?", (flushed,))
            self._deleted = flushed


class HandlerIntent(Struct, frozen=True, array_like=True):
    """The changes of one call to a handler.

    Args:
        batch: The number of the commit that follows.
        uris: The URIs of the changed resources.
        refused: The URIs of resources whose changes a handler has already failed to apply.
    """

    batch: int = 0
    uris: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def unfinished(self, committed: int) -> set[str]:
        """Return the URIs of changes that may be applied, but are not in commit `committed`."""
        if self.batch < committed:
            return set()
        return {*self.refused, *(self.uris if self.batch > committed else ())}


class IntentLog:
    """Stores intents, and reads those of an earlier run.

    Attributes:
        unfinished: The URIs of changes that an earlier run may have applied, but did not commit.
        batch: The number of the last intent.
    """

    def __init__(self, database: StateDatabase, committed: int) -> None:
        self._database = database
        self.batch = committed
        self._committed = committed
        self._last = HandlerIntent(committed)
        self.unfinished: set[str] = set()
        for record in database.read_intents():
            # A crash may have damaged the last record. Its handler was not called.
            with suppress(msgspec.DecodeError):
                intent = msgspec.json.decode(record, type=HandlerIntent)
                self.unfinished |= intent.unfinished(committed)
                self.batch = max(self.batch, intent.batch)
        if self.unfinished:
            self.batch += 1

    def store(self, uris: Sequence[str], refused: Collection[str]) -> None:
        """Durably replace the last intent. The arguments are as in `HandlerIntent`."""
        self.batch += 1
        self._last = HandlerIntent(self.batch, tuple(uris), tuple(refused))
        self._database.store_intent(msgspec.json.encode(self._last))

    @property
    def applying(self) -> set[str]:
        """The URIs of changes that may be applied but are not committed."""
        return self._last.unfinished(self._committed)

    @property
    def progress(self) -> int:
        """A number that changes after each intent, and after each commit of one."""
        return self.batch + self._committed

    def begin_commit(self) -> int | None:
        """Return the last intent's number, for the next commit, or None if it is committed."""
        if self.batch == self._committed:
            return None
        self._committed = self.batch
        return self.batch
