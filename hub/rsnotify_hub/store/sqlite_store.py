"""The default store: one SQLite database in WAL mode that flushes every commit."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from filelock import FileLock, Timeout

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import check_role, make_durably
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.store import sqlite_log as sqlite_reading
from rsnotify_hub.store import sqlite_log as sqlite_writing
from rsnotify_hub.store import sqlite_subscriptions as sqlite_subscribing
from rsnotify_hub.store.interface import (
    Backlog,
    BridgeOwner,
    LogEntry,
    LogListener,
    LogMoved,
    LogRetention,
    LogState,
    SubscriptionOwner,
    SubscriptionRecords,
)
from rsnotify_hub.store.sqlite_commit import GroupCommit, connect, prepare
from rsnotify_hub.store.sqlite_subscriptions import BRIDGED, SUBSCRIPTION, TROUBLE, CursorWriter
from rsnotify_hub.subscriptions import Subscription

P = ParamSpec("P")
T = TypeVar("T")


class SqliteStore:
    """A `Store` in a folder, for one hub process at a time.

    The folder is created if absent. Only its owner may read new files. Tests use a class of
    connections that fails.
    """

    def __init__(
        self,
        folder: Path,
        retention: LogRetention,
        clock: Callable[[], Instant],
        *,
        connection: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        self._connection = connection
        self._retention = retention
        self._clock = clock
        self._listener: LogListener
        self._loop = asyncio.get_running_loop()
        check_role(folder / "hub.sqlite")
        try:
            make_durably(folder, mode=0o700)
            self._lock = FileLock(folder / "hub.lock")
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(f"another hub is using the folder {folder}") from None
        except OSError as error:
            raise ConfigurationError(
                f"cannot use the folder {folder}: {reason_of(error)}"
            ) from None
        try:
            self._open(folder / "hub.sqlite")
        except BaseException:
            self._lock.release()
            raise

    def _open(self, path: Path) -> None:
        with ExitStack() as stack:
            try:
                writer = stack.enter_context(closing(connect(path, self._connection)))
                prepare(writer, path)
                self._reader = connect(path, self._connection)
            except (sqlite3.Error, OSError) as error:
                raise ConfigurationError(
                    f"cannot use the hub's data in {path}: {reason_of(error)}"
                ) from None
            stack.pop_all()
        self._writer = GroupCommit(writer)
        self._cursors = CursorWriter(self._writer, SUBSCRIPTION)
        self._troubles = CursorWriter(self._writer, TROUBLE)
        self._bridged = CursorWriter(self._writer, BRIDGED)
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="hub-reader")

    async def _read(
        self,
        operation: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        read = partial(operation, self._reader, *args, **kwargs)
        try:
            return await self._loop.run_in_executor(self._reading, read)
        except sqlite3.Error as error:
            raise StorageError(f"cannot read the hub's data: {reason_of(error)}") from None

    async def _select(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return await self._read(lambda database: database.execute(sql, values).fetchall())

    async def _execute(self, sql: str, *values: object) -> None:
        await self._writer.submit(lambda database: database.execute(sql, values))

    async def start(self, listener: LogListener) -> list[LogState]:
        self._listener = listener
        return await self._read(sqlite_reading.states)

    async def newest(self, *, after: tuple[Instant, str] | None, limit: int) -> list[LogState]:
        return await self._read(sqlite_reading.newest, after, limit)

    async def append(
        self, topic: str, fragments: Sequence[Fragment], *, after: int, replacing: int | None
    ) -> int:
        self._listener.writing(topic, fragments)
        appended = await self._writer.submit(
            partial(
                sqlite_writing.append,
                topic=topic,
                fragments=fragments,
                after=after,
                replacing=replacing,
                now=self._clock(),
                retention=self._retention,
            )
        )
        if appended is None:
            raise await self._moved(topic, after)
        entries, state = appended
        self._listener.appended(topic, entries, state, replacing)
        return len(entries)

    async def _moved(self, topic: str, after: int) -> LogMoved:
        """Report to the listener what a write that was reported as failed has done to a log."""
        states = await self._read(sqlite_reading.states, topic)
        if not states:
            self._listener.forgotten(topic)
            return LogMoved(f"the log of {topic} was deleted")
        entries: list[LogEntry] = []
        while page := await self.read(topic, after=after):
            entries += page
            after = page[-1].position
        self._listener.appended(topic, entries, states[0], None)
        return LogMoved(f"the log of {topic} has more entries")

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[LogEntry]:
        return await self._read(sqlite_reading.read, topic, after=after, since=since)

    async def changes(self, topic: str, *, since: Instant | None) -> list[LogEntry]:
        return await self._read(sqlite_reading.changes, topic, since=since)

    async def trim(self, topic: str) -> LogState | None:
        now, retention = self._clock(), self._retention
        return await self._writer.submit(
            partial(sqlite_writing.trim, topic=topic, now=now, retention=retention)
        )

    async def backlogs(self, topic: str, positions: Sequence[int]) -> list[Backlog]:
        return await self._read(sqlite_reading.backlogs, topic, positions)

    async def forget(self, topic: str, *, after: int) -> None:
        is_done = await self._writer.submit(
            lambda database: sqlite_writing.forget(database, topic, after=after)
        )
        if not is_done:
            raise await self._moved(topic, after)
        self._listener.forgotten(topic)

    async def assign(self, owner: SubscriptionOwner) -> None:
        """Assign all subscriptions to the owner: this is the only process (`Store.assign`)."""
        owner.acquired(await self._read(sqlite_subscribing.stored))

    async def records(self) -> SubscriptionRecords:
        stored = await self._read(sqlite_subscribing.stored)
        brokers = await self._read(sqlite_subscribing.brokers)
        return SubscriptionRecords([each.subscription for each in stored], brokers)

    async def restore(self, records: SubscriptionRecords) -> int:
        return await self._writer.submit(partial(sqlite_subscribing.restore, records=records))

    async def assign_bridge(self, bridge: BridgeOwner) -> None:
        await bridge.start()

    def owns(self, authority: str) -> bool:
        return True

    async def save(self, subscription: Subscription) -> None:
        self._cursors.forget(subscription.topic, subscription.callback)
        await self._writer.submit(partial(sqlite_subscribing.save, subscription=subscription))

    async def delete(self, topic: str, callback: str) -> None:
        self._troubles.forget(topic, callback)
        await self._writer.submit(
            partial(sqlite_subscribing.delete, topic=topic, callback=callback)
        )

    def move_cursor(self, topic: str, callback: str, position: int) -> None:
        self._cursors.move(topic, callback, position)

    def note_trouble(self, topic: str, callback: str, state: bytes | None) -> None:
        self._troubles.move(topic, callback, state)

    def owns_bridge(self) -> bool:
        return True

    async def bridged(self, broker: str) -> dict[str, int]:
        rows = await self._select("SELECT topic, position FROM bridged WHERE broker = ?", broker)
        return dict(rows)

    async def bridge(self, broker: str, positions: Mapping[str, int]) -> None:
        rows = [(position, broker, topic) for topic, position in positions.items()]
        await self._writer.submit(lambda database: database.executemany(BRIDGED, rows))

    async def unbridge(self, broker: str, topic: str) -> None:
        self._bridged.forget(broker, topic)
        await self._execute("DELETE FROM bridged WHERE broker = ? AND topic = ?", broker, topic)

    def move_bridged(self, broker: str, topic: str, position: int) -> None:
        self._bridged.move(broker, topic, position)

    def queued(self) -> int:
        return self._writer.queued()

    async def check(self) -> None:
        await self._execute(
            "INSERT INTO checked VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET times = times + 1"
        )

    async def close(self) -> None:
        for cursors in (self._cursors, self._troubles, self._bridged):
            await cursors.close()
        await self._writer.close()
        self._reading.shutdown()
        self._reader.close()
        self._lock.release()
