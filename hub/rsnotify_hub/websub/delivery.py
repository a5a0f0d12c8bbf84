"""WebSub callbacks: a channel that delivers to each subscription from its place in the log.

Theory of operation. A subscription that is up to date costs nothing but its entry here. When
something is appended, a task is begun for it that reads on in the log, POSTs, and moves the
cursor, until the log's end is reached. Whatever was appended meanwhile is merged, where it
chains, so that a slow callback gets few large fragments instead of many small ones. A failed
try is repeated after a growing wait; the log is the queue, so waiting costs no memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random

from msgspec.structs import replace

from rsnotify.datetimes import Instant
from rsnotify.errors import StorageError
from rsnotify.retry import Retry
from rsnotify_hub.configuration import Configuration
from rsnotify_hub.log.fragments import MERGED_CONTENT_TYPE, chained, merge
from rsnotify_hub.log.store import Entry, Store
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.subscriptions import Answer, Subscription, is_expired
from rsnotify_hub.websub.callbacks import Callbacks
from rsnotify_hub.websub.forms import host_of

log = logging.getLogger("rsnotify.hub.websub")

#: How large a merged fragment may be.
MERGED_BYTES = 256 * 1024


class Delivery:
    """How one subscription stands.

    Attributes:
        subscription: Its value, with the position up to which it was delivered.
        failures: How many tries failed in a row.
        behind_since: When it began to lag; None when it is up to date.
    """

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.failures = 0
        self.behind_since: Instant | None = None
        self.task: asyncio.Task[None] | None = None


class WebSubChannel:
    """All WebSub subscriptions, and their deliveries.

    Args:
        store: Keeps subscriptions and cursors.
        callbacks: Makes the requests.
        configuration: The settings of retries.
        clock: Tells the current instant.
    """

    def __init__(
        self,
        store: Store,
        callbacks: Callbacks,
        configuration: Configuration,
        clock: Callable[[], Instant],
    ) -> None:
        self._store = store
        self._callbacks = callbacks
        self._retry = Retry(configuration.retry_seconds, configuration.max_retry_seconds)
        self._random = Random()
        self._clock = clock
        self._topics: Topics | None = None
        self._deliveries: dict[str, dict[str, Delivery]] = {}
        self._hosts: Counter[str] = Counter()

    def start(self, topics: Topics, subscriptions: Iterable[Subscription]) -> None:
        """Take up the subscriptions that the store kept, and what they have not got yet.

        Args:
            topics: The logs, whose channel this is.
            subscriptions: What `Store.subscriptions` returned.
        """
        self._topics = topics
        for subscription in subscriptions:
            self._wake(self._add(subscription))

    def _add(self, subscription: Subscription) -> Delivery:
        delivery = Delivery(subscription)
        self._deliveries.setdefault(subscription.topic, {})[subscription.callback] = delivery
        self._hosts[host_of(subscription.callback)] += 1
        return delivery

    def find(self, topic: str, callback: str) -> Subscription | None:
        """Return a subscription as it stands now."""
        delivery = self._deliveries.get(topic, {}).get(callback)
        return delivery.subscription if delivery else None

    def all(self) -> list[Delivery]:
        """Return how every subscription stands."""
        return [each for group in self._deliveries.values() for each in group.values()]

    def count_host(self, host: str) -> int:
        """Count the subscriptions of one callback host."""
        return self._hosts[host]

    def subscribers(self, topic: str) -> int:
        """Count the subscriptions of a topic."""
        return len(self._deliveries.get(topic, {}))

    async def put(self, subscription: Subscription) -> None:
        """Keep a confirmed subscription, new or renewed.

        Raises:
            StorageError: It could not be kept, and nothing has changed.
        """
        await self._store.save(subscription)
        delivery = self._deliveries.get(subscription.topic, {}).get(subscription.callback)
        if delivery is None:
            delivery = self._add(subscription)
        else:  # the cursor may have moved while it was saved
            position = delivery.subscription.position
            delivery.subscription = replace(subscription, position=position)
        self._wake(delivery)

    async def remove(self, topic: str, callback: str) -> None:
        """End a subscription, if there is one.

        Raises:
            StorageError: It could not be forgotten, and goes on.
        """
        await self._store.delete(topic, callback)
        delivery = self._forget(topic, callback)
        if delivery is not None and delivery.task not in (None, asyncio.current_task()):
            delivery.task.cancel()

    def _forget(self, topic: str, callback: str) -> Delivery | None:
        group = self._deliveries.get(topic, {})
        delivery = group.pop(callback, None)
        if delivery is not None:
            self._hosts[host_of(callback)] -= 1
            if not group:
                del self._deliveries[topic]
        return delivery

    async def expire(self) -> None:
        """End every subscription whose lease has ended.

        Raises:
            StorageError: The store cannot be written.
        """
        now = self._clock()
        for delivery in self.all():
            subscription = delivery.subscription
            if is_expired(subscription, now):
                log.info("a subscription of %s ends: its lease has ended", subscription.topic)
                await self.remove(subscription.topic, subscription.callback)

    def deliver(self, topic: str, entries: Sequence[Entry]) -> None:
        """Begin to deliver what was appended (`Channel.deliver`)."""
        for delivery in self._deliveries.get(topic, {}).values():
            self._wake(delivery)

    def _wake(self, delivery: Delivery) -> None:
        if delivery.task is None and self._lags(delivery):
            delivery.behind_since = self._clock()
            delivery.task = asyncio.create_task(self._catch_up(delivery))

    def _lags(self, delivery: Delivery) -> bool:
        assert self._topics is not None
        subscription = delivery.subscription
        return subscription.position < self._topics.position(subscription.topic)

    async def _catch_up(self, delivery: Delivery) -> None:
        try:
            while self._lags(delivery):
                wait = await self._deliver_next(delivery)
                if wait is None:
                    return
                if wait:
                    await asyncio.sleep(wait)
            delivery.behind_since = None
        finally:
            delivery.task = None

    async def _deliver_next(self, delivery: Delivery) -> float | None:
        """Deliver once. Return the seconds to wait until the next; None when it has ended."""
        subscription = delivery.subscription
        if is_expired(subscription, self._clock()):
            await self._end(delivery, "its lease has ended")
            return None
        try:
            answer = await self._post_next(delivery)
        except StorageError as error:
            log.warning("a delivery of %s must wait: %s", subscription.topic, error)
            answer = Answer.RETRY
        if answer is Answer.DELIVERED:
            delivery.failures = 0
            return 0.0
        if answer is Answer.GONE:
            await self._end(delivery, "its callback is gone (410)")
            return None
        delivery.failures += 1
        return self._retry.delay(delivery.failures, self._random)

    async def _end(self, delivery: Delivery, reason: str) -> None:
        subscription = delivery.subscription
        log.info("a subscription of %s ends: %s", subscription.topic, reason)
        try:
            await self.remove(subscription.topic, subscription.callback)
        except StorageError as error:
            # It stays, and ends at the next try: its lease, or another 410.
            log.warning("a subscription of %s could not be ended: %s", subscription.topic, error)

    async def _post_next(self, delivery: Delivery) -> Answer:
        assert self._topics is not None
        before = delivery.subscription
        end = self._topics.position(before.topic)
        entries = await self._topics.read(before.topic, after=before.position)
        if not entries:  # what it had not got was trimmed
            return self._reached(delivery, end)
        count = chained([entry.fragment for entry in entries], max_bytes=MERGED_BYTES)
        first = entries[0].fragment
        body, content_type = first.body, first.content_type
        if count > 1:
            fragments = [entry.fragment for entry in entries[:count]]
            body = await asyncio.to_thread(merge, fragments)  # others need not wait for it
            content_type = MERGED_CONTENT_TYPE
        answer = await self._callbacks.deliver(delivery.subscription, body, content_type)
        if answer is Answer.DELIVERED:
            self._reached(delivery, entries[count - 1].position)
        return answer

    def _reached(self, delivery: Delivery, position: int) -> Answer:
        # A renewal may have replaced the value meanwhile; the position is ours alone.
        delivery.subscription = replace(delivery.subscription, position=position)
        subscription = delivery.subscription
        self._store.move_cursor(subscription.topic, subscription.callback, position)
        return Answer.DELIVERED

    async def close(self) -> None:
        """Stop delivering. What was not delivered is, after the next start."""
        tasks = [delivery.task for delivery in self.all() if delivery.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
