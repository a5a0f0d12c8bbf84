"""The contents that a handler has applied and not flushed, kept in the state until it has.

Small content becomes durable in the transaction that stores T: this costs a page of the database
instead of two flushes. The handler flushes its files later, many at once. After a crash, what is
left here is applied again before anything else.
"""

from __future__ import annotations

from collections.abc import Sequence

from rsnotify_subscriber.storage.database import StateDatabase

#: A resource and its content; None if it was deleted.
UnflushedContent = tuple[str, bytes | None]


class ContentLog:
    """The contents of one state, in the order in which they were applied.

    Contents are added in the transaction of the changes, by one thread at a time.
    """

    def __init__(self, database: StateDatabase, committed: int) -> None:
        self._database = database
        query = "SELECT number, batch, uri, content FROM {contents} ORDER BY number"
        rows = database.read(query) if database.is_local else []
        #: By URI, what an earlier run has applied last and not flushed.
        self.unfinished: dict[str, bytes | None] = {}
        # Otherwise a version that knows no contents has committed later changes since.
        if rows and rows[-1][1] == committed:
            self.unfinished = {uri: content for _, _, uri, content in rows}
        #: The number of the last content; all up to it have been applied.
        self.last: int = rows[-1][0] if rows else 0
        self._batch = committed
        self._flushed = 0 if self.unfinished else self.last
        self._deleted = 0

    @property
    def is_flushed(self) -> bool:
        """Whether nothing is left to be flushed."""
        return self._flushed == self.last

    @property
    def has_flushed(self) -> bool:
        """Whether there are contents that `delete_flushed` deletes."""
        return self._deleted < self._flushed

    def write(self, batch: int, unflushed: Sequence[UnflushedContent] | None) -> None:
        """Store what was applied in a batch, and not flushed; None if everything was flushed."""
        if unflushed is None:
            self.set_flushed(self.last)
        self.delete_flushed()
        if unflushed:
            numbered = enumerate(unflushed, self.last + 1)
            rows = [(number, batch, uri, content) for number, (uri, content) in numbered]
            self._database.executemany("INSERT INTO {contents} VALUES (?, ?, ?, ?)", rows)
            self.last += len(rows)
        elif batch != self._batch and not self.is_flushed:  # they are valid after this commit too
            query = "UPDATE {contents} SET batch = ? WHERE number = ?"
            self._database.execute(query, (batch, self.last))
        self._batch = batch

    def set_flushed(self, last: int) -> None:
        """Note that the contents up to a number were flushed, and can be deleted."""
        self._flushed = max(self._flushed, last)

    def delete_flushed(self) -> None:
        if self.has_flushed:
            flushed = self._flushed
            self._database.execute("DELETE FROM {contents} WHERE number <= ?", (flushed,))
            self._deleted = flushed
