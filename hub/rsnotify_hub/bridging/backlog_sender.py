"""Sends to a broker what it has not received yet, while one connection lasts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

from rsnotify.errors import StorageError, Unavailable
from rsnotify.runtime.refusals import ConnectionRefused
from rsnotify.runtime.tasks import cancel
from rsnotify.sync.retry import Retry
from rsnotify_hub.bridging.broker_cursors import BrokerCursors
from rsnotify_hub.filtering.filter_cache import FilterCache
from rsnotify_hub.filtering.filtered_reader import FilteredReader
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.fragments.fragment import MERGED_CONTENT_TYPE
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import LogEntry, NotOwner

#: Sends a fragment of a selection with a content type; the future is done when the broker has
#: acknowledged it. Raises `ConnectionRefused`, or Unavailable if the connection is lost.
Publish = Callable[[TopicSelection, bytes, str], Awaitable[asyncio.Future[None]]]

#: How many selections are read and sent at the same time.
_CONCURRENCY = 64


@dataclass(eq=False, repr=False)
class BacklogSender:
    """Sends each selection in the order of its log, with many messages in flight.

    Args:
        transport: The transport by which deliveries are counted.
        publish: Sends to the broker.
        selections: Returns the selections of a topic that are sent.
    """

    transport: DeliveryTransport
    publish: Publish
    selections: Callable[[str], Sequence[TopicSelection]]
    topics: TopicLogs
    cursors: BrokerCursors
    filters: FilterCache
    statistics: Statistics
    retry: Retry

    def __post_init__(self) -> None:
        self._log = logging.getLogger(f"rsnotify.hub.{self.transport}")
        self._random = Random()
        self._slots = asyncio.Semaphore(_CONCURRENCY)
        self._tasks: dict[TopicSelection, asyncio.Task[None]] = {}
        self._ending: set[TopicSelection] = set()
        self._readers: dict[TopicSelection, FilteredReader] = {}
        self._timers: dict[TopicSelection, asyncio.TimerHandle] = {}

    def wake_all(self) -> None:
        for state in self.topics.states():
            self.wake(state.topic)

    def wake(self, topic: str) -> None:
        """Send the backlog of a topic and its parts, unless that is under way."""
        for selection in self.selections(topic):
            self._wake(selection)

    def _wake(self, selection: TopicSelection) -> None:
        if timer := self._timers.pop(selection, None):
            timer.cancel()
        if selection in self._tasks or selection in self._ending:
            return
        if self._has_more(selection):
            self._tasks[selection] = asyncio.create_task(self._send(selection))
        else:
            self._wake_later(selection)

    def _has_more(self, selection: TopicSelection) -> bool:
        reader = self._readers.get(selection)
        return reader.has_more if reader else self.cursors.is_behind(selection)

    async def _send(self, selection: TopicSelection) -> None:
        failures = 0
        try:
            while self._has_more(selection):
                try:
                    async with self._slots:
                        await self._send_page(selection)
                    failures = 0
                except NotOwner:
                    self._readers.pop(selection, None)  # reading restarts at the cursor
                    await asyncio.sleep(self.retry.delay(1, self._random))
                except (ConnectionRefused, StorageError) as error:
                    failures += 1
                    self._readers.pop(selection, None)
                    await self._wait(selection.topic, error, failures)
            self._wake_later(selection)
        except Unavailable:
            pass  # the connection is lost: its owner reports that, and connects again
        except Exception:
            self._readers.pop(selection, None)  # its last entries may not have been sent
            self._log.exception("sending %s to the broker failed", selection.topic)
        finally:
            self._tasks.pop(selection, None)

    def _wake_later(self, selection: TopicSelection) -> None:
        reader = self._readers.get(selection)
        if reader is not None and reader.holds:
            loop = asyncio.get_running_loop()
            self._timers[selection] = loop.call_later(reader.wait, self._wake, selection)

    async def _wait(
        self, topic: str, error: ConnectionRefused | StorageError, failures: int
    ) -> None:
        self.statistics.count(self.transport, DeliveryOutcome.FAILED)
        self.statistics.retries += 1
        level = logging.WARNING if failures == 1 else logging.INFO
        self._log.log(level, "%s cannot be sent to the broker now: %s", topic, error)
        await asyncio.sleep(self.retry.delay(failures, self._random))

    async def _send_page(self, selection: TopicSelection) -> None:
        entries, position = await self._read(selection)
        sent = [(entry, await self._send_entry(selection, entry)) for entry in entries]
        for entry, acknowledged in sent:
            if await self._is_accepted(selection.topic, acknowledged):
                size = len(entry.fragment.body)
                self.statistics.count(self.transport, DeliveryOutcome.DELIVERED, size=size)
            self.cursors.move(selection, entry.position)
        if position > self.cursors.position(selection):
            self.cursors.move(selection, position)

    async def _read(self, selection: TopicSelection) -> tuple[list[LogEntry], int]:
        if selection.select:
            reader = self._readers.get(selection)
            if reader is None:
                begin = self.cursors.position(selection)
                reader = FilteredReader(selection, self.topics, self.filters, begin)
                self._readers[selection] = reader
            entries = await reader.next()
            return entries, reader.position
        end = self.topics.position(selection.topic)
        entries = await self.topics.read(selection.topic, after=self.cursors.position(selection))
        # Without entries, the rest of the log was replaced by an entry that is also gone.
        return entries, entries[-1].position if entries else end

    async def end(self, selection: TopicSelection) -> None:
        """Stop sending a part, and delete its retained message at the broker.

        Nothing of it is sent until this returns; if the part is requested meanwhile, call `wake`
        afterwards. Raises `Unavailable` if the connection is lost, or the broker refuses.
        """
        self._ending.add(selection)
        try:
            await self._end(selection)
        finally:
            self._ending.discard(selection)

    async def _end(self, selection: TopicSelection) -> None:
        # A task that is cancelled before it begins does not clean up after itself.
        if task := self._tasks.pop(selection, None):
            await cancel([task])
        if timer := self._timers.pop(selection, None):
            timer.cancel()
        self._readers.pop(selection, None)
        # An empty message deletes the retained message (MQTT 5 §3.3.1.3).
        await (await self.publish(selection, b"", MERGED_CONTENT_TYPE))

    async def _send_entry(self, selection: TopicSelection, entry: LogEntry) -> asyncio.Future[None]:
        fragment = entry.fragment
        try:
            return await self.publish(selection, fragment.body, fragment.content_type)
        except ConnectionRefused as error:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def _is_accepted(self, topic: str, acknowledged: asyncio.Future[None]) -> bool:
        """Wait for the broker; return False if a retry cannot succeed."""
        try:
            await acknowledged
        except ConnectionRefused as error:
            if not error.is_final:
                raise
            # Destinations detect the gap, and read the Change List.
            self.statistics.count(self.transport, DeliveryOutcome.FAILED)
            way = self.transport.upper()
            self._log.warning("a fragment of %s is left out over %s: %s", topic, way, error)
            return False
        return True

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        await cancel(self._tasks.values())
