"""Group commit: everything asked for while one transaction runs shares the next one.

A flush to the disk costs milliseconds however much it flushes, so one thread runs one
transaction after another, each with all that has come in since the last one began.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from rsnotify.errors import StorageError

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]

#: The result of an operation, or why there is none.
_Outcome = tuple[Any, Exception | None]


class GroupCommit:
    """The one writer of a database.

    A fault in one operation, such as a text that cannot be stored, is no other's: then each of
    its transaction is run alone.

    Args:
        database: A connection in autocommit mode, usable from another thread.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hub-writer")
        self._waiting: list[tuple[Operation[Any], asyncio.Future[Any]]] = []
        self._running = False
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        """Run an operation in the next transaction.

        Returns:
            Its result, once durable. Where the database fails, StorageError, and nothing of
            that transaction is kept; where the operation does, its error.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((operation, future))
        self._begin()
        return future

    def queued(self) -> int:
        """Count the operations that wait for the next transaction."""
        return len(self._waiting)

    def _begin(self) -> None:
        if self._running or not self._waiting:
            return
        self._running = True
        self._idle.clear()
        batch, self._waiting = self._waiting, []
        job = self._thread.submit(self._run, [operation for operation, _ in batch])
        futures = [future for _, future in batch]
        job.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._finish, done, futures)
        )

    def _run(self, operations: list[Operation[Any]]) -> list[_Outcome]:
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
        if database.in_transaction:  # what failed before could not be rolled back then
            database.execute("ROLLBACK")
        database.execute("BEGIN IMMEDIATE")
        try:
            results = [operation(database) for operation in operations]
            database.execute("COMMIT")
        except BaseException:
            # SQLite itself rolls back upon some errors, such as a full disk.
            if database.in_transaction:
                with suppress(sqlite3.Error):
                    database.execute("ROLLBACK")
            raise
        return results

    def _finish(self, done: Future[list[_Outcome]], futures: list[asyncio.Future[Any]]) -> None:
        for future, (result, error) in zip(futures, done.result(), strict=True):
            if future.done():
                continue  # whoever asked was cancelled
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        self._running = False
        self._begin()
        if not self._running:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until everything submitted has been done, or has failed."""
        await self._idle.wait()

    async def close(self) -> None:
        """Finish what was submitted, then close the database."""
        await self.idle()
        self._thread.shutdown()
        self._database.close()
