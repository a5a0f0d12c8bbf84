"""The durable, ordered logs of all topics, and the interface of the channels that deliver them.

Theory of operation. Each topic has at most one append in progress. Fragments published in the
meantime wait, and are appended together next. The state of a log is therefore known when an append
is planned, and channels receive entries in log order. The state, the recent entries and the
channels change in one iteration of the event loop: code that compares its own position with
`position` and joins a channel without an `await` in between receives each entry once.

A fragment with a `from` contains all changes in its interval. If the log has a change in that
interval that the fragment lacks, the Source has lost that change: it was restored from a backup,
or its journal was deleted. The hub then deletes the log, and the fragment begins a new one.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import RsnotifyError, StorageError, WrongDocument
from rsnotify.format.coverage import ChangeKey, change_key, fragment_coverage
from rsnotify.format.datetimes import MICROSECOND, Instant, postponed
from rsnotify.runtime.tasks import settle
from rsnotify_hub.fragments import (
    Fragment,
    FragmentKind,
    covers_interval,
    heartbeat_interval,
    is_later,
    read_stored,
)
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.interface import LogEntry, LogMoved, LogState, LogStore

logger = logging.getLogger("rsnotify.hub.topics")

#: Maximum size of the recent entries of each log that stay in memory, in bytes.
RECENT_BYTES = 256 * 1024

_ABOUT_DOCUMENTS = (
    "this topic is about documents (Framework Notifications): publish changes of resources on "
    "another topic, or delete this one if its notifications were published by mistake"
)
_ABOUT_CHANGES = (
    "this topic is about changes of resources: publish Framework Notifications on another topic, "
    "or delete this one if its changes were published by mistake"
)

#: A range of names: the first name, and the end of the range (exclusive).
Range = tuple[str, str]


class DeliveryChannel(ABC):
    """A transport to Destinations: WebSub callbacks, live connections or a broker.

    A channel accepts all entries, and never blocks. A subscriber that is too slow lags or is
    disconnected.
    """

    @abstractmethod
    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        """Deliver entries that have just become durable: at least one, in log order."""

    def deliver_early(  # noqa: B027  (most transports only deliver what is durable)
        self, topic: str, fragments: Sequence[Fragment]
    ) -> None:
        """Deliver fragments that are still being written, if the transport permits it.

        The next call for the topic is either `deliver` with the same fragments, or `write_failed`.
        """

    def write_failed(self, topic: str) -> None:  # noqa: B027
        """Discard the fragments of `deliver_early`, so that later subscribers do not get them."""

    def subscribers(self, topic: str) -> int:
        """Return the number of subscribers to a topic; 0 if the channel does not count them."""
        return 0


class TopicLogs:
    """All logs. Methods that use the store raise `StorageError` if it fails.

    Args:
        store: The store. Callers use it directly for operations that involve no log in memory.
        nodes: Returns the number of the hub's nodes.
    """

    def __init__(
        self,
        store: LogStore,
        statistics: Statistics | None = None,
        nodes: Callable[[], int] = lambda: 1,
    ) -> None:
        self.store = store
        self._nodes = nodes
        self._channels: Sequence[DeliveryChannel] = ()
        self._statistics = statistics or Statistics()
        self._logs: dict[str, TopicLog] = {}
        self._names: SortedNames | None = None  # created by the first `count`

    async def start(self, channels: Sequence[DeliveryChannel]) -> None:
        """Open the logs in the store, and deliver every entry appended from now on."""
        self._channels = channels
        for state in await self.store.start(self):
            self._open(state.topic, state)

    def append_started(self, topic: str, fragments: Sequence[Fragment]) -> None:
        self._log_of(topic).deliver_early(fragments)

    def appended(
        self, topic: str, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None:
        self._log_of(topic).record_append(entries, state, replaced)

    def forgotten(self, topic: str) -> None:
        log = self._logs.get(topic)
        if log is not None:
            log.reset()
            self._close(log)

    def _open(self, topic: str, state: LogState | None) -> TopicLog:
        opened = TopicLog(topic, state, self.store, self._channels, self._statistics)
        self._logs[topic] = opened
        if self._names is not None:
            self._names.add(topic)
        return opened

    def publish(self, topic: str, fragment: Fragment) -> asyncio.Future[None]:
        """Append a fragment to a topic's log.

        Returns:
            A future that is done when the fragment is durable and has been passed on to the
            channels. Futures complete in the order of the calls. A future fails with StorageError
            if the store fails, or with WrongDocument if the log has fragments of another kind.
        """
        return self._log_of(topic).submit(fragment)

    async def publish_in_time(self, topic: str, fragment: Fragment) -> None:
        """Append a fragment, and wait until it is durable, within the store's time limit.

        Raises:
            StorageError: The store failed, or the fragment is not durable yet. It may still become
                durable. Publishing it again does not store it twice.
            WrongDocument: The log has fragments of another kind.
        """
        try:
            async with asyncio.timeout(self.store.answer_seconds):
                await self.publish(topic, fragment)
        except TimeoutError:
            raise StorageError(f"storing a publication on {topic} timed out") from None

    def _log_of(self, topic: str) -> TopicLog:
        return self._logs.get(topic) or self._open(topic, None)

    async def delete(self, topic: str) -> None:
        """Delete a log, including everything that was published before this call.

        Raises:
            StorageError: The log could not be deleted, and is unchanged.
        """
        log = self._logs.get(topic)
        if log is None:
            return
        await log.submit(None)
        self._close(log)

    def _close(self, log: TopicLog) -> None:
        """Remove a deleted log from memory, unless something is being published on it."""
        topic = log.topic
        if log.state is None and log.writer is None and self._logs.get(topic) is log:
            del self._logs[topic]
            if self._names is not None:
                self._names.remove(topic)

    def knows(self, topic: str) -> bool:
        """Return whether a topic has a log, or is about to have one."""
        return topic in self._logs

    def count(self, ranges: Sequence[Range]) -> int:
        if self._names is None:
            self._names = SortedNames(self._logs)
        return self._names.count(ranges)

    def state(self, topic: str) -> LogState | None:
        log = self._logs.get(topic)
        return log.state if log else None

    def states(self) -> list[LogState]:
        return [log.state for log in self._logs.values() if log.state]

    def position(self, topic: str) -> int:
        """Return the position of the last entry of a log; 0 if there is none."""
        log = self._logs.get(topic)
        return log.state.position if log and log.state else 0

    def audience(self, topic: str) -> int:
        """Estimate the number of a topic's subscribers, assuming equally many on each node."""
        return self._nodes() * sum(channel.subscribers(topic) for channel in self._channels)

    def recent(self, topic: str, *, after: int) -> list[LogEntry] | None:
        """Return all entries after a position; None if some are not in memory."""
        log = self._logs.get(topic)
        return log.recent.after(after, None) if log else None

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[LogEntry]:
        """Read a page of a log, from memory if possible (`LogStore.read`).

        Omits entries that the store has written but not yet reported, because the channels will
        deliver them.
        """
        log = self._logs.get(topic)
        if log is None:
            return []
        entries = log.recent.after(after, since)
        if entries is not None:
            return entries
        entries = await self.store.read(topic, after=after, since=since)
        end = self.position(topic)
        return [entry for entry in entries if entry.position <= end]

    async def trim(self) -> None:
        """Trim the logs that nobody publishes to."""
        for topic, log in list(self._logs.items()):
            if log.state is None or log.writer is not None:
                continue  # an append also trims
            log.record_trim(await self.store.trim(topic))

    async def close(self) -> None:
        """Wait until every published fragment is durable or has failed."""
        await asyncio.gather(*(log.writer for log in self._logs.values() if log.writer))


class SortedNames:
    """Names in order. Those in a range are counted by binary search."""

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


@dataclass(eq=False, repr=False)
class TopicLog:
    """The log of one topic. At most one task, `writer`, appends to it at a time."""

    topic: str
    state: LogState | None
    store: LogStore
    channels: Sequence[DeliveryChannel]
    statistics: Statistics

    def __post_init__(self) -> None:
        self.recent = RecentEntries(self.state)
        self.writer: asyncio.Task[None] | None = None
        # None deletes the log.
        self._waiting: list[tuple[Fragment | None, asyncio.Future[None]]] = []
        self._kind: FragmentKind | None = None  # the kind of the last fragment, if known

    def submit(self, fragment: Fragment | None) -> asyncio.Future[None]:
        """Append a fragment, or delete the log if it is None.

        The future is done when this is durable. Fragments that are submitted after a deletion begin
        a new log.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((fragment, future))
        if self.writer is None:
            self.writer = asyncio.create_task(self._write_submitted())
        return future

    def record_append(
        self, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None:
        """Record entries that this node or another one appended, and deliver them."""
        self.state = state
        if entries:
            self._kind = entries[-1].fragment.kind
        self.recent.extend(entries, replacing=replaced, first=state.first)
        self._deliver(entries)

    def deliver_early(self, fragments: Sequence[Fragment]) -> None:
        """Deliver fragments before they are durable, unless one of them may be a duplicate."""
        through = self.state.through if self.state else None
        for fragment in fragments:
            is_whole = fragment.kind is FragmentKind.WHOLE
            if is_whole or (through is not None and fragment.until <= through):
                return
            through = fragment.until
        self._call_channels(lambda channel: channel.deliver_early(self.topic, fragments))

    def reset(self) -> None:
        """Record that the log was deleted."""
        self.state = None
        self.recent = RecentEntries(None)
        self._kind = None

    def record_trim(self, state: LogState | None) -> None:
        """Record the state after a trim, unless something was published during the trim.

        `state` is None if there is no log, because of an uncertain write (`LogMoved`).
        """
        if self.writer is not None or self.state is None:
            return
        if state is None:
            self.reset()
        elif state.position == self.state.position:
            self.state = state
            self.recent.shrink(state.first)

    async def _write_submitted(self) -> None:
        try:
            while self._waiting:
                fragments, futures = self._next_batch()
                outcome: RsnotifyError | None = None
                try:
                    await (self._append(fragments) if fragments else self._delete())
                except Exception as error:
                    # Publishers need an answer, and later writes to the log must proceed.
                    outcome = self._publisher_error(error)
                    self._call_channels(lambda channel: channel.write_failed(self.topic))
                    if fragments and isinstance(outcome, StorageError):
                        self.statistics.count_store_failure(str(outcome))
                        futures += self._remove_fragments()
                for future in futures:
                    settle(future, outcome)
        finally:
            self.writer = None

    def _next_batch(self) -> tuple[list[Fragment], list[asyncio.Future[None]]]:
        """Remove the first submissions of one kind, and return their fragments and futures.

        The list of fragments is empty if the submissions delete the log.
        """
        first = _kind_of(self._waiting[0][0])
        batch = list(takewhile(lambda each: _kind_of(each[0]) is first, self._waiting))
        del self._waiting[: len(batch)]
        fragments = [fragment for fragment, _ in batch if fragment is not None]
        return fragments, [future for _, future in batch]

    def _remove_fragments(self) -> list[asyncio.Future[None]]:
        """Remove the waiting fragments, and return their futures.

        After a failed write, no fragment that was published later may be stored. Otherwise the
        Source would continue from the new end of the log and never resend the failed fragment.
        """
        futures = [future for fragment, future in self._waiting if fragment is not None]
        self._waiting = [each for each in self._waiting if each[0] is None]
        return futures

    def _publisher_error(self, error: Exception) -> RsnotifyError:
        if isinstance(error, RsnotifyError):
            return error
        logger.error("internal error: a write to the log of %s failed", self.topic, exc_info=error)
        return StorageError("internal error: the hub could not write its data")

    async def _delete(self) -> None:
        while self.state is not None:
            with suppress(LogMoved):
                await self.store.forget(self.topic, after=self.state.position)

    async def _append(self, fragments: list[Fragment]) -> None:
        while True:
            with suppress(LogMoved):  # retry with the log's current state
                added = await self._append_after(self.state, fragments)
                break
        self.statistics.duplicates += max(0, len(fragments) - added)

    async def _append_after(self, state: LogState | None, fragments: list[Fragment]) -> int:
        """Append to the log in a given state, and return the number of new entries."""
        await self._check_kind(state, fragments[0].kind)
        for fragment in fragments:
            if state is None or not overlaps(state, fragment):
                continue
            if await contradicts(fragment, self.topic, self.store):
                # No subscriber may receive both.
                logger.warning(
                    "the Source of %s has lost changes that it had published: it was restored from "
                    "a backup, or its journal was deleted. Deleting the topic's log and beginning "
                    "a new one",
                    self.topic,
                )
                await self.store.forget(self.topic, after=state.position)
                state = None
        plan = plan_append(state, fragments)
        if not plan.fragments:
            return 0
        after = state.position if state else 0
        added = await self.store.append(
            self.topic, plan.fragments, after=after, replacing=plan.replacing
        )
        self.statistics.store_failure = None
        return added

    async def _check_kind(self, state: LogState | None, kind: FragmentKind) -> None:
        """Refuse changes to resources on a topic about documents, and vice versa.

        The interval of one kind says nothing about the other. A Destination that received both
        kinds merged would assume that it knows all changes to resources in both intervals.
        """
        if state is None or state.whole or not state.kept:
            return
        if kind is FragmentKind.WHOLE:
            # For example, an error page, which is of no use to Destinations.
            raise WrongDocument("this topic is about changes: publish Change Notifications on it")
        known = self._kind
        if known is None:
            last = await self.store.read(self.topic, after=state.position - 1)
            if not last:
                return  # another node has appended or deleted; the store reports that
            known = last[0].fragment.kind
        if known is not kind:
            is_documents = known is FragmentKind.DOCUMENTS
            raise WrongDocument(_ABOUT_DOCUMENTS if is_documents else _ABOUT_CHANGES)

    def _deliver(self, entries: Sequence[LogEntry]) -> None:
        if not entries:
            return
        self.statistics.accepted += len(entries)
        self.statistics.accepted_bytes += sum(len(entry.fragment.body) for entry in entries)
        self._call_channels(lambda channel: channel.deliver(self.topic, entries))

    def _call_channels(self, call: Callable[[DeliveryChannel], None]) -> None:
        for channel in self.channels:
            try:
                call(channel)
            except Exception:
                # A bug in one channel must not affect the other channels or publishing.
                logger.exception("internal error: a delivery channel failed")


def _kind_of(submitted: Fragment | None) -> FragmentKind | None:
    return None if submitted is None else submitted.kind


class AppendPlan(Struct, frozen=True):
    """The fragments to append, and the position of the heartbeat that they replace, if any."""

    fragments: tuple[Fragment, ...]
    replacing: int | None


def plan_append(state: LogState | None, fragments: Sequence[Fragment]) -> AppendPlan:
    """Plan an append to a log.

    The plan drops a heartbeat that does not extend the log. A fragment that covers a heartbeat at
    the end of the log replaces it, so the log of a quiet topic does not grow. Any fragment replaces
    the whole content before it; in the log, the store does this. A whole content is always dated
    later than everything before it, even if the clock was set back.
    """
    appended: list[Fragment] = []
    replacing = None
    through = state.through if state else None
    for fragment in fragments:
        if fragment.heartbeat and through is not None and fragment.until <= through:
            continue
        is_whole = fragment.kind is FragmentKind.WHOLE
        if is_whole and through is not None and fragment.until <= through:
            fragment = replace(fragment, until=postponed(through, MICROSECOND))
        if appended:
            if _is_replaced(appended[-1], fragment):
                appended.pop()
        elif state is not None and state.heartbeat and covers_interval(fragment, state.heartbeat):
            replacing = state.position
        appended.append(fragment)
        through = max(through, fragment.until) if through else fragment.until
    return AppendPlan(tuple(appended), replacing)


def _is_replaced(before: Fragment, fragment: Fragment) -> bool:
    heartbeat = heartbeat_interval(before)
    is_whole = before.kind is FragmentKind.WHOLE
    return is_whole or (heartbeat is not None and covers_interval(fragment, heartbeat))


def overlaps(state: LogState, fragment: Fragment) -> bool:
    """Return whether a fragment covers an interval in which the log may have changes."""
    if state.whole or fragment.kind is FragmentKind.WHOLE or fragment.from_ is None:
        return False
    # The first change after a heartbeat covers the heartbeat's interval and nothing earlier.
    end = state.through if state.heartbeat is None else state.heartbeat.from_
    return fragment.from_ < end


async def contradicts(fragment: Fragment, topic: str, store: LogStore) -> bool:
    """Return whether the topic's log has a change that the fragment should contain but lacks."""
    entries = await store.changes(topic, since=fragment.from_)
    return await asyncio.to_thread(_lacks, fragment, entries)


def _lacks(fragment: Fragment, entries: Sequence[LogEntry]) -> bool:
    if all(entry.fragment.body == fragment.body for entry in entries):
        return False
    stated = _changes([fragment])
    known = _changes(entry.fragment for entry in entries)
    begin, until = fragment.from_, fragment.until
    assert begin is not None
    # A Source whose datetimes have whole seconds may publish the changes of one second separately.
    return any(begin < each[0] < until and each not in stated for each in known)


def _changes(fragments: Iterable[Fragment]) -> set[tuple[Instant, ChangeKey]]:
    found = set[tuple[Instant, ChangeKey]]()
    for fragment in fragments:
        if not fragment.heartbeat:
            coverage = fragment_coverage(read_stored(fragment.body), allow_framework=True)
            found.update((change.at, change_key(change)) for change in coverage.changes)
    return found


class RecentEntries:
    """The newest entries of a log, in memory."""

    def __init__(self, state: LogState | None) -> None:
        #: The position before the first entry in memory.
        self.floor = state.position if state else 0
        self._through = state.through if state else None
        self._entries: deque[LogEntry] = deque()
        self._size = 0

    def extend(self, entries: Sequence[LogEntry], *, replacing: int | None, first: int) -> None:
        """Add entries of a log whose oldest kept entry is at position `first`.

        The first of them may replace the last entry, at position `replacing`.
        """
        last = self._entries[-1] if self._entries else None
        is_whole = last is not None and last.fragment.kind is FragmentKind.WHOLE
        if entries and last and (last.position == replacing or is_whole):
            self._size -= len(self._entries.pop().fragment.body)
        self._entries.extend(entries)
        self._size += sum(len(entry.fragment.body) for entry in entries)
        self.shrink(first)

    def shrink(self, first: int) -> None:
        """Remove all entries before `first`, and the oldest ones until the size limit is met."""
        while self._entries and (self._size > RECENT_BYTES or self._entries[0].position < first):
            oldest = self._entries.popleft()
            self._size -= len(oldest.fragment.body)
            self.floor = oldest.position
            self._through = max(self._through or oldest.fragment.until, oldest.fragment.until)

    def after(self, position: int, since: Instant | None) -> list[LogEntry] | None:
        """Return all entries after a position and an instant; None if some may not be in memory."""
        if position < self.floor and not self._covers(since):
            return None
        return [
            entry
            for entry in self._entries
            if entry.position > position and (since is None or is_later(entry.fragment, since))
        ]

    def _covers(self, since: Instant | None) -> bool:
        """Return whether every entry later than an instant is in memory."""
        if since is None:
            return False
        if since == self._through:
            return since.microsecond > 0  # late changes in a whole second may be on disk only
        return self._through is None or since > self._through
