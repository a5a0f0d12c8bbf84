"""A bridge to a broker: a delivery channel that keeps one connection to it.

Theory of operation. The log is the queue, and the broker has a cursor in each topic's log, kept in
the store. While there is a connection, the bridge sends every topic whose log has entries after the
cursor (`backlog_sender`); an acknowledgement of the broker moves the cursor. After a lost
connection, sending starts again from the cursors. So after an outage of the broker or the hub the
broker receives all that it missed, some of it twice, and nothing is held in memory meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

from msgspec import Struct

from rsnotify.errors import RsnotifyError, StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.tasks import cancel
from rsnotify.sync.retry import Retry
from rsnotify_hub.bridging.backlog_sender import BacklogSender
from rsnotify_hub.bridging.broker_cursors import BrokerCursors
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.log.topic_log import DeliveryChannel
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.statistics import BrokerState, DeliveryTransport
from rsnotify_hub.store.interface import BridgeOwner, LogEntry, NotOwner

_MAX_RETRY_SECONDS = 30.0


class BridgeTiming(Struct, frozen=True):
    """When a bridge connects again.

    Args:
        clock: Returns the current instant.
        retry_seconds: The wait before the first attempt; doubled each time.
    """

    clock: Callable[[], Instant]
    retry_seconds: float


class Bridge(DeliveryChannel):
    """The `DeliveryChannel` to a broker.

    Args:
        transport: How deliveries are counted.
        broker: What messages call the broker, as `MQTT broker`.
    """

    def __init__(
        self,
        transport: DeliveryTransport,
        broker: str,
        topics: TopicLogs,
        cursors: BrokerCursors,
        timing: BridgeTiming,
    ) -> None:
        self.transport = transport
        self._name = broker
        self._topics = topics
        self._cursors = cursors
        self._retry = Retry(timing.retry_seconds, _MAX_RETRY_SECONDS)
        self._clock = timing.clock
        self._log = logging.getLogger(f"rsnotify.hub.{transport}")
        self._random = Random()
        self._sender: BacklogSender | None = None
        self._task: asyncio.Task[None] | None = None
        self._warned: set[str] = set()
        self._away_since: Instant | None = None
        self._error: str | None = None

    def state(self) -> BrokerState:
        if self._task is None:
            return BrokerState(False, 0)  # another node has the cursors
        selections = (TopicSelection(state.topic) for state in self._topics.states())
        behind = sum(map(self._cursors.is_behind, selections))
        if self._sender is not None:
            return BrokerState(True, behind)
        return BrokerState(False, behind, self._away_since, self._error)

    async def start(self) -> None:
        """Connect to the broker, in a task.

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
        """Stop; it may be started again. What was not acknowledged is sent then."""
        if self._task is not None:
            await cancel([self._task])
        self._task = self._sender = None

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._connect()
            except NotOwner:
                pass  # another node continues, and this one is about to stop
            except RsnotifyError as error:
                self._report(error)
            except Exception:
                # A bug must not end the connection to the broker for good.
                self._error = "an unexpected error, which the log has"
                self._log.exception(
                    "the connection to the %s failed; the hub connects again", self._name
                )
            failures += 1
            if self._sender is not None:
                self._sender, self._away_since, failures = None, self._clock(), 1
            await asyncio.sleep(self._retry.delay(failures, self._random))

    def _report(self, error: RsnotifyError) -> None:
        self._error = str(error)
        if isinstance(error, StorageError):
            text = "the hub cannot store what Sources publish at the %s; it waits there: %s"
        elif error.remedy is not None:
            text = "the %s refuses this hub, what is published waits in the log: %s"
        else:
            text = "the %s is away; fragments wait in the log: %s"
        level = logging.INFO if text in self._warned else logging.WARNING
        self._log.log(level, text, self._name, error)
        self._warned.add(text)

    @abstractmethod
    async def _connect(self) -> None:
        """Connect once, and send until the connection is lost; raises `RsnotifyError` then."""

    @asynccontextmanager
    async def _sending(self, sender: BacklogSender) -> AsyncIterator[None]:
        """Send what is in the logs during the context."""
        self._sender = sender
        try:
            sender.wake_all()
            yield
        finally:
            await sender.close()


class Bridges(BridgeOwner):
    """All bridges of a hub, which run on the same node."""

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

    def states(self) -> dict[DeliveryTransport, BrokerState]:
        return {bridge.transport: bridge.state() for bridge in self.all}
