"""A bridge to a broker: a delivery channel that keeps one connection to the broker.

Theory of operation. The log is the queue. The broker has a cursor in each topic's log, kept in the
store (`BrokerCursors`). While connected, the bridge sends every topic, and every requested filtered
topic, whose log has entries after the cursor (`BacklogSender`). The broker's acknowledgement moves
the cursor. After a lost connection, sending restarts from the cursors. After an outage of the
broker or the hub, the broker therefore receives everything that it missed, some of it twice. During
the outage, the hub holds nothing in memory.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from msgspec import Struct

from rsnotify.errors import ConnectionRefused, RsnotifyError, StorageError, Unavailable
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.tasks import cancel
from rsnotify.runtime.transport_extensions import PushTransport
from rsnotify.sync.retry import Retry
from rsnotify_hub.filtering import FilterCache, FilteredReader, TopicSelection, selection_of_key
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.statistics import BrokerInfo, DeliveryOutcome, Statistics
from rsnotify_hub.store.interface import BridgeOwner, BridgeStore, LogEntry, NotOwner
from rsnotify_hub.topic_log import DeliveryChannel, TopicLogs

_MAX_RETRY_SECONDS = 30.0
#: Seconds that the broker has to acknowledge the last messages when the hub stops.
_FINISH_SECONDS = 1.0

#: Maximum number of topics and filtered topics that are sent at the same time.
_MAX_CONCURRENT_SENDS = 64

#: The key of a cursor that marks the broker as known to the store. No topic has this key.
_KNOWN = ""

#: Sends a fragment of a topic or filtered topic with a content type. The future is done when the
#: broker has acknowledged the fragment. Raises `ConnectionRefused`, or `Unavailable` if the
#: connection is lost.
Publish = Callable[[TopicSelection, bytes, str], Awaitable[asyncio.Future[None]]]

#: Returns a topic and its filtered topics that the broker receives.
Selections = Callable[[str], Sequence[TopicSelection]]


def _whole_topic(topic: str) -> list[TopicSelection]:
    return [TopicSelection(topic)]


class Bridges(BridgeOwner):
    """All bridges of a hub. They run on the same node."""

    def __init__(self, bridges: Sequence[Bridge]) -> None:
        self.all = bridges

    async def start(self) -> None:
        async with AsyncExitStack() as stack:
            for bridge in self.all:
                await bridge.start()
                stack.push_async_callback(bridge.close)
            stack.pop_all()

    async def close(self) -> None:
        for bridge in self.all:
            await bridge.close()

    def states(self) -> dict[str, BrokerInfo]:
        return {bridge.transport: bridge.state() for bridge in self.all}


class BridgeDependencies(Struct, frozen=True):
    """What a bridge needs from the hub.

    Args:
        store: Keeps the broker's cursors.
        topics: The logs of the topics.
        intake: Reads and checks the fragments that Sources publish at the broker.
        statistics: Counts deliveries.
        filters: Filters fragments for filtered topics.
        clock: Returns the current instant.
        retry_seconds: The delay before the first attempt to reconnect; doubled each time.
        max_selections: The maximum number of filtered topics per topic.
    """

    store: BridgeStore
    topics: TopicLogs
    intake: FragmentIntake
    statistics: Statistics
    filters: FilterCache
    clock: Callable[[], Instant]
    retry_seconds: float
    max_selections: int


class HubTransport(PushTransport, Protocol):
    """A transport over which a hub can publish."""

    @property
    def settings(self) -> type[Any]:
        """The type of the settings: a struct with a method `check` that raises `WrongSetting`.

        All fields have defaults. The field `url` is the broker's URL.
        """

    def bridge(self, settings: Any, dependencies: BridgeDependencies, /) -> Bridge:
        """Return a bridge to the broker at the settings' `url`."""


class Bridge(DeliveryChannel):
    """The delivery channel to a broker.

    Args:
        transport: The scheme of the broker's URL. Deliveries are counted under this name.
        broker: The name of the broker in log messages, such as `MQTT broker`.
        cursors: The broker's cursor in each log.
    """

    def __init__(
        self, transport: str, broker: str, cursors: BrokerCursors, dependencies: BridgeDependencies
    ) -> None:
        self.transport = transport
        self._name = broker
        self._topics = dependencies.topics
        self._statistics = dependencies.statistics
        self._filters = dependencies.filters
        self._cursors = cursors
        self._retry = Retry(dependencies.retry_seconds, _MAX_RETRY_SECONDS)
        self._clock = dependencies.clock
        self._logger = logging.getLogger(f"rsnotify.hub.{transport}")
        self._random = Random()
        self._sender: BacklogSender | None = None
        self._task: asyncio.Task[None] | None = None
        self._warned: set[str] = set()
        self._away_since: Instant | None = None
        self._error: str | None = None
        self._behind_since: Instant | None = None

    def state(self) -> BrokerInfo:
        if self._task is None:
            return BrokerInfo(False, 0)  # another node runs the bridge
        selections = (TopicSelection(state.topic) for state in self._topics.states())
        behind = sum(map(self._cursors.is_behind, selections))
        self._behind_since = (self._behind_since or self._clock()) if behind else None
        if self._sender is not None:
            return BrokerInfo(True, behind, behind_since=self._behind_since)
        return BrokerInfo(False, behind, self._away_since, self._error, self._behind_since)

    async def start(self) -> None:
        """Connect to the broker in a background task.

        Raises:
            StorageError: The cursors cannot be read.
        """
        await self._cursors.load()
        self._away_since, self._error = self._clock(), None
        self._task = asyncio.create_task(self._run())

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        if self._sender is not None:
            self._sender.wake(topic)

    async def close(self) -> None:
        """Stop. If the bridge is restarted, it resends unacknowledged fragments."""
        if self._sender is not None:
            await self._sender.finish()
        if self._task is not None:
            await cancel([self._task])
        self._task = self._sender = None

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._connect()
            except NotOwner:
                pass  # another node continues, and this bridge will be closed
            except RsnotifyError as error:
                self._report(error)
            except Exception:
                # A bug must not end the bridge for good.
                self._error = "an internal error of the hub; see its log"
                self._logger.exception(
                    "internal error: the connection to the %s failed; reconnecting", self._name
                )
            failures += 1
            if self._sender is not None:
                self._sender, self._away_since, failures = None, self._clock(), 1
            await asyncio.sleep(self._retry.delay(failures, self._random))

    def _report(self, error: RsnotifyError) -> None:
        self._error = str(error)
        if isinstance(error, StorageError):
            text = "cannot store what Sources publish at the %s, which keeps it until then: %s"
        elif error.remedy is not None:
            text = "the %s refuses this hub; fragments wait in the log: %s"
        else:
            text = "the %s is unavailable; fragments wait in the log: %s"
        level = logging.INFO if text in self._warned else logging.WARNING
        self._logger.log(level, text, self._name, error)
        self._warned.add(text)

    @abstractmethod
    async def _connect(self) -> None:
        """Connect once, send until the connection is lost, and then raise `RsnotifyError`."""

    @asynccontextmanager
    async def _sending(
        self, publish: Publish, selections: Selections = _whole_topic
    ) -> AsyncIterator[BacklogSender]:
        """Return a context that sends the backlogs of all topics while it is active."""
        self._sender = sender = BacklogSender(
            self.transport,
            publish,
            selections,
            self._topics,
            self._cursors,
            self._filters,
            self._statistics,
            self._retry,
        )
        try:
            sender.wake_all()
            yield sender
        finally:
            await sender.close()


@dataclass(eq=False, repr=False)
class BacklogSender:
    """Sends each topic and filtered topic in log order, with many messages in flight."""

    transport: str
    publish: Publish
    selections: Selections
    topics: TopicLogs
    cursors: BrokerCursors
    filters: FilterCache
    statistics: Statistics
    retry: Retry

    def __post_init__(self) -> None:
        self._logger = logging.getLogger(f"rsnotify.hub.{self.transport}")
        self._random = Random()
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_SENDS)
        self._tasks: dict[TopicSelection, asyncio.Task[None]] = {}
        self._suspended: set[TopicSelection] = set()
        self._readers: dict[TopicSelection, FilteredReader] = {}
        self._timers: dict[TopicSelection, asyncio.TimerHandle] = {}
        self._sending_page: set[TopicSelection] = set()
        self._is_finishing = False

    def wake_all(self) -> None:
        for state in self.topics.states():
            self.wake(state.topic)

    def wake(self, topic: str) -> None:
        """Send the backlogs of a topic and its filtered topics, unless this is in progress."""
        for selection in self.selections(topic):
            self._wake(selection)

    def _wake(self, selection: TopicSelection) -> None:
        if timer := self._timers.pop(selection, None):
            timer.cancel()
        if selection in self._tasks or selection in self._suspended or self._is_finishing:
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
            while self._has_more(selection) and not self._is_finishing:
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
            pass  # the bridge reports the lost connection, and reconnects
        except Exception:
            self._readers.pop(selection, None)  # its last entries may not have been sent
            self._logger.exception("internal error: cannot send %s to the broker", selection.topic)
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
        self._logger.log(level, "cannot send %s to the broker; retrying: %s", topic, error)
        await asyncio.sleep(self.retry.delay(failures, self._random))

    async def _send_page(self, selection: TopicSelection) -> None:
        self._sending_page.add(selection)
        try:
            await self._send_entries(selection, *await self._read(selection))
        finally:
            self._sending_page.discard(selection)

    async def _send_entries(
        self, selection: TopicSelection, entries: Sequence[LogEntry], position: int
    ) -> None:
        sent: list[tuple[LogEntry, asyncio.Future[None]]] = []
        for entry in entries:
            try:
                acknowledged = await self._send_entry(selection, entry)
            except NotOwner:
                break  # the entries sent so far still count
            sent.append((entry, acknowledged))
        for entry, acknowledged in sent:
            if await self._is_accepted(selection.topic, acknowledged):
                size = len(entry.fragment.body)
                self.statistics.count(self.transport, DeliveryOutcome.DELIVERED, size=size)
            self.cursors.move(selection, entry.position)
        if len(sent) < len(entries):
            raise NotOwner("another node publishes the rest of the page")
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
        # There are no entries if a later entry has replaced them and was then trimmed.
        return entries, entries[-1].position if entries else end

    @asynccontextmanager
    async def suspended(self, selection: TopicSelection) -> AsyncIterator[None]:
        """Return a context in which nothing of a filtered topic is sent.

        To send the filtered topic again afterwards, call `wake`.
        """
        self._suspended.add(selection)
        try:
            # A task that is cancelled before it begins does not remove itself.
            if task := self._tasks.pop(selection, None):
                await cancel([task])
            if timer := self._timers.pop(selection, None):
                timer.cancel()
            self._readers.pop(selection, None)
            yield
        finally:
            self._suspended.discard(selection)

    async def _send_entry(self, selection: TopicSelection, entry: LogEntry) -> asyncio.Future[None]:
        fragment = entry.fragment
        try:
            return await self.publish(selection, fragment.body, fragment.content_type)
        except ConnectionRefused as error:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def _is_accepted(self, topic: str, acknowledged: asyncio.Future[None]) -> bool:
        """Wait for the acknowledgement. Return False if the broker will never accept the fragment.

        Raises:
            ConnectionRefused: A retry may succeed.
        """
        try:
            await acknowledged
        except ConnectionRefused as error:
            if not error.is_final:
                raise
            # Destinations detect the gap and read the Change List.
            self.statistics.count(self.transport, DeliveryOutcome.FAILED)
            transport = self.transport.upper()
            self._logger.warning("skipped a fragment of %s over %s: %s", topic, transport, error)
            return False
        return True

    async def finish(self) -> None:
        """Stop sending, and wait briefly for the broker's outstanding acknowledgements."""
        self._is_finishing = True
        if tasks := [self._tasks[each] for each in self._sending_page if each in self._tasks]:
            await asyncio.wait(tasks, timeout=_FINISH_SECONDS)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        await cancel(self._tasks.values())


class BrokerCursors:
    """A broker's cursor in each log and for each filtered topic. The store keeps the cursors.

    A new broker first receives the newest fragment of each topic. For a topic that begins later, it
    receives every fragment from the first one on. For a filtered topic, it starts at the newest
    fragment.

    `load` and `delete` raise `StorageError` if the store fails.
    """

    def __init__(self, store: BridgeStore, topics: TopicLogs, broker: str) -> None:
        self._store = store
        self._topics = topics
        self._broker = broker
        self._positions: dict[str, int] = {}

    async def load(self) -> None:
        """Load the cursors. Create and store them for a new broker."""
        self._positions = await self._store.bridged(self._broker)
        if _KNOWN not in self._positions:
            self._positions = {state.topic: state.position - 1 for state in self._topics.states()}
            self._positions[_KNOWN] = 0
            await self._store.bridge(self._broker, self._positions)

    def check_owner(self) -> None:
        """Raise `NotOwner` if another node may publish to the broker."""
        if not self._store.owns_bridge():
            raise NotOwner("this node does not run the bridge to the broker")

    def filtered_topics(self) -> list[TopicSelection]:
        selections = (selection_of_key(key) for key in self._positions if key)
        return [selection for selection in selections if selection.select]

    def position(self, selection: TopicSelection) -> int:
        return self._positions.get(selection.key, 0)

    def is_behind(self, selection: TopicSelection) -> bool:
        return self.position(selection) < self._topics.position(selection.topic)

    def move(self, selection: TopicSelection, position: int) -> None:
        key = selection.key
        self._positions[key] = position
        self._store.move_bridged(self._broker, key, position)

    async def delete(self, selection: TopicSelection) -> None:
        key = selection.key
        self._positions.pop(key, None)
        await self._store.unbridge(self._broker, key)
