"""The logs of all topics while the hub runs.

Theory of operation. Each topic has at most one append under way; fragments published meanwhile wait
and are appended together next. So the state of a log is known when an append is planned, and
channels receive the entries in the order of the log. The state, the recent entries and the channels
change in one iteration of the event loop: code that compares its own position with `position` and
joins a channel without an `await` in between receives each entry once.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence

from rsnotify.format.datetimes import Instant
from rsnotify_hub.fragments.fragment import Fragment
from rsnotify_hub.log.topic_log import DeliveryChannel, TopicLog
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.interface import Backlog, LogEntry, LogState, LogStore

#: A range of names: the first name, and the name that ends it (exclusive).
Range = tuple[str, str]


class SortedNames:
    """Names in order, so that those in a range are counted without reading each."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    def add(self, name: str) -> None:
        insort(self._names, name)

    def remove(self, name: str) -> None:
        del self._names[bisect_left(self._names, name)]

    def count(self, ranges: Sequence[Range]) -> int:
        return sum(
            bisect_left(self._names, end) - bisect_left(self._names, begin) for begin, end in ranges
        )


class TopicLogs:
    """All logs. Methods that use the store raise `StorageError` if it fails.

    Args:
        store: The store.
        statistics: Counts what is published.
        nodes: Returns the number of nodes of the hub.
    """

    def __init__(
        self,
        store: LogStore,
        statistics: Statistics | None = None,
        nodes: Callable[[], int] = lambda: 1,
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._channels: Sequence[DeliveryChannel] = ()
        self._statistics = statistics or Statistics()
        self._logs: dict[str, TopicLog] = {}
        self._names: SortedNames | None = None  # created by the first `count`

    async def start(self, channels: Sequence[DeliveryChannel]) -> None:
        """Open the logs in the store, and deliver what is appended from now on."""
        self._channels = channels
        for state in await self._store.start(self):
            self._open(state.topic, state)

    def writing(self, topic: str, fragments: Sequence[Fragment]) -> None:
        self._found(topic).deliver_early(fragments)

    def appended(
        self, topic: str, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None:
        self._found(topic).appended(entries, state, replaced)

    def forgotten(self, topic: str) -> None:
        found = self._logs.get(topic)
        if found is not None:
            found.forgotten()
            self._close(found)

    def _open(self, topic: str, state: LogState | None) -> TopicLog:
        opened = TopicLog(topic, state, self._store, self._channels, self._statistics)
        self._logs[topic] = opened
        if self._names is not None:
            self._names.add(topic)
        return opened

    def publish(self, topic: str, fragment: Fragment) -> asyncio.Future[None]:
        """Append a fragment to a topic's log.

        Returns:
            A future that is done once the fragment is durable and passed on to the channels.
            Futures are done in the order of the calls. It fails with StorageError; or with
            WrongDocument if this is a whole content and the log has changes.
        """
        return self._found(topic).publish(fragment)

    def _found(self, topic: str) -> TopicLog:
        return self._logs.get(topic) or self._open(topic, None)

    async def delete(self, topic: str) -> None:
        """Delete a log with all that was published before.

        Raises:
            StorageError: It could not be deleted, and is unchanged.
        """
        found = self._logs.get(topic)
        if found is None:
            return
        await found.delete()
        self._close(found)

    def _close(self, found: TopicLog) -> None:
        """Remove a log that was deleted, unless something is published on it."""
        topic = found.topic
        if found.state is None and found.writing is None and self._logs.get(topic) is found:
            del self._logs[topic]
            if self._names is not None:
                self._names.remove(topic)

    def knows(self, topic: str) -> bool:
        """Return whether a topic has a log, or will have one shortly."""
        return topic in self._logs

    def count(self, ranges: Sequence[Range]) -> int:
        if self._names is None:
            self._names = SortedNames(self._logs)
        return self._names.count(ranges)

    def state(self, topic: str) -> LogState | None:
        found = self._logs.get(topic)
        return found.state if found else None

    def states(self) -> list[LogState]:
        return [found.state for found in self._logs.values() if found.state]

    async def newest(self, *, after: tuple[Instant, str] | None, limit: int) -> list[LogState]:
        return await self._store.newest(after=after, limit=limit)

    def position(self, topic: str) -> int:
        """Return the position of the last entry of a log; 0 if there is none."""
        found = self._logs.get(topic)
        return found.state.position if found and found.state else 0

    def audience(self, topic: str) -> int:
        """Estimate the number of subscribers of a topic: each node has about as many."""
        return self._nodes() * sum(channel.subscribers(topic) for channel in self._channels)

    def recent(self, topic: str, *, after: int) -> list[LogEntry] | None:
        """Return all entries after a position if they are in memory; None otherwise."""
        found = self._logs.get(topic)
        return found.recent.after(after, None) if found else None

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[LogEntry]:
        """Read a page of a log, from memory if possible (`Store.read`).

        What the store has written and not reported yet is left out, as it is still to be delivered.
        """
        found = self._logs.get(topic)
        if found is None:
            return []
        entries = found.recent.after(after, since)
        if entries is not None:
            return entries
        entries = await self._store.read(topic, after=after, since=since)
        end = self.position(topic)
        return [entry for entry in entries if entry.position <= end]

    async def changes(self, topic: str, *, since: Instant | None) -> list[LogEntry]:
        return await self._store.changes(topic, since=since)

    async def backlogs(self, topic: str, positions: Sequence[int]) -> list[Backlog]:
        return await self._store.backlogs(topic, positions)

    async def trim(self) -> None:
        """Trim the logs that nobody publishes to."""
        for topic, found in list(self._logs.items()):
            if found.state is None or found.writing is not None:
                continue  # an append trims by itself
            found.trimmed(await self._store.trim(topic))

    async def close(self) -> None:
        """Wait until everything published is durable, or has failed."""
        await asyncio.gather(*(found.writing for found in self._logs.values() if found.writing))
