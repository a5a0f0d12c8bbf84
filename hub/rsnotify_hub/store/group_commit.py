"""Group commit: writes that are submitted while a transaction runs share the next transaction.

A flush to disk takes milliseconds, regardless of how much it writes.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from rsnotify.errors import StorageError
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.tasks import settle

logger = logging.getLogger("rsnotify.hub.store")

#: Delay before moved cursors are written, so that others can join the batch, in seconds.
FLUSH_DELAY_SECONDS = 0.25
#: Delay before a failed write is retried, in seconds.
RETRY_DELAY_SECONDS = 5.0

_Cursors = dict[tuple[str, str], int | bytes | None]


class CursorWriter:
    """Writes subscription cursors, broker cursors or failure states in batches.

    Flushing each one separately would delay publishers. A failed write is retried. If a crash loses
    a batch, the hub delivers some fragments twice.

    Args:
        sql: The statement that moves a cursor. Its parameters are the position and the two-part
            key.
    """

    def __init__(self, writer: GroupCommit, sql: str) -> None:
        self._writer = writer
        self._sql = sql
        self._loop = asyncio.get_running_loop()
        self._moved: _Cursors = {}
        self._flushing: _Cursors = {}
        self._flush: asyncio.TimerHandle | None = None
        self._is_writing = False

    def move(self, first: str, second: str, position: int | bytes | None) -> None:
        """Move the cursor, or set the failure state, with this two-part key."""
        self._moved[first, second] = position
        if self._flush is None:
            self._flush_in(FLUSH_DELAY_SECONDS)

    def forget(self, first: str, second: str) -> None:
        """Discard an unwritten move because another write is about to replace it."""
        for cursors in (self._moved, self._flushing):
            cursors.pop((first, second), None)

    def _flush_in(self, seconds: float) -> None:
        if self._flush is None and self._moved and not self._is_writing:
            self._flush = self._loop.call_later(seconds, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        self._is_writing = True
        self._flushing, self._moved = self._moved, {}
        rows = [(position, *key) for key, position in self._flushing.items()]
        written = self._writer.submit(lambda database: database.executemany(self._sql, rows))
        written.add_done_callback(self._on_flushed)

    def _on_flushed(self, written: asyncio.Future[sqlite3.Cursor]) -> None:
        self._is_writing = False
        flushed, self._flushing = self._flushing, {}
        if written.cancelled() or (error := written.exception()) is None:
            self._flush_in(FLUSH_DELAY_SECONDS)
            return
        logger.warning(
            "cannot save cursors; retrying (after a crash, some fragments are delivered twice): %s",
            error,
        )
        self._moved = flushed | self._moved
        self._flush_in(RETRY_DELAY_SECONDS)

    async def close(self) -> None:
        await self._writer.idle()
        if self._flush is not None:
            self._flush.cancel()
            self._flush_now()
            await self._writer.idle()
        if self._flush is not None:  # the write failed
            self._flush.cancel()


T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]

#: The result of an operation, or the error that it raised.
_Result = tuple[Any, Exception | None]

#: The operations of one transaction, each with the future for its result.
_Batch = list[tuple[Operation[Any], asyncio.Future[Any]]]


class GroupCommit:
    """The only writer of a database. Its thread runs one transaction after another.

    If one operation fails, for example because a string cannot be stored, the writer repeats each
    operation of the batch in its own transaction.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        self._has_ended = False
        self._thread = Thread(target=self._write, name="hub-writer", daemon=True)
        self._thread.start()
        self._waiting: _Batch = []
        self._running = False
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        """Run an operation in the next transaction.

        Returns:
            A future for the operation's result, which is done when the result is durable. If the
            database fails, the future raises StorageError and the whole transaction is rolled
            back. If the operation fails, the future raises the operation's error.
        """
        if self._has_ended:
            raise StorageError("the hub's store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((operation, future))
        self._begin()
        return future

    def queued(self) -> int:
        return len(self._waiting)

    def _begin(self) -> None:
        if self._running or not self._waiting:
            return
        self._running = True
        self._idle.clear()
        batch, self._waiting = self._waiting, []
        self._batches.put(batch)

    def _write(self) -> None:
        """Run one transaction after another, in the thread."""
        try:
            while (batch := self._batches.get()) is not None:
                results = self._run([operation for operation, _ in batch])
                self._loop.call_soon_threadsafe(self._finish, batch, results)
        finally:
            self._has_ended = True

    def _run(self, operations: list[Operation[Any]]) -> list[_Result]:
        try:
            return [(result, None) for result in self._transact(operations)]
        except sqlite3.Error as error:
            failure = StorageError(f"cannot write the hub's data: {reason_of(error)}")
            return [(None, failure)] * len(operations)
        except Exception as error:
            if len(operations) == 1:
                return [(None, error)]
            return [outcome for each in operations for outcome in self._run([each])]

    def _transact(self, operations: list[Operation[Any]]) -> list[Any]:
        database = self._database
        if database.in_transaction:  # the rollback of the previous transaction failed
            database.execute("ROLLBACK")
        database.execute("BEGIN IMMEDIATE")
        try:
            results = [operation(database) for operation in operations]
            database.execute("COMMIT")
        except BaseException:
            # SQLite itself rolls back after some errors, such as a full disk.
            if database.in_transaction:
                with suppress(sqlite3.Error):
                    database.execute("ROLLBACK")
            raise
        return results

    def _finish(self, batch: _Batch, results: list[_Result]) -> None:
        for (_, future), (result, error) in zip(batch, results, strict=True):
            settle(future, result if error is None else error)
        self._running = False
        self._begin()
        if not self._running:
            self._idle.set()

    async def idle(self) -> None:
        await self._idle.wait()

    async def close(self) -> None:
        await self.idle()
        self._batches.put(None)
        self._thread.join()
        self._database.close()
