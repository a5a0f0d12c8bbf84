"""A store and the logs on it, without HTTP."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path

from rsnotify_hub.export_file import NullLogListener
from rsnotify_hub.fragments import Fragment, read_fragment
from rsnotify_hub.store.interface import (
    LogEntry,
    LogRetention,
    LogState,
    Store,
    StoredSubscription,
)
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.topic_log import DeliveryChannel, TopicLogs
from rsnotify_hub.websub_subscription import Subscription, subscription_id
from tests.hub.helpers import TOPIC, Clock, at, fragment

FOREVER = LogRetention(size=10**9, age=timedelta(days=365))


@cache
def made(from_: float, *seconds: float, until: float | None = None, padding: int = 0) -> Fragment:
    return read_fragment(fragment(from_, *seconds, until=until, padding=padding))


async def publish(topics: TopicLogs, *fragments: Fragment) -> None:
    for each in fragments:
        await topics.publish(TOPIC, each)


class Listener(DeliveryChannel):
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


async def stored_logs(store: Store) -> list[LogState]:
    return sorted(await store.newest(after=None, limit=10**6), key=lambda state: state.topic)


class Owner:
    """Remembers the subscriptions that a store has assigned to it, by id."""

    def __init__(self) -> None:
        self.owned: dict[str, StoredSubscription] = {}
        self.bridges = 0

    def acquired(self, stored: Sequence[StoredSubscription]) -> None:
        for each in stored:
            id = subscription_id(each.subscription.topic, each.subscription.callback)
            assert id not in self.owned
            self.owned[id] = each

    async def released(self, ids: Collection[str]) -> None:
        self.revoked(ids)

    def revoked(self, ids: Collection[str]) -> None:
        for id in ids:
            self.owned.pop(id, None)

    @property
    def subscriptions(self) -> list[Subscription]:
        found = (each.subscription for each in self.owned.values())
        return sorted(found, key=lambda each: each.callback)

    @property
    def failure_states(self) -> list[bytes | None]:
        return [each.failure_state for each in self.owned.values()]

    async def start(self) -> None:
        self.bridges += 1

    async def close(self) -> None:
        self.bridges -= 1


async def stored_subscriptions(store: Store) -> list[Subscription]:
    owner = Owner()
    await store.assign(owner)
    return owner.subscriptions


async def stored_failure_states(store: Store) -> list[bytes]:
    owner = Owner()
    await store.assign(owner)
    return [state for state in owner.failure_states if state is not None]


@asynccontextmanager
async def opened(
    folder: Path, clock: Clock, retention: LogRetention = FOREVER
) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(folder, retention, clock)
    await store.start(NullLogListener())
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def logs(
    folder: Path, clock: Clock, retention: LogRetention = FOREVER, listener: Listener | None = None
) -> AsyncIterator[tuple[TopicLogs, Listener]]:
    async with opened(folder, clock, retention) as store:
        listener = listener or Listener()
        topics = TopicLogs(store)
        await topics.start((listener,))
        yield topics, listener
        await topics.close()


async def kept(topics: TopicLogs, after: int = 0, since: float | None = None) -> list[Fragment]:
    found: list[Fragment] = []
    start = None if since is None else at(since)
    while entries := await topics.read(TOPIC, after=after, since=start):
        found += [entry.fragment for entry in entries]
        after = entries[-1].position
    return found


@contextmanager
def writes_waiting(data: Path) -> Iterator[None]:
    """Lock the database of a hub, so that a write lasts as long as the block."""
    database = sqlite3.connect(data / "hub.sqlite", isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        database.close()


class Counted(sqlite3.Connection):
    """A connection that counts the instructions of SQLite's machine."""

    steps = 0

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        def step() -> None:
            Counted.steps += 1

        self.set_progress_handler(step, 1)
        return super().execute(sql, *values)
