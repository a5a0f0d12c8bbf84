"""The live subscribers of each topic, over WebSocket and as event streams.

Theory of operation. A subscriber first *replays* the log (`Replays`). It goes *live* in the same
iteration of the event loop in which its position reaches the end of the log, so that it misses
nothing in between. All live subscribers of a topic that use the same encoding form an `Audience`,
and share the encoded bytes of each commit.

Most subscribers are *quick*: everything sent to them has left their transport, and the hub writes
new data to their sockets at once. A *slow* subscriber has data waiting in its transport. Until that
data is gone, new data waits in the subscriber's own queue, which references the shared bytes. The
hub cuts off a subscriber whose queue grows too long. A slow subscriber therefore costs the others
nothing, and a quick one costs a write. A connection that receives many topics has a single queue
for all of them, and is never quick, because moving each of its topics between quick and slow would
be expensive.

The hub sends a fragment to live subscribers while it is still writing the fragment to the log. This
is safe because the Source has the fragment on its disk, and publishes it again unless the hub
acknowledges it. If the write fails, or the hub stops before it completes, subscribers receive the
fragment twice, and Destinations ignore the duplicate. A subscriber that goes live during the write
receives the fragment at that moment, because its replay did not include it.

An encoding that parses fragments would block the event loop on large ones. Its subscribers do not
receive large fragments early. When these are durable, the subscribers leave the audience and replay
them, which encodes them in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.selection import EVERYTHING, PushSelection
from rsnotify_hub.access.client_addresses import client_network, is_loopback
from rsnotify_hub.config.configuration import WebSocketConfig
from rsnotify_hub.filtering import FilterCache, FilteredReader, TopicSelection, join_empty
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.live.connections import ConnectionRole, LiveConnection, SendQueue
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import LogEntry
from rsnotify_hub.topic_log import DeliveryChannel, TopicLogs

logger = logging.getLogger("rsnotify.hub.live")

#: Seconds that a subscriber has to read the data in its transport after the hub cut it off.
CUT_OFF_SECONDS = 10.0
_SOCKETS_ARE_FILES = os.name == "posix"


class LiveChannel(DeliveryChannel):
    """The live subscribers of every topic."""

    def __init__(self, configuration: WebSocketConfig, statistics: Statistics) -> None:
        self._max_bytes = configuration.queue_bytes
        self._max_frames = configuration.queue_frames
        self._statistics = statistics
        self._audiences: dict[str, dict[Encoding, Audience]] = {}
        # The fragments of each topic that were sent early and are still being written.
        self._early: dict[str, Sequence[Fragment]] = {}
        self._open: Counter[tuple[str, DeliveryTransport]] = Counter()

    def deliver_early(self, topic: str, fragments: Sequence[Fragment]) -> None:
        self._early[topic] = fragments
        for audience in self._audiences_of(topic):
            self._send(audience, _sent_early(fragments, audience.encoding))

    def write_failed(self, topic: str) -> None:
        self._early.pop(topic, None)

    def deliver(self, key: str, entries: Sequence[LogEntry]) -> None:
        early = self._early.pop(key, ())
        for audience in self._audiences_of(key):
            sent = {id(fragment) for fragment in _sent_early(early, audience.encoding)}
            fragments = [each.fragment for each in entries if id(each.fragment) not in sent]
            if audience.encoding.needs_thread(fragments):
                self._restart_replays(audience, entries[0].position - 1)
            else:
                self._send(audience, fragments)

    def _audiences_of(self, key: str) -> Sequence[Audience]:
        return tuple(self._audiences.get(key, {}).values())

    def _send(self, audience: Audience, fragments: Sequence[Fragment]) -> None:
        if not fragments:
            return
        data = audience.encoding.encode(fragments)
        count = len(fragments)
        # Subscribers that become slow during the write below already have the data.
        slow = list(audience.slow)
        self.count_delivered(audience.encoding.transport, data, count, len(audience))
        audience.sent += count
        audience.write(data)
        for subscriber in slow:
            self._queue(subscriber, data, count)

    def _queue(self, subscriber: LiveSubscriber, data: bytes, count: int) -> None:
        connection = subscriber.connection
        if not connection.is_paused:
            connection.send(data)
            return
        if connection.queue is None:
            connection.queue = SendQueue(self._max_bytes, self._max_frames)
        ahead = connection.transport.get_write_buffer_size()
        if not connection.queue.put(data, count, ahead=ahead):
            logger.warning("cut off a subscriber of %s that is too slow", subscriber.topic)
            self._statistics.count(subscriber.encoding.transport, DeliveryOutcome.CUT_OFF)
            connection.cut_off(seconds=CUT_OFF_SECONDS)

    def _restart_replays(self, audience: Audience, position: int) -> None:
        """Remove all members, which replay the log after a position and then rejoin."""
        for subscriber in (*audience.quick, *audience.slow):
            self._remove_from_audience(subscriber)
            subscriber.connection.send_queue(everything=True)
            subscriber.replay_after(subscriber, position)

    def count_delivered(
        self, transport: DeliveryTransport, data: bytes, count: int, subscribers: int = 1
    ) -> None:
        self._statistics.deliveries[transport, DeliveryOutcome.DELIVERED] += count * subscribers
        self._statistics.delivered_bytes[transport] += len(data) * subscribers

    def subscribers(self, topic: str) -> int:
        """Return the number of subscribers to a topic, including those that are replaying."""
        return sum(self.subscribers_over(topic, transport) for transport in DeliveryTransport)

    def subscribers_over(self, topic: str, transport: DeliveryTransport) -> int:
        return self._open[topic, transport]

    def enter(self, subscriber: LiveSubscriber) -> None:
        """Count a subscriber whose replay is about to start."""
        self._open[subscriber.topic, subscriber.encoding.transport] += 1

    def join(self, subscriber: LiveSubscriber) -> None:
        """Make a subscriber live after it has received the log up to its end."""
        key, encoding = subscriber.key, subscriber.encoding
        if early := _sent_early(self._early.get(key, ()), encoding):
            data = encoding.encode(early)
            subscriber.connection.send(data)
            self.count_delivered(encoding.transport, data, len(early))
            subscriber.sent += len(early)
        audiences = self._audiences.setdefault(key, {})
        audiences.setdefault(encoding, Audience(encoding)).put(subscriber)

    def leave(self, subscriber: LiveSubscriber) -> None:
        self._remove_from_audience(subscriber)
        count_of = subscriber.topic, subscriber.encoding.transport
        self._open[count_of] -= 1
        if not self._open[count_of]:
            del self._open[count_of]

    def _remove_from_audience(self, subscriber: LiveSubscriber) -> None:
        audiences = self._audiences.get(subscriber.key, {})
        if audience := audiences.get(subscriber.encoding):
            audience.remove(subscriber)
            if not audience:
                del audiences[subscriber.encoding]
        if not audiences:
            self._audiences.pop(subscriber.key, None)

    def sent_live(self, subscriber: LiveSubscriber) -> int:
        """Return the number of fragments sent to a subscriber since it last went live."""
        audience = self._audiences.get(subscriber.key, {}).get(subscriber.encoding)
        return audience.sent_to(subscriber) if audience is not None else 0

    def reclassify(self, subscriber: LiveSubscriber) -> None:
        """Reclassify a live subscriber as quick or slow. Do nothing if it is not live."""
        audience = self._audiences.get(subscriber.key, {}).get(subscriber.encoding)
        if audience is not None and (subscriber in audience.quick or subscriber in audience.slow):
            audience.put(subscriber)


def _sent_early(fragments: Sequence[Fragment], encoding: Encoding) -> Sequence[Fragment]:
    """Return the fragments that are sent early in an encoding: all of them, or none."""
    return () if encoding.needs_thread(fragments) else fragments


class Audience:
    """The live subscribers of one topic that use the same encoding.

    The audience writes directly to the sockets of quick members, which is 10% faster than through
    the transport. The transport handles the data that a socket does not accept, and all errors. A
    member must be removed before its socket is closed; `LiveConnection` reports the end of a
    connection before that.

    Attributes:
        quick: The quick members, and the file descriptors of their sockets.
        sent: The number of fragments sent to the audience. Counting per member would require an
            update of every member for each fragment.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.quick: dict[LiveSubscriber, int] = {}
        self.slow: set[LiveSubscriber] = set()
        self.sent = 0

    def __len__(self) -> int:
        return len(self.quick) + len(self.slow)

    def put(self, member: LiveSubscriber) -> None:
        """Add a member, or reclassify it as quick or slow."""
        self.remove(member)
        member.joined_at = self.sent
        if member.connection.is_paused or member.connection.replay_lock is not None:
            self.slow.add(member)
        else:
            self.quick[member] = _descriptor_of(member.connection.transport)

    def sent_to(self, member: LiveSubscriber) -> int:
        is_member = member in self.quick or member in self.slow
        return self.sent - member.joined_at if is_member else 0

    def remove(self, member: LiveSubscriber) -> None:
        member.sent += self.sent_to(member)
        self.slow.discard(member)
        self.quick.pop(member, None)

    def write(self, data: bytes) -> None:
        """Write to all quick members. A member that this makes slow still gets all of the data."""
        size, write = len(data), os.write
        for member, descriptor in tuple(self.quick.items()):
            try:
                sent = write(descriptor, data)
            except OSError:
                sent = 0
            if sent != size:
                _write_rest(member.connection, data, sent)


def _descriptor_of(transport: asyncio.BaseTransport) -> int:
    """Return the file descriptor of a transport's socket; -1 where sockets are not files."""
    socket = transport.get_extra_info("socket") if _SOCKETS_ARE_FILES else None
    return -1 if socket is None else socket.fileno()


def _write_rest(connection: LiveConnection, data: bytes, sent: int) -> None:
    try:
        connection.transport.write(memoryview(data)[sent:])
    except Exception:
        # The transport has failed and will report that. Other members must still get the data.
        logger.debug("cannot write to a subscriber", exc_info=True)


class Encoding(ABC):
    """Encodes fragments for a transport."""

    def __init__(self, transport: DeliveryTransport) -> None:
        self.transport = transport

    @abstractmethod
    def encode(self, fragments: Sequence[Fragment]) -> bytes:
        """Return the bytes that all subscribers share."""

    def needs_thread(self, fragments: Sequence[Fragment]) -> bool:
        """Return whether `encode` would block the event loop."""
        return False

    async def encode_page(self, fragments: Sequence[Fragment]) -> bytes:
        """Encode fragments read from a log, in a thread if necessary."""
        return self.encode(fragments)


class Opening(Struct, frozen=True):
    """What a subscriber receives before its replay.

    Args:
        since: The instant that the subscriber requested; None for live only.
        select: The selection that the hub granted.
        begins: The start of the log, if it is after `since`. The changes in between are missing.
    """

    since: Instant | None
    select: PushSelection
    through: Instant | None
    audience: int
    begins: Instant | None


@dataclass(slots=True, eq=False, repr=False)
class LiveSubscriber(ConnectionRole):
    """A connection that receives a topic.

    Attributes:
        key: The key of the selection, or the topic if the subscriber receives all of it.
        cancel_replay: Cancels the replay; None if the subscriber is live.
        replay_after: Starts a replay after a position.
        position: The position in the log that the replay has reached.
        sent: The number of fragments sent to the subscriber before it last went live.
        joined_at: The value of the audience's `sent` when the subscriber last joined.
    """

    connection: LiveConnection
    topic: str
    channel: LiveChannel
    encoding: Encoding
    key: str = ""
    leave: Callable[[], None] = lambda: None
    cancel_replay: Callable[[], object] | None = None
    replay_after: Callable[[LiveSubscriber, int], None] = lambda subscriber, position: None
    position: int = 0
    sent: int = 0
    joined_at: int = 0

    def __post_init__(self) -> None:
        self.key = self.key or self.topic

    def receives(self) -> bool:
        return True

    def topic_roles(self) -> Collection[LiveSubscriber]:
        return (self,)

    @property
    def passed(self) -> int:
        return self.sent + self.channel.sent_live(self)

    def replays(self) -> bool:
        return self.cancel_replay is not None

    def remaining(self, end: int) -> int:
        return max(0, end - self.position) if self.replays() else 0

    @abstractmethod
    def opened(self, opening: Opening) -> None:
        """Send the opening."""

    @abstractmethod
    def refused(self, refusal: Refusal) -> None:
        """Close, and send the reason if the transport supports that."""

    @abstractmethod
    def failed(self) -> None:
        """Close after an internal error of the hub."""

    def paused(self) -> None:
        self.channel.reclassify(self)

    resumed = paused

    def lost(self) -> None:
        if self.cancel_replay is not None:
            self.cancel_replay()
        self.channel.leave(self)
        self.leave()


_Work = Callable[[], Coroutine[Any, Any, None]]


class Replays:
    """Replays logs to new subscribers, and then makes them live."""

    def __init__(self, topics: TopicLogs) -> None:
        self._topics = topics
        self._tasks: set[asyncio.Task[None]] = set()
        self._replay_after = self._start_after  # one bound method shared by all subscribers

    def start(
        self, subscriber: LiveSubscriber, since: Instant | None, group: SelectionGroup | None = None
    ) -> None:
        """Send a subscriber its opening and the log since an instant, then make it live.

        With `group`, the subscriber receives that group's filtered topic.
        """
        subscriber.channel.enter(subscriber)
        subscriber.replay_after = self._replay_after
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
        # Replay everything that is in the log now, even entries that the group has yet to send to
        # its live members, because only a replay omits the entries up to `since`.
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
                    logger.error("cannot replay %s: %s", topic, error)
                    raise Refusal(Code.UNAVAILABLE, "the hub cannot read its log") from None
                data = await encoding.encode_page([entry.fragment for entry in entries])
                connection.send(data)
                subscriber.channel.count_delivered(encoding.transport, data, len(entries))
                subscriber.sent += len(entries)
                await connection.drain()
            position = entries[-1].position if entries else max(position, end)
            subscriber.position = position
        subscriber.cancel_replay = None
        if not connection.has_ended:
            subscriber.channel.join(subscriber)

    def _end(self, topic: str, group: SelectionGroup | None) -> int:
        """Return the position up to which live subscribers have received everything."""
        return self._topics.position(topic) if group is None else group.end


async def _guarded(subscriber: LiveSubscriber, work: _Work) -> None:
    try:
        await work()
    except Refusal as refusal:
        subscriber.refused(refusal)
    except Exception:
        # Close only this connection. Its client will reconnect.
        logger.exception("internal error: a connection failed")
        subscriber.failed()


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
    """The selection groups of all topics, at most `limit` per topic.

    The hub filters a topic once for all subscribers with the same selection. Filtering takes time
    as long as the group has a member, so the number of groups is limited. No client can use up this
    limit: it may create another group only while more groups are left than it already owns.
    """

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
