"""WebSub callbacks as a channel of the log: each subscription is delivered from its position.

The channel manages subscriptions. `registry` keeps them, and `delivery.sender` delivers to them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from rsnotify.format.datetimes import Instant
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.log.store import LogEntry, Store
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.subscriptions import Subscription, is_expired
from rsnotify_hub.websub.delivery.delivery import Delivery, DeliveryFailure, Trouble
from rsnotify_hub.websub.delivery.requests import CallbackRequests
from rsnotify_hub.websub.delivery.scheduler import DeliveryScheduler
from rsnotify_hub.websub.delivery.sender import DeliverySender
from rsnotify_hub.websub.forms import denial_url
from rsnotify_hub.websub.intent_requests import IntentRequests
from rsnotify_hub.websub.registry import SubscriptionRegistry, SubscriptionUpdates

log = logging.getLogger("rsnotify.hub.websub")


class WebSubChannel:
    """All WebSub subscriptions, and their deliveries.

    Args:
        store: Keeps subscriptions and cursors.
        requests: Makes deliveries.
        intent_requests: Informs a callback that its subscription was ended.
        configuration: The retry settings.
        clock: Returns the current instant.
        statistics: Counts deliveries.
        scheduler: Decides when each delivery may start; by default with the usual capacity.

    Attributes:
        registry: Finds and counts subscriptions.
    """

    def __init__(
        self,
        store: Store,
        requests: CallbackRequests,
        intent_requests: IntentRequests,
        configuration: WebSubConfig,
        clock: Callable[[], Instant],
        statistics: Statistics,
        scheduler: DeliveryScheduler | None = None,
    ) -> None:
        self.registry = SubscriptionRegistry()
        self._updates = SubscriptionUpdates(store, self.registry)
        self._intent_requests = intent_requests
        self._clock = clock
        self._topics: TopicLogs | None = None
        self._scheduler = scheduler or DeliveryScheduler(configuration.callback_seconds)
        self._sender = DeliverySender(
            requests, self._scheduler, self._updates, configuration, clock, statistics
        )

    @property
    def recent_failures(self) -> deque[tuple[str, str, str, DeliveryFailure]]:
        """The newest failures: the delivery's id, topic and host, and the failure."""
        return self._sender.failures.recent

    def start(
        self,
        topics: TopicLogs,
        subscriptions: Iterable[Subscription],
        troubles: Mapping[tuple[str, str], bytes],
    ) -> None:
        """Continue with stored subscriptions: deliver what they miss, retry what failed.

        Args:
            topics: The logs, whose channel this is.
            subscriptions: The result of `Store.subscriptions`.
            troubles: The result of `Store.troubles`.
        """
        self._topics = topics
        self._sender.start(topics)
        for subscription in subscriptions:
            delivery = Delivery(subscription)
            self.registry.add(delivery)
            trouble = troubles.get((subscription.topic, subscription.callback))
            # A success may have been stored without the end of the trouble before it.
            if trouble is not None and self._sender.is_behind(delivery):
                delivery.restore(msgspec.msgpack.decode(trouble, type=Trouble))
            self._sender.wake(delivery)
        self._sender.failures.restore(self.all())

    def find(self, topic: str, callback: str) -> Subscription | None:
        """Return the current value of a subscription, if there is one."""
        delivery = self.registry.find(topic, callback)
        return delivery.subscription if delivery else None

    def all(self) -> list[Delivery]:
        """Return the state of every subscription."""
        return self.registry.all()

    def get(self, id: str) -> Delivery | None:
        """Return the state of the subscription of an id, if there is one."""
        return self.registry.get(id)

    def subscribers(self, topic: str) -> int:
        """Return the number of subscriptions of a topic."""
        return len(self.registry.of_topic(topic))

    def waiting(self) -> int:
        """Return the number of deliveries that wait for capacity."""
        return self._scheduler.waiting()

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        """Begin to deliver what was appended (`DeliveryChannel.deliver`)."""
        for delivery in self.registry.of_topic(topic):
            self._sender.deliver_appended(delivery)

    async def put(self, subscription: Subscription) -> None:
        """Store a confirmed subscription, new or renewed.

        Raises:
            StorageError: It could not be stored, and nothing has changed.
        """
        self._sender.retry_now(await self._updates.put(subscription))

    async def remove(self, topic: str, callback: str) -> None:
        """End a subscription, if there is one.

        Raises:
            StorageError: It could not be deleted, and continues.
        """
        delivery = self.registry.find(topic, callback)
        if delivery is not None:
            await self._sender.end(delivery)

    async def expire(self) -> None:
        """End every subscription whose lease has ended (WebSub §5.1).

        Raises:
            StorageError: The store cannot be written.
        """
        now = self._clock()
        for delivery in self.all():
            subscription = delivery.subscription
            if is_expired(subscription, now):
                log.info("a subscription of %s ends: its lease has ended", subscription.topic)
                await self._sender.end(delivery, lease=subscription.expires)

    async def redeliver(self, id: str, since: Instant | None = None) -> bool:
        """Make an attempt now, whatever failed before; a suspended subscription stays suspended.

        Args:
            id: The id of the subscription.
            since: Deliver again everything after this instant that the log still has.

        Returns:
            Whether there is such a subscription.

        Raises:
            StorageError: The log cannot be read, and nothing has changed.
        """
        delivery = self.get(id)
        if delivery is None:
            return False
        position = await self._position_at(delivery.subscription.topic, since)
        if self.get(id) is not delivery:
            return False
        self._sender.interrupt(delivery)
        if position is not None and position < delivery.subscription.position:
            self._updates.move_cursor(delivery, position)
        self._sender.retry_now(delivery)
        return True

    async def _position_at(self, topic: str, since: Instant | None) -> int | None:
        assert self._topics is not None
        if since is None:
            return None
        entries = await self._topics.read(topic, after=0, since=since)
        return entries[0].position - 1 if entries else None

    async def suspend(self, id: str) -> bool:
        """Deliver nothing until `resume`; return whether there is such a subscription.

        Raises:
            StorageError: It could not be stored, and nothing has changed.
        """
        delivery = self.get(id)
        if delivery is None or not await self._updates.change(delivery, suspended=True):
            return False
        self._sender.interrupt(delivery)
        self._updates.store_trouble(delivery)
        return True

    async def resume(self, id: str) -> bool:
        """Deliver again from the same position; return whether there is such a subscription.

        Raises:
            StorageError: It could not be stored, and nothing has changed.
        """
        delivery = self.get(id)
        if delivery is None or not await self._updates.change(delivery, suspended=False):
            return False
        self._sender.retry_now(delivery)
        return True

    async def drop(self, id: str, reason: str) -> bool:
        """End a subscription, and inform its callback that it is denied (WebSub §5.2).

        Args:
            id: The id of the subscription.
            reason: The reason, worded for the subscriber.

        Returns:
            Whether there was such a subscription.

        Raises:
            StorageError: It could not be deleted, and continues.
        """
        delivery = self.get(id)
        if delivery is None:
            return False
        topic, callback = delivery.subscription.topic, delivery.subscription.callback
        await self.remove(topic, callback)
        self._intent_requests.notify(denial_url(topic, callback, reason=reason))
        return True

    async def close(self) -> None:
        """Stop delivering; what is not delivered yet will be after the next start."""
        await self._sender.close()
