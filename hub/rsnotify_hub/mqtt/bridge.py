"""The bridge to an MQTT broker: a delivery channel that keeps one connection to it.

Theory of operation. The log is the queue, and the broker has a cursor in each topic's log, kept in
the store. While there is a connection, the bridge sends every topic whose log has entries after the
cursor (`backlog_sender`); an acknowledgement of the broker moves the cursor. After a lost
connection, sending starts again from the cursors. So after an outage of the broker or the hub the
broker receives all that it missed, some of it twice, and nothing is held in memory meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any

from rsnotify.errors import RsnotifyError, StorageError, Unavailable
from rsnotify.runtime.mqtt.connect import CLEAN_START, BrokerSession, connect
from rsnotify.runtime.mqtt.connection import BrokerConnection
from rsnotify.runtime.mqtt.messages import MqttMessage
from rsnotify.runtime.mqtt.refusals import ConnectionRefused
from rsnotify.runtime.mqtt.topics import inbox_prefix, parse_broker
from rsnotify.runtime.tasks import cancel, first_completed
from rsnotify.sync.retry import Retry
from rsnotify_hub.config.configuration import MqttConfig
from rsnotify_hub.filtering.filter_cache import FilterCache
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.log.topic_log import DeliveryChannel
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.metrics import BrokerState
from rsnotify_hub.mqtt.backlog_sender import BacklogSender
from rsnotify_hub.mqtt.broker_cursors import BrokerCursors
from rsnotify_hub.mqtt.inbox import MqttInbox
from rsnotify_hub.mqtt.requested_selections import RequestedSelections
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.interface import LogEntry, NotOwner, Store

log = logging.getLogger("rsnotify.hub.mqtt")

#: How long the broker keeps what Sources publish while the hub is down, in seconds.
SESSION_SECONDS = 7 * 86_400
_MAX_RETRY_SECONDS = 30.0
#: How often expired parts of topics are deleted, in seconds.
_CLEAN_UP_SECONDS = 60.0


class MqttBridge(DeliveryChannel):
    """The `DeliveryChannel` to a broker, which also accepts what Sources publish there."""

    def __init__(
        self,
        config: MqttConfig,
        store: Store,
        topics: TopicLogs,
        intake: FragmentIntake,
        statistics: Statistics,
        filters: FilterCache,
        *,
        max_selections: int,
        retry_seconds: float,
    ) -> None:
        assert config.url is not None
        self._broker = parse_broker(config.url)
        self._config = config
        self._topics = topics
        self._intake = intake
        self._statistics = statistics
        prefix = self._broker.topic_or_prefix
        self._cursors = BrokerCursors(store, topics, f"{self._broker.url}/{prefix}")
        self._requested = RequestedSelections(prefix, topics, self._cursors, max_selections)
        self._retry = Retry(retry_seconds, _MAX_RETRY_SECONDS)
        self._random = Random()
        self._filters = filters
        self._sender: BacklogSender | None = None
        self._task: asyncio.Task[None] | None = None
        self._warned: set[str] = set()

    def state(self) -> BrokerState:
        if self._task is None:
            return BrokerState(False, 0)  # another node has the cursors
        selections = (TopicSelection(state.topic) for state in self._topics.states())
        behind = sum(map(self._cursors.is_behind, selections))
        return BrokerState(self._sender is not None, behind)

    async def start(self) -> None:
        """Connect to the broker, in a task.

        Raises:
            StorageError: The cursors cannot be read.
        """
        await self._cursors.load()
        self._requested.start()
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
                log.exception("the connection to the MQTT broker failed; the hub connects again")
            failures = 1 if self._sender is not None else failures + 1
            self._sender = None
            await asyncio.sleep(self._retry.delay(failures, self._random))

    def _report(self, error: RsnotifyError) -> None:
        if isinstance(error, StorageError):
            text = "the hub cannot store what Sources publish over MQTT; it waits at the broker: %s"
        elif error.remedy is not None:
            text = "the MQTT broker refuses this hub, what is published waits in the log: %s"
        else:
            text = "the MQTT broker is away; fragments wait in the log: %s"
        log.log(logging.INFO if text in self._warned else logging.WARNING, text, error)
        self._warned.add(text)

    async def _connect(self) -> None:
        self._cursors.check_owner()  # it would end the session of the owner, of the same client ID
        config = self._config
        arrived: asyncio.Queue[MqttMessage] = asyncio.Queue()
        async with connect(
            self._broker,
            config.login,
            session=BrokerSession(config.client_id, SESSION_SECONDS)
            if config.channels
            else CLEAN_START,
            version=config.version,
            on_message=arrived.put_nowait,
            manual_ack=True,
        ) as connection:
            url, version = self._broker.url, connection.version
            log.info("connected to the MQTT broker %s, in MQTT %s", url, version)
            sender = self._sender = BacklogSender(
                connection,
                self._broker,
                self._topics,
                self._cursors,
                self._requested,
                self._filters,
                self._statistics,
                self._retry,
            )
            messages = MqttInbox(
                config.channels,
                inbox_prefix(self._broker.topic_or_prefix),
                self._topics,
                self._intake,
                self._statistics,
                self._requested,
                sender.wake,
                self._cursors.check_owner,
            )
            try:
                sender.wake_all()
                await self._subscribe(connection, messages)
                self._warned.clear()
                await _run_until_first_ends(
                    connection.lost(),
                    messages.run(arrived, connection.acknowledge),
                    self._clean_up(sender),
                )
            finally:
                await sender.close()

    async def _subscribe(self, connection: BrokerConnection, messages: MqttInbox) -> None:
        if messages.pattern is not None:
            await connection.subscribe(messages.pattern)
            log.info("accepting what Sources publish as %s", messages.pattern)
        pattern = self._requested.pattern
        if pattern is not None:
            try:
                await connection.subscribe(pattern)
                log.info("parts of topics can be requested over MQTT as %s", pattern)
            except Unavailable as error:
                # The ACL of a broker from before this version does not allow the name. Then all
                # Destinations receive whole topics.
                log.info("no part of a topic can be requested over MQTT: %s", error)

    async def _clean_up(self, sender: BacklogSender) -> None:
        while True:
            for selection in self._requested.expired():
                await self._end(selection, sender)
            await asyncio.sleep(_CLEAN_UP_SECONDS)

    async def _end(self, selection: TopicSelection, sender: BacklogSender) -> None:
        self._requested.remove(selection)
        try:
            await sender.end(selection)
        except ConnectionRefused as error:
            log.info("a part of %s cannot be deleted yet: %s", selection.topic, error)
            self._requested.restore(selection)
        except BaseException:
            # The connection is lost: the next one deletes the retained message.
            self._requested.restore(selection)
            raise
        if selection in self._requested.of_topic(selection.topic):
            sender.wake(selection.topic)  # it stays, or was requested meanwhile
            return
        await self._cursors.delete(selection)
        log.info("a part of %s is no longer published over MQTT", selection.topic)


async def _run_until_first_ends(*works: Coroutine[Any, Any, None]) -> None:
    async with first_completed(*works) as tasks:
        for task in filter(asyncio.Task.done, tasks):
            task.result()
