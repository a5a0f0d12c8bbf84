"""The way out to an MQTT broker: a channel that keeps one connection to it.

Theory of operation. The log is the queue, and the broker has a place in each topic's log, kept in
the store. While there is a connection, every topic whose log goes on beyond its place is sent
(`sending`); what the broker acknowledges moves the place. When the connection is lost, all begins
again from the places. So a broker or a hub that was away gets, or sends, what is missing, some of
it twice, and nothing is held in memory meanwhile.
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
from rsnotify.sync.retry import Retry
from rsnotify_hub.configuration import Configuration, login_of
from rsnotify_hub.intake import Intake
from rsnotify_hub.log.store import Entry, Store
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.metrics import Bridged
from rsnotify_hub.mqtt.asked import Asked
from rsnotify_hub.mqtt.inbox import Inbox
from rsnotify_hub.mqtt.places import Places
from rsnotify_hub.mqtt.sending import Sending
from rsnotify_hub.selecting.sieve import Sieve
from rsnotify_hub.selecting.streams import Stream
from rsnotify_hub.statistics import Statistics

log = logging.getLogger("rsnotify.hub.mqtt")

#: How long the broker keeps what Sources publish while the hub is away, in seconds.
SESSION_SECONDS = 7 * 86_400
_MOST_WAIT = 30.0
#: How often it is looked for what nobody asks for any more, in seconds.
_HOUSEKEEPING_SECONDS = 60.0


class Bridge:
    """Brings everything to a broker, and takes what Sources publish there; a `Channel`.

    Args:
        url: The broker.
        configuration: The other settings.
        store: Keeps how far the broker has each topic.
        statistics: Where deliveries are counted.
        sieve: Makes the parts of topics that are asked for.
    """

    def __init__(
        self,
        url: str,
        configuration: Configuration,
        store: Store,
        statistics: Statistics,
        sieve: Sieve,
    ) -> None:
        self._broker = parse_broker(url)
        self._configuration = configuration
        self._statistics = statistics
        self._places = Places(store, f"{self._broker.url}/{self._broker.topic_or_prefix}")
        self._retry = Retry(configuration.retry_seconds, _MOST_WAIT)
        self._random = Random()
        self._sieve = sieve
        self._sending: Sending | None = None
        self._task: asyncio.Task[None] | None = None
        self._told: set[str] = set()

    def reading(self, topics: Topics) -> Bridged:
        """Tell how it stands."""
        streams = (Stream(state.topic) for state in topics.states())
        behind = sum(self._places.lacks(topics, stream) for stream in streams)
        return Bridged(self._sending is not None, behind)

    async def start(self, topics: Topics, intake: Intake) -> None:
        """Begin.

        Args:
            topics: The logs, whose channel this is.
            intake: Says what may be published.

        Raises:
            StorageError: The places cannot be read.
        """
        await self._places.load(topics)
        most = self._configuration.max_selections
        asked = Asked(self._broker.topic_or_prefix, topics, self._places, most)
        self._task = asyncio.create_task(self._run(topics, asked, intake))

    def deliver(self, topic: str, entries: Sequence[Entry]) -> None:
        """Begin to send what was appended (`Channel.deliver`)."""
        if self._sending is not None:
            self._sending.wake(topic)

    def subscribers(self, topic: str) -> int:
        """Return none: the broker does not tell who listens (`Channel.subscribers`)."""
        return 0

    async def close(self) -> None:
        """Stop. What was not acknowledged is sent after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, topics: Topics, asked: Asked, intake: Intake) -> None:
        failures = 0
        while True:
            try:
                await self._connect(topics, asked, intake)
            except RsnotifyError as error:
                self._tell(error)
            except Exception:
                # A fault of ours must not end the way to the broker for good.
                log.exception("the connection to the MQTT broker failed; it is tried again")
            failures = 1 if self._sending is not None else failures + 1
            self._sending = None
            await asyncio.sleep(self._retry.delay(failures, self._random))

    def _tell(self, error: RsnotifyError) -> None:
        if isinstance(error, StorageError):
            text = "what Sources publish over MQTT waits at the broker: %s"
        elif error.remedy is not None:
            text = "the MQTT broker refuses this hub, what is published waits in the log: %s"
        else:
            text = "the MQTT broker is away, what is published waits in the log: %s"
        log.log(logging.INFO if text in self._told else logging.WARNING, text, error)
        self._told.add(text)

    async def _connect(self, topics: Topics, asked: Asked, intake: Intake) -> None:
        settings = self._configuration
        arrived: asyncio.Queue[MqttMessage] = asyncio.Queue()
        async with connect(
            self._broker,
            login_of(settings),
            session=BrokerSession(settings.mqtt_client_id, SESSION_SECONDS)
            if settings.mqtt_channels
            else CLEAN_START,
            version=settings.mqtt_version,
            on_message=arrived.put_nowait,
            manual_ack=True,
        ) as connection:
            url, spoken = self._broker.url, connection.version
            log.info("connected to the MQTT broker %s, in MQTT %s", url, spoken)
            sending = self._sending = Sending(
                connection,
                self._broker,
                topics,
                self._places,
                asked,
                self._sieve,
                self._statistics,
                self._retry,
            )
            found = Inbox(
                settings.mqtt_channels,
                inbox_prefix(self._broker.topic_or_prefix),
                topics,
                intake,
                self._statistics,
                asked,
                sending.wake,
                most=settings.max_fragment_bytes,
            )
            try:
                sending.wake_all()
                await self._listen(connection, found, asked)
                self._told.clear()
                await _first_of(
                    connection.lost(),
                    found.take(arrived, connection.acknowledge),
                    self._keep_house(sending, asked),
                )
            finally:
                await sending.close()

    async def _listen(self, connection: BrokerConnection, inbox: Inbox, asked: Asked) -> None:
        if inbox.pattern is not None:
            await connection.subscribe(inbox.pattern)
            log.info("taking what Sources publish as %s", inbox.pattern)
        if asked.pattern is not None:
            try:
                await connection.subscribe(asked.pattern)
                log.info("parts of topics can be asked for over MQTT as %s", asked.pattern)
            except Unavailable as error:
                # Brokers of before know no such name; then everybody gets everything.
                log.info("no part of a topic can be asked for over MQTT: %s", error)

    async def _keep_house(self, sending: Sending, asked: Asked) -> None:
        """Make no longer what nobody asks for."""
        while True:
            for stream in asked.lapsed():
                await self._end(stream, sending, asked)
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)

    async def _end(self, stream: Stream, sending: Sending, asked: Asked) -> None:
        asked.drop(stream)
        try:
            await sending.end(stream)
        except ConnectionRefused as error:
            log.info("a part of %s cannot be taken away yet: %s", stream.topic, error)
            asked.put_back(stream)
        except BaseException:
            # The connection is lost: the next one is to take away what the broker retains.
            asked.put_back(stream)
            raise
        if stream in asked.of(stream.topic):
            sending.wake(stream.topic)  # it stays, or somebody has asked for it meanwhile
            return
        await self._places.end(stream)
        log.info("a part of %s is made no longer for the MQTT broker", stream.topic)


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run until the first of these ends, and tell how."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
