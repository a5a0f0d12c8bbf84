"""The logs while the hub runs: append, then hand on at once to every channel.

Theory of operation. Each topic has one append under way at most; what is published meanwhile
waits and goes into the next, together. So the state of a log is known whenever an append is
planned, and the order of the log is the order in which channels get the entries. The state,
the recent entries and the channels change in one turn of the event loop: whoever compares its
own place with `position` and then joins a channel without awaiting anything in between, gets
each entry once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from rsnotify.format.datetimes import Instant
from rsnotify_hub.log.channel import DeliveryChannel
from rsnotify_hub.log.fragments import Fragment
from rsnotify_hub.log.names import Range, SortedNames
from rsnotify_hub.log.store import Backlog, LogEntry, LogState, Store
from rsnotify_hub.log.topic_log import TopicLog
from rsnotify_hub.statistics import Statistics


class TopicLogs:
    """Every log.

    Args:
        store: What keeps them.
        channels: The ways out.
        statistics: Counts what becomes durable.
    """

    def __init__(
        self,
        store: Store,
        channels: Sequence[DeliveryChannel],
        statistics: Statistics | None = None,
    ) -> None:
        self._store = store
        self._channels = channels
        self._statistics = statistics or Statistics()
        self._logs: dict[str, TopicLog] = {}
        self._names: SortedNames | None = None  # made when somebody counts

    def start(self, states: Iterable[LogState]) -> None:
        """Take up the logs that the store kept: what `Store.logs` returned."""
        for state in states:
            self._open(state.topic, state)

    def _open(self, topic: str, state: LogState | None) -> TopicLog:
        opened = TopicLog(topic, state, self._store, self._channels, self._statistics)
        self._logs[topic] = opened
        if self._names is not None:
            self._names.add(topic)
        return opened

    def publish(self, topic: str, fragment: Fragment) -> asyncio.Future[None]:
        """Append a fragment to a topic's log.

        Returns:
            A future that is done once it is durable and handed to the channels. What is
            published first is done first. It fails with StorageError; or with WrongDocument,
            where this is a whole content and the log has changes.
        """
        found = self._logs.get(topic) or self._open(topic, None)
        return found.publish(fragment)

    async def delete(self, topic: str) -> None:
        """Forget a log, with all that was published before; a later one begins anew.

        Raises:
            StorageError: It could not be forgotten, and stands as it did.
        """
        found = self._logs.get(topic)
        if found is None:
            return
        await found.delete()
        if found.state is None and found.writing is None and self._logs.get(topic) is found:
            del self._logs[topic]
            if self._names is not None:
                self._names.remove(topic)

    def knows(self, topic: str) -> bool:
        """Tell whether a log is there, or is about to be."""
        return topic in self._logs

    def count(self, ranges: Sequence[Range]) -> int:
        """Count the logs of the topics in ranges that do not overlap."""
        if self._names is None:
            self._names = SortedNames(self._logs)
        return self._names.count(ranges)

    def state(self, topic: str) -> LogState | None:
        """Return the state of a log; None when nothing was ever published."""
        found = self._logs.get(topic)
        return found.state if found else None

    def states(self) -> list[LogState]:
        """Return the state of every log."""
        return [found.state for found in self._logs.values() if found.state]

    async def newest(self, *, after: tuple[Instant, str] | None, limit: int) -> list[LogState]:
        """Return the state of some logs, the newest first (`Store.newest`).

        Raises:
            StorageError: The store cannot be read.
        """
        return await self._store.newest(after=after, limit=limit)

    def position(self, topic: str) -> int:
        """Return the position of the last entry of a log; 0 when there is none."""
        state = self.state(topic)
        return state.position if state else 0

    def audience(self, topic: str) -> int:
        """Count who hears of a topic, as far as the channels know."""
        return sum(channel.subscribers(topic) for channel in self._channels)

    def recent(self, topic: str, *, after: int) -> list[LogEntry] | None:
        """Return what stands after a position, if all of that is in memory; else None."""
        found = self._logs.get(topic)
        return found.recent.after(after, None) if found else None

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[LogEntry]:
        """Read on in a log, from memory when that reaches back far enough (`Store.read`).

        Raises:
            StorageError: The store cannot be read.
        """
        found = self._logs.get(topic)
        if found is None:
            return []
        entries = found.recent.after(after, since)
        if entries is not None:
            return entries
        return await self._store.read(topic, after=after, since=since)

    async def changes(self, topic: str, *, since: Instant | None) -> list[LogEntry]:
        """Read what a log has of the time after an instant (`Store.changes`).

        Raises:
            StorageError: The store cannot be read.
        """
        return await self._store.changes(topic, since=since)

    async def waiting(self, topic: str, positions: Sequence[int]) -> list[Backlog]:
        """Tell what stands after each of some positions of a log (`Store.waiting`).

        Raises:
            StorageError: The store cannot be read.
        """
        return await self._store.waiting(topic, positions)

    async def trim(self) -> None:
        """Trim the logs that nobody publishes to.

        Raises:
            StorageError: The store cannot be written.
        """
        for topic, found in list(self._logs.items()):
            if found.state is None or found.writing is not None:
                continue  # an append trims by itself
            found.trimmed(await self._store.trim(topic))

    async def close(self) -> None:
        """Wait until everything published is durable, or failed."""
        await asyncio.gather(*(found.writing for found in self._logs.values() if found.writing))
