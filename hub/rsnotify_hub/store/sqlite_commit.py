"""The hub's SQLite database: group commit, connections, tables and the format version.

All writes submitted while one transaction runs share the next one. A flush to the disk costs
milliseconds, regardless of how much it writes. One thread therefore runs one transaction after
another, each with all the operations submitted since the previous one began.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from rsnotify.errors import StorageError
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import later_version
from rsnotify.runtime.tasks import settle

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]

#: The result of an operation, or the error that it raised.
_Result = tuple[Any, Exception | None]

#: The operations of one transaction, each with the future for its result.
_Batch = list[tuple[Operation[Any], asyncio.Future[Any]]]


class GroupCommit:
    """The only writer of a database.

    If one operation fails, for example because a string cannot be stored, the writer runs each
    operation of the batch again in a separate transaction.
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
        """Run one transaction after another. This is the thread's main function."""
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
        if database.in_transaction:  # the previous transaction failed, and so did its rollback
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


_SCHEMA = """
CREATE TABLE IF NOT EXISTS topic (
    id INTEGER PRIMARY KEY,
    uri TEXT NOT NULL UNIQUE,
    position INTEGER NOT NULL,
    through INTEGER NOT NULL,
    received INTEGER NOT NULL,
    kept INTEGER NOT NULL,
    size INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS topic_received ON topic (received DESC, uri);
-- AUTOINCREMENT: a position must not be reused after its fragment was deleted.
CREATE TABLE IF NOT EXISTS fragment (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER NOT NULL REFERENCES topic,
    digest BLOB NOT NULL,
    begins INTEGER NOT NULL,
    from_ INTEGER,
    until INTEGER NOT NULL,
    received INTEGER NOT NULL,
    heartbeat INTEGER NOT NULL,
    whole INTEGER NOT NULL DEFAULT 0,
    content_type TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fragment_digest ON fragment (topic, digest);
-- Both contain the position, since every index of SQLite contains the row's id.
CREATE INDEX IF NOT EXISTS fragment_topic ON fragment (topic);
CREATE INDEX IF NOT EXISTS fragment_until ON fragment (topic, until);
CREATE INDEX IF NOT EXISTS fragment_whole ON fragment (topic) WHERE whole;
CREATE TABLE IF NOT EXISTS subscription (
    topic TEXT NOT NULL,
    callback TEXT NOT NULL,
    secret TEXT,
    expires INTEGER NOT NULL,
    position INTEGER NOT NULL,
    suspended INTEGER NOT NULL DEFAULT 0,
    client TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (topic, callback)
);
CREATE TABLE IF NOT EXISTS bridged (
    broker TEXT NOT NULL,
    topic TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (broker, topic)
);
CREATE TABLE IF NOT EXISTS trouble (
    topic TEXT NOT NULL,
    callback TEXT NOT NULL,
    state BLOB,
    PRIMARY KEY (topic, callback)
);
CREATE TABLE IF NOT EXISTS checked (id INTEGER PRIMARY KEY CHECK (id = 1), times INTEGER);
"""
# Format 3 added brokers, format 4 the order of topics, and format 5 failing deliveries.
_VERSION = 5
# Format 1 had no clients of subscriptions, no suspended subscriptions and no whole contents.
_FROM_1 = """
ALTER TABLE fragment ADD COLUMN whole INTEGER NOT NULL DEFAULT 0;
ALTER TABLE subscription ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
ALTER TABLE subscription ADD COLUMN client TEXT NOT NULL DEFAULT '';
"""


def connect(path: Path, connection: type[sqlite3.Connection]) -> sqlite3.Connection:
    """Return a connection in autocommit mode that any thread may use, one thread at a time."""
    if not path.exists():
        path.touch(mode=0o600)  # it holds secrets; SQLite creates its other files in the same mode
    database = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=10, factory=connection
    )
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
    except BaseException:
        database.close()
        raise
    return database


def prepare(database: sqlite3.Connection, path: Path) -> None:
    """Create the tables, or migrate a database of an older version."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == _VERSION:
        return  # without writing, so that a hub starts even if its disk is full
    if version not in range(_VERSION):
        raise later_version(path)
    changes = (_FROM_1 if version == 1 else "") + _SCHEMA
    # One transaction: if the hub is killed during the migration, the next start repeats it.
    database.executescript(f"BEGIN; {changes} PRAGMA user_version = {_VERSION}; COMMIT;")
