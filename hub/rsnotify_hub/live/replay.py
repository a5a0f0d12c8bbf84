"""The replay of the log to a new subscriber, and the selections that subscribers requested.

A new subscriber reads the log from its instant on, as fast as it can, and then joins the live
subscribers (`Replays`). It reads the whole log, or the part that a selection admits, which is
filtered once for all subscribers that requested it (`SelectionGroup`). A group costs the hub
filtering as long as it has a member, so the number of groups of a topic is limited. No client can
use up that number: it may create another group only while more are left than it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.selection import EVERYTHING
from rsnotify_hub.access.limits import client_network, is_loopback
from rsnotify_hub.filtering import FilterCache, FilteredReader, TopicSelection, join_empty
from rsnotify_hub.live.subscribers import LiveChannel, LiveSubscriber, Opening
from rsnotify_hub.log.topic_log import DeliveryChannel, TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.interface import LogEntry

log = logging.getLogger("rsnotify.hub.live")

#: How long a group waits after a failure, in seconds.
_RETRY_SECONDS = 1.0

_Work = Callable[[], Coroutine[Any, Any, None]]


class Replays:
    """Sends logs to new subscribers, and makes them live."""

    def __init__(self, topics: TopicLogs) -> None:
        self._topics = topics
        self._tasks: set[asyncio.Task[None]] = set()
        self._again = self._start_after  # one object for all subscribers

    def start(
        self,
        subscriber: LiveSubscriber,
        since: Instant | None,
        group: SelectionGroup | None = None,
    ) -> None:
        """Send a subscriber the state of its topic and the log since an instant; make it live.

        `group` is the part of the log that it was granted; None for all of it.
        """
        subscriber.channel.enter(subscriber)
        subscriber.replay_after = self._again
        self._run(subscriber, partial(self._open, subscriber, since, group))

    def _start_after(self, subscriber: LiveSubscriber, position: int) -> None:
        self._run(subscriber, partial(self._replay, subscriber, None, None, position))

    def _run(self, subscriber: LiveSubscriber, work: _Work) -> None:
        task = asyncio.create_task(_guarded(subscriber, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        subscriber.cancel_replay = task.cancel

    async def _open(
        self, subscriber: LiveSubscriber, since: Instant | None, group: SelectionGroup | None
    ) -> None:
        topic = subscriber.topic
        state = self._topics.state(topic)
        has_gap = state is not None and since is not None and since < state.begins
        subscriber.opened(
            Opening(
                topic,
                since,
                group.selection.select if group else EVERYTHING,
                through=state.through if state else None,
                audience=self._topics.audience(topic),
                begins=state.begins if state and has_gap else None,
            )
        )
        position = 0 if since is not None else self._topics.position(topic)
        await self._replay(subscriber, since, group, position)

    async def _replay(
        self,
        subscriber: LiveSubscriber,
        since: Instant | None,
        group: SelectionGroup | None,
        position: int,
    ) -> None:
        connection, encoding, topic = subscriber.connection, subscriber.encoding, subscriber.topic
        newest = self._topics.position(topic)
        subscriber.position = position
        await connection.drain()
        # Everything that is in the log now is sent here, even if live subscribers still wait for
        # it: only here are entries up to `since` left out.
        while position < (end := self._end(topic, group)) or (group and group.end < newest):
            if group is not None:
                await group.wait_beyond(position)
            async with connection.replay_lock or nullcontext():
                try:
                    if group is None:
                        entries = await self._topics.read(topic, after=position, since=since)
                    else:
                        entries = await group.read(after=position, since=since)
                except StorageError as error:
                    log.error("a replay of %s failed: %s", topic, error)
                    raise Refusal(Code.UNAVAILABLE, "the hub cannot read its log") from None
                data = await encoding.encode_page([entry.fragment for entry in entries])
                connection.send(data)
                subscriber.channel.count(encoding.transport, data, len(entries))
                subscriber.sent += len(entries)
                await connection.drain()
            position = entries[-1].position if entries else max(position, end)
            subscriber.position = position
        subscriber.cancel_replay = None
        if not connection.has_ended:
            subscriber.channel.join(subscriber)

    def _end(self, topic: str, group: SelectionGroup | None) -> int:
        """Return the position up to which live subscribers have everything."""
        return self._topics.position(topic) if group is None else group.end


async def _guarded(subscriber: LiveSubscriber, work: _Work) -> None:
    try:
        await work()
    except Refusal as refusal:
        subscriber.refused(refusal)
    except Exception:
        # After a fault of the hub, the client reconnects, and the others are not affected.
        log.exception("a connection failed")
        subscriber.failed()


@dataclass(eq=False, repr=False)
class SelectionGroup:
    """The subscribers of one selection, for which fragments are filtered once.

    Theory of operation. The log is the group's queue: the group has a position in it. Entries after
    that position are filtered and sent to all members at once, like those of a topic. Empty
    fragments, which are held back for a moment, are after that position. A new subscriber joins the
    audience only once it has everything that the log had when it came: it may know a part of that
    already, and replays the rest by itself.
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
        """The client whose group it is: its oldest member; None if it is empty."""
        return next(iter(self._clients), None)

    def enter(self, client: str) -> None:
        self._clients[client] += 1

    def leave(self, client: str) -> None:
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]

    @property
    def end(self) -> int:
        """The position in the log up to which the live members have everything."""
        return self._reader.position

    async def wait_beyond(self, position: int) -> None:
        """Wait until `end` is beyond a position, or has not moved."""
        if self.end <= position:
            await self._moved.wait()

    async def read(self, *, after: int, since: Instant | None) -> list[LogEntry]:
        """Read the filtered log, up to `end`."""
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
                # Wake those that wait now, and nobody later.
                self._moved.set()
                self._moved.clear()
            if self._reader.holds:
                self._wake_in(self._reader.wait)
        except StorageError as error:
            log.error("a part of %s cannot be sent: %s", self.selection.topic, error)
            self._wake_in(_RETRY_SECONDS)
        except Exception:
            # A fault of the hub must not end the subscriptions of the group.
            log.exception("a part of %s could not be sent", self.selection.topic)
            self._wake_in(_RETRY_SECONDS)
        finally:
            self._task = None

    def _wake_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.wake)


@dataclass(eq=False, repr=False)
class SelectionGroups(DeliveryChannel):
    """The groups of every topic, at most `limit` of each."""

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
            The group; None if the topic or the client has too many, so that the subscriber gets all
            of the topic.
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
        # A loopback address may be that of a proxy for many clients.
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
