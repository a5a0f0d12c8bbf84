"""Sends what a broker lacks, for as long as one connection lasts."""

from __future__ import annotations

import asyncio
import logging
from random import Random

from rsnotify.errors import StorageError, Unavailable
from rsnotify.mqtt.connection import Connection, Refused
from rsnotify.mqtt.names import Broker
from rsnotify.retry import Retry
from rsnotify_hub.log.store import Entry
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.mqtt.places import Places
from rsnotify_hub.statistics import Outcome, Statistics, Way

log = logging.getLogger("rsnotify.hub.mqtt")

#: How many topics are read and sent at once.
_AT_ONCE = 64


class Sending:
    """Sends each topic in the order of its log, many messages on their way at once.

    Args:
        connection: The connection.
        broker: Where it leads.
        topics: The logs.
        places: How far the broker has each.
        statistics: Where deliveries are counted.
        retry: How what is refused is tried again.
    """

    def __init__(
        self,
        connection: Connection,
        broker: Broker,
        topics: Topics,
        places: Places,
        statistics: Statistics,
        retry: Retry,
    ) -> None:
        self._connection = connection
        self._broker = broker
        self._topics = topics
        self._places = places
        self._statistics = statistics
        self._retry = retry
        self._random = Random()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def wake_all(self) -> None:
        """Send what is lacking of all topics."""
        for state in self._topics.states():
            self.wake(state.topic)

    def wake(self, topic: str) -> None:
        """Send what is lacking of a topic, unless that is under way."""
        if topic not in self._tasks and self._places.lacks(self._topics, topic):
            self._tasks[topic] = asyncio.create_task(self._send(topic))

    async def _send(self, topic: str) -> None:
        failures = 0
        try:
            while self._places.lacks(self._topics, topic):
                try:
                    async with self._room:
                        await self._send_page(topic)
                    failures = 0
                except (Refused, StorageError) as error:
                    failures += 1
                    await self._wait(topic, error, failures)
        except Unavailable:
            pass  # the connection is lost: whoever keeps it tells so, and begins again
        except Exception:
            log.exception("sending %s to the MQTT broker broke off", topic)
        finally:
            del self._tasks[topic]

    async def _wait(self, topic: str, error: Refused | StorageError, failures: int) -> None:
        self._statistics.deliveries[Way.MQTT, Outcome.FAILED] += 1
        self._statistics.retries += 1
        level = logging.WARNING if failures == 1 else logging.INFO
        log.log(level, "%s must wait on its way to the MQTT broker: %s", topic, error)
        await asyncio.sleep(self._retry.delay(failures, self._random))

    async def _send_page(self, topic: str) -> None:
        entries = await self._topics.read(topic, after=self._places.of(topic))
        if not entries:
            # What stood there gave way to something that the log no longer has either.
            self._places.move(topic, self._topics.position(topic))
            return
        sent = [(entry, await self._begin(topic, entry)) for entry in entries]
        for entry, acknowledged in sent:
            if await self._is_taken(topic, acknowledged):
                self._statistics.deliveries[Way.MQTT, Outcome.DELIVERED] += 1
                self._statistics.delivered_bytes[Way.MQTT] += len(entry.fragment.body)
            self._places.move(topic, entry.position)

    async def _begin(self, topic: str, entry: Entry) -> asyncio.Future[None]:
        try:
            return await self._connection.publish(
                self._broker.topic(topic),
                entry.fragment.body,
                content_type=entry.fragment.content_type,
                channel=topic,
            )
        except Refused as error:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def _is_taken(self, topic: str, acknowledged: asyncio.Future[None]) -> bool:
        """Wait for the broker; False when no later try can do better."""
        try:
            await acknowledged
        except Refused as error:
            if not error.too_large:
                raise
            # Subscribers see the gap, and read the Change List.
            self._statistics.deliveries[Way.MQTT, Outcome.FAILED] += 1
            log.warning("a fragment of %s is left out over MQTT: %s", topic, error)
            return False
        return True

    async def close(self) -> None:
        """Stop."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
