"""Group commit: all writes submitted while one transaction runs share the next one.

A flush to the disk costs milliseconds whatever its size. So one thread runs one transaction after
another, each with all operations submitted since the last one began.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from rsnotify.errors import StorageError

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]

#: The result of an operation, or why there is none.
_Result = tuple[Any, Exception | None]

#: The operations of one transaction, and the futures of their results.
_Batch = list[tuple[Operation[Any], asyncio.Future[Any]]]


class GroupCommit:
    """The one writer of a database.

    If one operation fails, for example because a text cannot be stored, each operation of the
    transaction is run in a transaction of its own.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="hub-writer", daemon=True)
        self._thread.start()
        self._waiting: _Batch = []
        self._running = False
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        """Run an operation in the next transaction.

        Returns:
            A future of its result, done once it is durable. If the database fails, StorageError,
            and nothing of the transaction is kept; if the operation fails, its error.
        """
        if not self._thread.is_alive():
            raise StorageError("the hub's data is closed")
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
        """Run one transaction after another, in a thread."""
        while (batch := self._batches.get()) is not None:
            results = self._run([operation for operation, _ in batch])
            self._loop.call_soon_threadsafe(self._finish, batch, results)

    def _run(self, operations: list[Operation[Any]]) -> list[_Result]:
        try:
            return [(result, None) for result in self._transact(operations)]
        except sqlite3.Error as error:
            failure = StorageError(f"cannot write the hub's data: {error}")
            return [(None, failure)] * len(operations)
        except Exception as error:
            if len(operations) == 1:
                return [(None, error)]
            return [outcome for each in operations for outcome in self._run([each])]

    def _transact(self, operations: list[Operation[Any]]) -> list[Any]:
        database = self._database
        if database.in_transaction:  # a failed transaction could not be rolled back
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
            if future.done():
                continue  # the caller was cancelled
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
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
