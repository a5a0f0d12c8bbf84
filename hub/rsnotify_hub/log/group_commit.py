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


class GroupCommit:
    """The one writer of a database.

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
            Its result, once durable; or StorageError, and nothing of that transaction is kept.
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
        job = self._thread.submit(self._transact, [operation for operation, _ in batch])
        futures = [future for _, future in batch]
        job.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._finish, done, futures)
        )

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

    def _finish(self, done: Future[list[Any]], futures: list[asyncio.Future[Any]]) -> None:
        error = done.exception()
        for number, future in enumerate(futures):
            if future.done():
                continue  # whoever asked was cancelled
            if error is None:
                future.set_result(done.result()[number])
            elif isinstance(error, sqlite3.Error):
                future.set_exception(StorageError(f"cannot write the hub's data: {error}"))
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
