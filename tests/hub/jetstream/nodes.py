"""Nodes of a hub on NATS, as far as their logs: what each was notified of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rsnotify_hub.fragments import Fragment
from rsnotify_hub.store.interface import (
    LogEntry,
    LogMoved,
    LogRetention,
    LogState,
    LogStore,
)
from rsnotify_hub.topic_log import plan_append
from rsnotify_jetstream.jetstream_log import JetStreamLog
from rsnotify_jetstream.nats_connection import NatsConnection
from rsnotify_jetstream.nats_settings import NatsSettings, parse_nats_url
from tests.hub.helpers import Clock
from tests.hub.storing import FOREVER


class Notified:
    """A listener that remembers.

    Attributes:
        entries: All entries, by topic.
        states: The last state of each log.
        replaced: What was replaced, by the position of the entry that replaced it.
        order: The positions of all entries, in the order of the calls.
        forgot: The topics whose logs were deleted.
    """

    def __init__(self) -> None:
        self.entries: dict[str, list[LogEntry]] = {}
        self.states: dict[str, LogState] = {}
        self.replaced: dict[int, int] = {}
        self.order: list[int] = []
        self.forgot: list[str] = []
        self._news = asyncio.Event()

    async def received(self, count: int) -> None:
        """Wait until it has received some entries."""
        while len(self.order) < count:
            self._news.clear()
            await self._news.wait()

    def append_started(self, topic: str, fragments: Sequence[Fragment]) -> None: ...

    def appended(
        self, topic: str, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None:
        self.entries.setdefault(topic, []).extend(entries)
        self.states[topic] = state
        self.order += [entry.position for entry in entries]
        self._news.set()
        if replaced is not None:
            self.replaced[entries[0].position] = replaced

    def forgotten(self, topic: str) -> None:
        self.forgot.append(topic)
        self.states.pop(topic, None)

    def fragments(self, topic: str) -> list[Fragment]:
        return [entry.fragment for entry in self.entries.get(topic, ())]


class Node:
    """A store and its listener, used as the hub uses them."""

    def __init__(self, store: LogStore, known: Sequence[LogState], listener: Notified) -> None:
        self.store = store
        self.listener = listener
        listener.states |= {state.topic: state for state in known}

    @property
    def log(self) -> JetStreamLog:
        assert isinstance(self.store, JetStreamLog)
        return self.store

    def state(self, topic: str) -> LogState | None:
        return self.listener.states.get(topic)

    def position(self, topic: str) -> int:
        state = self.state(topic)
        return state.position if state else 0

    async def append(self, topic: str, *fragments: Fragment) -> list[LogEntry]:
        """Append what the log lacks, as the hub plans it; return the new entries."""
        while True:
            plan = plan_append(self.state(topic), fragments)
            if not plan.fragments:
                return []
            try:
                new = await self.store.append(
                    topic,
                    plan.fragments,
                    after=self.position(topic),
                    replacing=plan.replacing,
                )
            except LogMoved:
                continue
            received = self.listener.entries.get(topic, ())
            own = [entry for entry in received if entry.fragment in plan.fragments]
            return own[len(own) - new :]

    async def forget(self, topic: str) -> None:
        """Delete a log, as the hub does: until it is gone."""
        while (state := self.state(topic)) is not None:
            with suppress(LogMoved):
                await self.store.forget(topic, after=state.position)

    async def kept(self, topic: str) -> list[Fragment]:
        found: list[Fragment] = []
        after = 0
        while entries := await self.store.read(topic, after=after):
            found += [entry.fragment for entry in entries]
            after = entries[-1].position
        return found


async def caught_up(*running: Node) -> None:
    for node in running:
        await node.log.catch_up()


def prefixed(url: str, prefix: str = "rsnotify") -> NatsSettings:
    return parse_nats_url(f"{url}?prefix={prefix}")


def part_of(folder: Path) -> str:
    """Return a prefix in NATS that no other test than that of a folder uses."""
    return "".join(char if char.isalnum() else "-" for char in folder.name)[-50:]


@asynccontextmanager
async def connected(settings: NatsSettings) -> AsyncIterator[NatsConnection]:
    connection = NatsConnection(settings)
    await connection.open("test")
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def running_node(
    settings: NatsSettings, clock: Clock, retention: LogRetention = FOREVER
) -> AsyncIterator[Node]:
    async with connected(settings) as connection:
        log = JetStreamLog(connection, retention, clock)
        listener = Notified()
        try:
            yield Node(log, await log.start(listener), listener)
        finally:
            await log.close()
