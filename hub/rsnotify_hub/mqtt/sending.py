"""Sends what a broker lacks, for as long as one connection lasts."""

from __future__ import annotations

import asyncio
import logging
from random import Random

from rsnotify.errors import StorageError, Unavailable
from rsnotify.runtime.mqtt.connection import BrokerConnection
from rsnotify.runtime.mqtt.names import Broker
from rsnotify.runtime.mqtt.refusals import ConnectionRefused
from rsnotify.sync.retry import Retry
from rsnotify_hub.log.fragments import MERGED_CONTENT_TYPE
from rsnotify_hub.log.store import Entry
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.mqtt.asked import Asked
from rsnotify_hub.mqtt.places import Places
from rsnotify_hub.selecting.cutting import Cutting
from rsnotify_hub.selecting.sieve import Sieve
from rsnotify_hub.selecting.streams import Stream
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics

log = logging.getLogger("rsnotify.hub.mqtt")

#: How many topics are read and sent at once.
_AT_ONCE = 64


class Sending:
    """Sends each stream in the order of its log, many messages on their way at once.

    Args:
        connection: The connection.
        broker: Where it leads.
        topics: The logs.
        places: How far the broker has each.
        asked: Which streams are made of each.
        sieve: Makes them.
        statistics: Where deliveries are counted.
        retry: How what is refused is tried again.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        broker: Broker,
        topics: Topics,
        places: Places,
        asked: Asked,
        sieve: Sieve,
        statistics: Statistics,
        retry: Retry,
    ) -> None:
        self._connection = connection
        self._broker = broker
        self._topics = topics
        self._places = places
        self._asked = asked
        self._sieve = sieve
        self._statistics = statistics
        self._retry = retry
        self._random = Random()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[Stream, asyncio.Task[None]] = {}
        self._ending: set[Stream] = set()
        self._cuttings: dict[Stream, Cutting] = {}
        self._timers: dict[Stream, asyncio.TimerHandle] = {}

    def wake_all(self) -> None:
        """Send what is lacking of all topics."""
        for state in self._topics.states():
            self.wake(state.topic)

    def wake(self, topic: str) -> None:
        """Send what is lacking of a topic and its parts, unless that is under way."""
        for stream in self._asked.of(topic):
            self._wake(stream)

    def _wake(self, stream: Stream) -> None:
        if timer := self._timers.pop(stream, None):
            timer.cancel()
        if stream in self._tasks or stream in self._ending:
            return
        if self._has_more(stream):
            self._tasks[stream] = asyncio.create_task(self._send(stream))
        else:
            self._wake_later(stream)

    def _has_more(self, stream: Stream) -> bool:
        cutting = self._cuttings.get(stream)
        return cutting.has_more if cutting else self._places.lacks(self._topics, stream)

    async def _send(self, stream: Stream) -> None:
        failures = 0
        try:
            while self._has_more(stream):
                try:
                    async with self._room:
                        await self._send_page(stream)
                    failures = 0
                except (ConnectionRefused, StorageError) as error:
                    failures += 1
                    self._cuttings.pop(stream, None)  # it begins again from its place
                    await self._wait(stream.topic, error, failures)
            self._wake_later(stream)
        except Unavailable:
            pass  # the connection is lost: whoever keeps it tells so, and begins again
        except Exception:
            self._cuttings.pop(stream, None)  # what it handed out may not have been sent
            log.exception("sending %s to the MQTT broker broke off", stream.topic)
        finally:
            self._tasks.pop(stream, None)

    def _wake_later(self, stream: Stream) -> None:
        cutting = self._cuttings.get(stream)
        if cutting is not None and cutting.holds:
            loop = asyncio.get_running_loop()
            self._timers[stream] = loop.call_later(cutting.wait, self._wake, stream)

    async def _wait(
        self, topic: str, error: ConnectionRefused | StorageError, failures: int
    ) -> None:
        self._statistics.deliveries[DeliveryTransport.MQTT, DeliveryOutcome.FAILED] += 1
        self._statistics.retries += 1
        level = logging.WARNING if failures == 1 else logging.INFO
        log.log(level, "%s must wait on its way to the MQTT broker: %s", topic, error)
        await asyncio.sleep(self._retry.delay(failures, self._random))

    async def _send_page(self, stream: Stream) -> None:
        entries, position = await self._read(stream)
        sent = [(entry, await self._begin(stream, entry)) for entry in entries]
        for entry, acknowledged in sent:
            if await self._is_taken(stream.topic, acknowledged):
                self._statistics.deliveries[DeliveryTransport.MQTT, DeliveryOutcome.DELIVERED] += 1
                self._statistics.delivered_bytes[DeliveryTransport.MQTT] += len(entry.fragment.body)
            self._places.move(stream, entry.position)
        if position > self._places.of(stream):
            self._places.move(stream, position)

    async def _read(self, stream: Stream) -> tuple[list[Entry], int]:
        """Return what is to be sent next, and where the broker is when it has that."""
        if stream.select:
            cutting = self._cuttings.get(stream)
            if cutting is None:
                begin = self._places.of(stream)
                cutting = Cutting(stream, self._topics, self._sieve, begin)
                self._cuttings[stream] = cutting
            entries = await cutting.next()
            return entries, cutting.position
        end = self._topics.position(stream.topic)
        entries = await self._topics.read(stream.topic, after=self._places.of(stream))
        # Where there is none, it gave way to something that the log no longer has either.
        return entries, entries[-1].position if entries else end

    def _name(self, stream: Stream) -> str:
        part = self._broker.part(stream.topic, stream.select) if stream.select else None
        return part or self._broker.topic(stream.topic)

    async def end(self, stream: Stream) -> None:
        """Send a part no longer, and let the broker forget it.

        Whoever asks for it meanwhile is sent nothing before that, and needs `wake` afterwards.

        Raises:
            Unavailable: The connection is lost, or the broker does not want that.
        """
        self._ending.add(stream)
        try:
            await self._end(stream)
        finally:
            self._ending.discard(stream)

    async def _end(self, stream: Stream) -> None:
        # A task that is cancelled before it begins does not tidy up after itself.
        if task := self._tasks.pop(stream, None):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if timer := self._timers.pop(stream, None):
            timer.cancel()
        self._cuttings.pop(stream, None)
        # An empty message takes away the one that is retained (MQTT 5 §3.3.1.3).
        empty = await self._connection.publish(
            self._name(stream), b"", content_type=MERGED_CONTENT_TYPE, channel=stream.topic
        )
        await empty

    async def _begin(self, stream: Stream, entry: Entry) -> asyncio.Future[None]:
        try:
            return await self._connection.publish(
                self._name(stream),
                entry.fragment.body,
                content_type=entry.fragment.content_type,
                channel=stream.topic,
            )
        except ConnectionRefused as error:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def _is_taken(self, topic: str, acknowledged: asyncio.Future[None]) -> bool:
        """Wait for the broker; False when no later try can do better."""
        try:
            await acknowledged
        except ConnectionRefused as error:
            if not error.too_large:
                raise
            # Subscribers see the gap, and read the Change List.
            self._statistics.deliveries[DeliveryTransport.MQTT, DeliveryOutcome.FAILED] += 1
            log.warning("a fragment of %s is left out over MQTT: %s", topic, error)
            return False
        return True

    async def close(self) -> None:
        """Stop."""
        for timer in self._timers.values():
            timer.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
