"""Filtered topics of live subscribers.

The hub filters a topic once for all subscribers with the same selection (`SelectionGroup`).
Filtering takes time as long as the group has a member, so the number of groups per topic is
limited. No client can use up this limit: it may create another group only while more groups are
left than it already owns.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.access.client_addresses import client_network, is_loopback
from rsnotify_hub.delivery_channel import DeliveryChannel
from rsnotify_hub.filtering import FilterCache, FilteredReader, TopicSelection, join_empty
from rsnotify_hub.live.subscribers import LiveChannel
from rsnotify_hub.log.topic_log import TopicLogs
from rsnotify_hub.store.interface import LogEntry

logger = logging.getLogger("rsnotify.hub.live")

#: Delay before a group retries after a failure, in seconds.
_RETRY_SECONDS = 1.0


@dataclass(eq=False, repr=False)
class SelectionGroup:
    """The subscribers with the same selection of a topic.

    Theory of operation. The log is the group's queue, and the group has a position in it. The hub
    filters the entries after that position and sends them to all members, like the entries of a
    topic. Empty fragments, which the reader holds back for a moment, are after that position. A new
    subscriber may already have a part of the log, so it replays the rest separately. It goes live
    only when it has everything that the log contained when it connected.
    """

    selection: TopicSelection
    topics: TopicLogs
    filter_cache: FilterCache
    live: LiveChannel

    def __post_init__(self) -> None:
        position = self.topics.position(self.selection.topic)
        self._reader = FilteredReader(self.selection, self.topics, self.filter_cache, position)
        self._clients: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()

    @property
    def owner(self) -> str | None:
        """The client of the oldest member; None if the group is empty."""
        return next(iter(self._clients), None)

    def enter(self, client: str) -> None:
        self._clients[client] += 1

    def leave(self, client: str) -> None:
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]

    @property
    def end(self) -> int:
        """The position in the log up to which the live members have received everything."""
        return self._reader.position

    async def wait_beyond(self, position: int) -> None:
        """Wait for the group's next read, unless `end` is already past a position."""
        if self.end <= position:
            await self._moved.wait()

    async def read(self, *, after: int, since: Instant | None) -> list[LogEntry]:
        """Return the filtered entries of the log up to `end`."""
        entries = await self.topics.read(self.selection.topic, after=after, since=since)
        wanted = [entry for entry in entries if entry.position <= self.end]
        return join_empty(await self.filter_cache.filtered(self.selection, wanted, old=True))

    def wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._reader.has_more:
                if filtered := await self._reader.next():
                    self.live.deliver(self.selection.key, filtered)
                # Wake only the tasks that are waiting now.
                self._moved.set()
                self._moved.clear()
            if self._reader.holds:
                self._wake_in(self._reader.wait)
        except StorageError as error:
            logger.error("cannot filter %s; retrying: %s", self.selection.topic, error)
            self._wake_in(_RETRY_SECONDS)
        except Exception:
            # An internal error must not end the subscriptions of the group.
            logger.exception("internal error: cannot filter %s; retrying", self.selection.topic)
            self._wake_in(_RETRY_SECONDS)
        finally:
            self._task = None

    def _wake_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.wake)


@dataclass(eq=False, repr=False)
class SelectionGroups(DeliveryChannel):
    """The selection groups of all topics, at most `limit` per topic."""

    topics: TopicLogs
    live: LiveChannel
    filter_cache: FilterCache
    limit: int

    def __post_init__(self) -> None:
        self._groups: dict[str, dict[TopicSelection, SelectionGroup]] = {}

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        for group in self._groups.get(topic, {}).values():
            group.wake()

    def enter(self, selection: TopicSelection, address: str) -> SelectionGroup | None:
        """Add a subscriber to the group of a selection.

        Returns:
            The group; None if there are too many groups, in which case the subscriber receives the
            whole topic.
        """
        groups = self._groups.get(selection.topic, {})
        group = groups.get(selection)
        if group is None:
            if not self._may_create(groups.values(), address):
                return None
            group = SelectionGroup(selection, self.topics, self.filter_cache, self.live)
            self._groups.setdefault(selection.topic, {})[selection] = group
        group.enter(client_network(address))
        return group

    def _may_create(self, groups: Iterable[SelectionGroup], address: str) -> bool:
        owners = [group.owner for group in groups]
        # A loopback address may belong to a proxy for many clients.
        owned = 0 if is_loopback(address) else owners.count(client_network(address))
        return owned < self.limit - len(owners)

    def leave(self, group: SelectionGroup, address: str) -> None:
        group.leave(client_network(address))
        if group.owner is not None:
            return
        group.close()
        groups = self._groups[group.selection.topic]
        del groups[group.selection]
        if not groups:
            del self._groups[group.selection.topic]

    def close(self) -> None:
        for groups in self._groups.values():
            for group in groups.values():
                group.close()
