"""Reads everything that a store has, for an export."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from rsnotify_hub.fragments.fragment import Fragment
from rsnotify_hub.store.interface import LogEntry, LogState, Store
from rsnotify_hub.transfer.records import (
    Exported,
    ExportedBroker,
    exported_fragment,
    exported_subscription,
)


class IgnoredNews:
    """A `LogListener` for a process that reads logs, and need not follow them."""

    def writing(self, topic: str, fragments: Sequence[Fragment]) -> None: ...

    def appended(
        self, topic: str, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None: ...

    def forgotten(self, topic: str) -> None: ...


async def read_store(store: Store) -> AsyncIterator[Exported]:
    """Yield the records of a store that was just opened.

    Nodes may run meanwhile: cursors are read before the logs, so that no fragment is missed.
    """
    stored = await store.records()
    for subscription in stored.subscriptions:
        yield exported_subscription(subscription)
    for broker, cursors in stored.brokers.items():
        yield ExportedBroker(broker=broker, cursors=dict(cursors))
    for state in await store.start(IgnoredNews()):
        async for entry in read_log(store, state.topic):
            yield exported_fragment(state.topic, entry.position, entry.fragment)


async def read_log(store: Store, topic: str) -> AsyncIterator[LogEntry]:
    """Yield the entries of a log."""
    position = 0
    while entries := await store.read(topic, after=position):
        for entry in entries:
            yield entry
        position = entries[-1].position
