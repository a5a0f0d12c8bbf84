"""The bridge to an MQTT broker, which also accepts what Sources publish there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

from rsnotify.errors import Unavailable
from rsnotify.runtime.mqtt.connect import CLEAN_START, BrokerSession, connect
from rsnotify.runtime.mqtt.connection import BrokerConnection
from rsnotify.runtime.mqtt.messages import MqttMessage
from rsnotify.runtime.mqtt.topics import inbox_prefix, parse_broker
from rsnotify.runtime.refusals import ConnectionRefused
from rsnotify.runtime.tasks import first_completed
from rsnotify_hub.bridging.backlog_sender import BacklogSender
from rsnotify_hub.bridging.bridge import Bridge, BridgeTiming
from rsnotify_hub.bridging.broker_cursors import BrokerCursors
from rsnotify_hub.config.brokers import MqttConfig
from rsnotify_hub.filtering.filter_cache import FilterCache
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.mqtt.inbox import MqttInbox
from rsnotify_hub.mqtt.requested_selections import RequestedSelections
from rsnotify_hub.statistics import DeliveryTransport, Statistics
from rsnotify_hub.store.interface import Store

log = logging.getLogger("rsnotify.hub.mqtt")

#: How long the broker keeps what Sources publish while the hub is down, in seconds.
SESSION_SECONDS = 7 * 86_400
#: How often expired parts of topics are deleted, in seconds.
_CLEAN_UP_SECONDS = 60.0


class MqttBridge(Bridge):
    """The `Bridge` to an MQTT broker."""

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
        timing: BridgeTiming,
    ) -> None:
        assert config.url is not None
        self._broker = parse_broker(config.url)
        self._config = config
        self._intake = intake
        self._statistics = statistics
        self._filters = filters
        prefix = self._broker.topic_or_prefix
        cursors = BrokerCursors(store, topics, f"{self._broker.url}/{prefix}")
        self._requested = RequestedSelections(prefix, topics, cursors, max_selections)
        super().__init__(DeliveryTransport.MQTT, "MQTT broker", topics, cursors, timing)

    async def start(self) -> None:
        await super().start()
        self._requested.start()

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
            sender = BacklogSender(
                self.transport,
                partial(self._publish, connection),
                self._requested.of_topic,
                self._topics,
                self._cursors,
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
            async with self._sending(sender):
                await self._subscribe(connection, messages)
                self._warned.clear()
                await _run_until_first_ends(
                    connection.lost(),
                    messages.run(arrived, connection.acknowledge),
                    self._clean_up(sender),
                )

    async def _publish(
        self,
        connection: BrokerConnection,
        selection: TopicSelection,
        body: bytes,
        content_type: str,
    ) -> asyncio.Future[None]:
        topic, part = selection.topic, None
        if selection.select:
            part = self._broker.filtered_topic(topic, selection.select)
        return await connection.publish(
            part or self._broker.topic(topic),
            body,
            content_type=content_type,
            channel=topic,
            check=self._cursors.check_owner,
        )

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
