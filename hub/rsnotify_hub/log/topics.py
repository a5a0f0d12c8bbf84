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
import logging
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from rsnotify.datetimes import Instant
from rsnotify.errors import StorageError
from rsnotify_hub.log.channel import Channel
from rsnotify_hub.log.fragments import Fragment, covers, interval_of
from rsnotify_hub.log.store import Appended, Entry, LogState, Store

log = logging.getLogger("rsnotify.hub.topics")

#: How much of each log stays in memory, for those who are nearly up to date.
RECENT_BYTES = 256 * 1024


class Plan(Struct, frozen=True):
    """What to append.

    Args:
        fragments: What goes into the log.
        replacing: The position of the heartbeat at the log's end that gives way, if it does.
    """

    fragments: tuple[Fragment, ...]
    replacing: int | None


def plan(state: LogState | None, fragments: Sequence[Fragment]) -> Plan:
    """Decide what of some fragments to append to a log.

    A heartbeat that reaches no further than the log is dropped; one at the end gives way to
    what covers it, so that a quiet topic's log does not grow.

    Args:
        state: The log; None when there is none yet.
        fragments: What was published, in order.
    """
    kept: list[Fragment] = []
    replacing = None
    through = state.through if state else None
    for fragment in fragments:
        if fragment.heartbeat and through is not None and fragment.until <= through:
            continue
        if kept:
            before = interval_of(kept[-1])
            if before is not None and covers(fragment, before):
                kept.pop()
        elif state is not None and state.heartbeat and covers(fragment, state.heartbeat):
            replacing = state.position
        kept.append(fragment)
        through = max(through, fragment.until) if through else fragment.until
    return Plan(tuple(kept), replacing)


class _Recent:
    """The last entries of a log, in memory: all after `floor`, which reached `through`."""

    def __init__(self, state: LogState | None) -> None:
        self.floor = state.position if state else 0
        self._through = state.through if state else None
        self._entries: deque[Entry] = deque()
        self._size = 0

    def extend(self, entries: Sequence[Entry], *, replacing: int | None, first: int) -> None:
        if self._entries and self._entries[-1].position == replacing:
            self._size -= len(self._entries.pop().fragment.body)
        self._entries.extend(entries)
        self._size += sum(len(entry.fragment.body) for entry in entries)
        self.shrink(first)

    def shrink(self, first: int) -> None:
        """Forget what is too much, and what stands before `first` in the log."""
        while self._entries and (self._size > RECENT_BYTES or self._entries[0].position < first):
            oldest = self._entries.popleft()
            self._size -= len(oldest.fragment.body)
            self.floor = oldest.position
            self._through = max(self._through or oldest.fragment.until, oldest.fragment.until)

    def after(self, position: int, since: Instant | None) -> list[Entry] | None:
        """Return all after a position and an instant; None when they reach back further."""
        reaches = since is not None and (self._through is None or since >= self._through)
        if position < self.floor and not reaches:
            return None
        return [
            entry
            for entry in self._entries
            if entry.position > position and (since is None or entry.fragment.until > since)
        ]


class _Log:
    """One topic's log."""

    def __init__(
        self, topic: str, state: LogState | None, store: Store, channels: Sequence[Channel]
    ) -> None:
        self._topic = topic
        self.state = state
        self.recent = _Recent(state)
        self._store = store
        self._channels = channels
        self._waiting: list[tuple[Fragment, asyncio.Future[None]]] = []
        self.appending: asyncio.Task[None] | None = None

    def publish(self, fragment: Fragment) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((fragment, future))
        if self.appending is None:
            self.appending = asyncio.create_task(self._append_all())
        return future

    async def _append_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._append([fragment for fragment, _ in batch], [f for _, f in batch])
        finally:
            self.appending = None

    async def _append(self, fragments: list[Fragment], futures: list[asyncio.Future[None]]) -> None:
        planned = plan(self.state, fragments)
        try:
            if planned.fragments:
                self._appended(
                    planned,
                    await self._store.append(
                        self._topic, planned.fragments, replacing=planned.replacing
                    ),
                )
        except Exception as error:
            # Whoever publishes must get an answer, and the log must go on.
            if not isinstance(error, StorageError):
                log.exception("what was published on %s could not be kept", self._topic)
            for future in futures:
                if not future.done():
                    future.set_exception(StorageError(str(error)))
            return
        for future in futures:
            if not future.done():  # else whoever published has gone
                future.set_result(None)

    def _appended(self, planned: Plan, appended: Appended) -> None:
        entries = [
            Entry(position, fragment)
            for position, fragment in zip(appended.positions, planned.fragments, strict=True)
            if position is not None
        ]
        self.state = appended.state
        self.recent.extend(entries, replacing=planned.replacing, first=appended.state.first)
        if not entries:
            return
        for channel in self._channels:
            try:
                channel.deliver(self._topic, entries)
            except Exception:
                # One channel's fault must not stop the others, nor publishing.
                log.exception("a channel failed to take what was published")


class Topics:
    """Every log.

    Args:
        store: What keeps them.
        channels: The ways out.
    """

    def __init__(self, store: Store, channels: Sequence[Channel]) -> None:
        self._store = store
        self._channels = channels
        self._logs: dict[str, _Log] = {}

    def start(self, states: Iterable[LogState]) -> None:
        """Take up the logs that the store kept: what `Store.logs` returned."""
        for state in states:
            self._logs[state.topic] = _Log(state.topic, state, self._store, self._channels)

    def publish(self, topic: str, fragment: Fragment) -> asyncio.Future[None]:
        """Append a fragment to a topic's log.

        Returns:
            A future that is done once it is durable and handed to the channels, or that
            fails with StorageError. What is published first is done first.
        """
        if topic not in self._logs:
            self._logs[topic] = _Log(topic, None, self._store, self._channels)
        return self._logs[topic].publish(fragment)

    def state(self, topic: str) -> LogState | None:
        """Return the state of a log; None when nothing was ever published."""
        found = self._logs.get(topic)
        return found.state if found else None

    def states(self) -> list[LogState]:
        """Return the state of every log."""
        return [found.state for found in self._logs.values() if found.state]

    def position(self, topic: str) -> int:
        """Return the position of the last entry of a log; 0 when there is none."""
        state = self.state(topic)
        return state.position if state else 0

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[Entry]:
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

    async def trim(self) -> None:
        """Trim the logs that nobody publishes to.

        Raises:
            StorageError: The store cannot be written.
        """
        for topic, found in list(self._logs.items()):
            if found.state is None or found.appending is not None:
                continue  # an append trims by itself
            state = await self._store.trim(topic)
            if found.appending is None and found.state.position == state.position:
                found.state = state
                found.recent.shrink(state.first)

    async def close(self) -> None:
        """Wait until everything published is durable, or failed."""
        await asyncio.gather(*(found.appending for found in self._logs.values() if found.appending))
