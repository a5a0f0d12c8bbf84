"""The store on one SQLite database (WAL, every commit flushed), the embedded default."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from rsnotify.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify.errors import ConfigurationError, StorageError
from rsnotify_hub.log import sqlite_log, sqlite_reading
from rsnotify_hub.log.fragments import Fragment
from rsnotify_hub.log.group_commit import GroupCommit
from rsnotify_hub.log.sqlite_log import Retention
from rsnotify_hub.log.store import Appended, Entry, LogState, Waiting
from rsnotify_hub.subscriptions import Subscription

T = TypeVar("T")
log = logging.getLogger("rsnotify.hub.store")

_SCHEMA = (
    sqlite_log.SCHEMA
    + """
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
CREATE TABLE IF NOT EXISTS checked (id INTEGER PRIMARY KEY CHECK (id = 1), times INTEGER);
"""
)
_VERSION = 2
# Format 1 knew neither who had asked for a subscription nor suspended ones, nor whole contents.
_FROM_1 = f"""
BEGIN;
{sqlite_log.FROM_1_TO_2}
ALTER TABLE subscription ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
ALTER TABLE subscription ADD COLUMN client TEXT NOT NULL DEFAULT '';
PRAGMA user_version = 2;
COMMIT;
"""

#: How long a moved cursor may wait for a transaction of others to join, in seconds.
CURSOR_DELAY = 0.25


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    return database


def _prepare(database: sqlite3.Connection) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, 1, _VERSION):
        raise ConfigurationError(f"the hub's data has format {version}, this hub reads {_VERSION}")
    if version == 1:
        database.executescript(_FROM_1)
    database.executescript(_SCHEMA)
    database.execute(f"PRAGMA user_version = {_VERSION}")


class SqliteStore:
    """A `Store` in a folder, for one hub process at a time.

    Args:
        folder: Where it lives; made if absent, readable by its owner only.
        retention: How much of each log is kept.
        clock: Tells the current instant.

    Raises:
        ConfigurationError: The folder cannot be used, or another hub uses it.
    """

    def __init__(self, folder: Path, retention: Retention, clock: Callable[[], Instant]) -> None:
        self._retention = retention
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._cursors: dict[tuple[str, str], int] = {}
        self._flush: asyncio.TimerHandle | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = FileLock(folder / "hub.lock")
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(f"another hub is using the folder {folder}") from None
        except OSError as error:
            raise ConfigurationError(f"cannot use the folder {folder}: {error.strerror}") from None
        try:
            self._open(folder / "hub.sqlite")
        except BaseException:
            self._lock.release()
            raise

    def _open(self, path: Path) -> None:
        try:
            database = _connect(path)
            _prepare(database)
            self._reader = _connect(path)
        except sqlite3.Error as error:
            raise ConfigurationError(f"cannot use the hub's data in {path}: {error}") from None
        self._writer = GroupCommit(database)
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="hub-reader")

    async def _read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._loop.run_in_executor(self._reading, operation, self._reader)
        except sqlite3.Error as error:
            raise StorageError(f"cannot read the hub's data: {error}") from None

    async def logs(self) -> list[LogState]:
        """Return the state of every log."""
        return await self._read(sqlite_reading.states)

    async def append(
        self, topic: str, fragments: Sequence[Fragment], *, replacing: int | None
    ) -> Appended:
        """Append to a log (`Store.append`)."""
        now = self._clock()
        return await self._writer.submit(
            lambda database: sqlite_log.append(
                database,
                topic,
                fragments,
                replacing=replacing,
                now=now,
                retention=self._retention,
            )
        )

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[Entry]:
        """Read on in a log (`Store.read`)."""
        return await self._read(
            lambda database: sqlite_reading.read(database, topic, after=after, since=since)
        )

    async def changes(self, topic: str, *, since: Instant | None) -> list[Entry]:
        """Read what a log has of the time after an instant (`Store.changes`)."""
        return await self._read(
            lambda database: sqlite_reading.changes(database, topic, since=since)
        )

    async def trim(self, topic: str) -> LogState:
        """Trim a log that nobody appends to (`Store.trim`)."""
        now = self._clock()
        return await self._writer.submit(
            lambda database: sqlite_log.trim(database, topic, now=now, retention=self._retention)
        )

    async def waiting(self, topic: str, positions: Sequence[int]) -> list[Waiting]:
        """Tell what stands after each of some positions (`Store.waiting`)."""
        return await self._read(lambda database: sqlite_reading.waiting(database, topic, positions))

    async def forget(self, topic: str) -> None:
        """Delete a log (`Store.forget`)."""
        await self._writer.submit(lambda database: sqlite_log.forget(database, topic))

    async def subscriptions(self) -> list[Subscription]:
        """Return every subscription."""
        rows = await self._read(
            lambda database: database.execute(
                "SELECT topic, callback, secret, expires, position, suspended, client"
                " FROM subscription"
            ).fetchall()
        )
        return [
            Subscription(
                topic, callback, secret, from_microseconds(expires), position, bool(held), client
            )
            for topic, callback, secret, expires, position, held, client in rows
        ]

    async def save(self, subscription: Subscription) -> None:
        """Keep a new or changed subscription."""
        self._cursors.pop((subscription.topic, subscription.callback), None)
        await self._execute(
            "INSERT OR REPLACE INTO subscription"
            " (topic, callback, secret, expires, position, suspended, client)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            subscription.topic,
            subscription.callback,
            subscription.secret,
            to_microseconds(subscription.expires),
            subscription.position,
            subscription.suspended,
            subscription.client,
        )

    async def delete(self, topic: str, callback: str) -> None:
        """Forget a subscription."""
        await self._execute(
            "DELETE FROM subscription WHERE topic = ? AND callback = ?", topic, callback
        )

    def queued(self) -> int:
        """Count the writes that wait for the next transaction."""
        return self._writer.queued()

    async def check(self) -> None:
        """Write something, to see that the store can."""
        await self._execute(
            "INSERT INTO checked VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET times = times + 1"
        )

    async def _execute(self, sql: str, *values: object) -> None:
        await self._writer.submit(lambda database: database.execute(sql, values))

    def move_cursor(self, topic: str, callback: str, position: int) -> None:
        """Note how far a subscription was delivered (`Store.move_cursor`).

        A flush of its own for each would make publishers wait behind it.
        """
        self._cursors[topic, callback] = position
        if self._flush is None:
            self._flush = self._loop.call_later(CURSOR_DELAY, self._flush_cursors)

    def _flush_cursors(self) -> None:
        self._flush = None
        moved = [(position, *key) for key, position in self._cursors.items()]
        self._cursors.clear()
        if moved:
            written = self._writer.submit(
                lambda database: database.executemany(
                    "UPDATE subscription SET position = ? WHERE topic = ? AND callback = ?", moved
                )
            )
            written.add_done_callback(_log_failure)

    async def close(self) -> None:
        """Write the last cursors, and close the database."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush_cursors()
        await self._writer.close()
        self._reading.shutdown()
        self._reader.close()
        self._lock.release()


def _log_failure(written: asyncio.Future[sqlite3.Cursor]) -> None:
    if not written.cancelled() and (error := written.exception()) is not None:
        log.warning("cursors were not saved, so some deliveries may come twice: %s", error)
