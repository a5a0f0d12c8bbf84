"""A store and the logs on it, without HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from rsnotify_hub.log.fragments import Fragment, read_fragment
from rsnotify_hub.log.sqlite_store import SqliteStore
from rsnotify_hub.log.store import LogEntry, LogRetention
from rsnotify_hub.log.topic_logs import TopicLogs
from tests.hub.helpers import TOPIC, Clock, at, fragment

FOREVER = LogRetention(size=10**9, age=timedelta(days=365))


def made(from_: float, *seconds: float, until: float | None = None, padding: int = 0) -> Fragment:
    return read_fragment(fragment(from_, *seconds, until=until, padding=padding))


class Listener:
    """A channel that remembers."""

    def __init__(self) -> None:
        self.batches: list[list[LogEntry]] = []

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        self.batches.append(list(entries))

    def subscribers(self, topic: str) -> int:
        return 1

    @property
    def fragments(self) -> list[Fragment]:
        return [entry.fragment for batch in self.batches for entry in batch]


@asynccontextmanager
async def opened(
    folder: Path, clock: Clock, retention: LogRetention = FOREVER
) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(folder, retention, clock)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def logs(
    folder: Path, clock: Clock, retention: LogRetention = FOREVER
) -> AsyncIterator[tuple[TopicLogs, Listener]]:
    async with opened(folder, clock, retention) as store:
        listener = Listener()
        topics = TopicLogs(store)
        topics.start(await store.logs(), (listener,))
        yield topics, listener
        await topics.close()


async def kept(topics: TopicLogs, after: int = 0, since: float | None = None) -> list[Fragment]:
    found: list[Fragment] = []
    start = None if since is None else at(since)
    while entries := await topics.read(TOPIC, after=after, since=start):
        found += [entry.fragment for entry in entries]
        after = entries[-1].position
    return found
