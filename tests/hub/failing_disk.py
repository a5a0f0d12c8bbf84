"""A database of which chosen calls fail, and the logs on it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.topic_log import TopicLogs
from tests.hub.helpers import Clock
from tests.hub.storing import FOREVER, Listener


class Disk:
    """Counts the calls of the database, and fails some of them.

    Args:
        failing: The numbers of the calls that fail.
        late: Whether they do what they were asked first, as when only the answer is lost.
    """

    def __init__(self, failing: Iterable[int] = (), *, late: bool = False) -> None:
        self.asked: list[str] = []
        self.failing = set(failing)
        self._late = late

    def run(self, asked: str, do: Callable[[], Any]) -> Any:
        fails = len(self.asked) in self.failing
        self.asked.append(asked)
        result = None if fails and not self._late else do()
        if fails:
            raise sqlite3.OperationalError("disk I/O error")
        return result

    def connection(self) -> type[sqlite3.Connection]:
        disk = self

        class Connection(sqlite3.Connection):
            pass

        def failing(name: str) -> Callable[..., Any]:
            do = getattr(sqlite3.Connection, name)
            return lambda self, *arguments: disk.run(arguments[0], lambda: do(self, *arguments))

        for name in ("execute", "executemany", "executescript"):
            setattr(Connection, name, failing(name))
        return Connection


async def again(attempt: Callable[[], Any]) -> Any:
    """Retry until it succeeds, as a publisher does."""
    for _ in range(9):
        try:
            return await attempt()
        except StorageError:
            pass
    raise AssertionError("the store does not heal")


@asynccontextmanager
async def hub(
    folder: Path, disk: Disk, statistics: Statistics | None = None
) -> AsyncIterator[tuple[SqliteStore, TopicLogs, Listener]]:
    async def begin() -> tuple[SqliteStore, TopicLogs, Listener]:
        store = None
        try:
            store = SqliteStore(folder, FOREVER, Clock(), connection=disk.connection())
            listener = Listener()
            topics = TopicLogs(store, statistics)
            await topics.start((listener,))
        except (ConfigurationError, StorageError) as error:
            if store is not None:
                await store.close()
            raise StorageError(str(error)) from None
        return store, topics, listener

    store, topics, listener = await again(begin)
    try:
        yield store, topics, listener
    finally:
        await topics.close()
        await store.close()
