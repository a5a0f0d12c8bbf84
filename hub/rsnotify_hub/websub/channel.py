"""WebSub callbacks as a channel of the log: each subscription is delivered from its position.

The registry keeps the subscriptions of this node, and the sender delivers to them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

import msgspec

from rsnotify.format.datetimes import Instant
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.log.topic_log import DeliveryChannel, TopicLogs
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.interface import LogEntry, StoredSubscription, SubscriptionStore
from rsnotify_hub.subscriptions import Subscription, is_expired
from rsnotify_hub.websub.callback_requests import CallbackRequests
from rsnotify_hub.websub.delivery import Delivery, Trouble
from rsnotify_hub.websub.forms import denial_url
from rsnotify_hub.websub.registry import SubscriptionRegistry, SubscriptionUpdates
from rsnotify_hub.websub.scheduler import DeliveryScheduler, IntentRequests
from rsnotify_hub.websub.sender import DeliverySender

log = logging.getLogger("rsnotify.hub.websub")


class WebSubChannel(DeliveryChannel):
    """All WebSub subscriptions, and their deliveries.

    Methods that change a subscription raise `StorageError` if that cannot be stored; then nothing
    has changed. Those that find it by its id return whether there is one.
    """

    def __init__(
        self,
        store: SubscriptionStore,
        topics: TopicLogs,
        requests: CallbackRequests,
        intent_requests: IntentRequests,
        configuration: WebSubConfig,
        clock: Callable[[], Instant],
        statistics: Statistics,
        scheduler: DeliveryScheduler | None = None,
    ) -> None:
        self.registry = SubscriptionRegistry()
        self._updates = SubscriptionUpdates(store, self.registry)
        self._topics = topics
        self._intent_requests = intent_requests
        self._clock = clock
        self._scheduler = scheduler or DeliveryScheduler(configuration.callback_seconds)
        self._sender = DeliverySender(
            requests, topics, self._scheduler, self._updates, configuration, clock, statistics
        )
        self.recent_failures = self._sender.failures.recent
        self.notifications = self._sender.notifications

    def acquired(self, stored: Sequence[StoredSubscription]) -> None:
        """Continue with stored subscriptions: deliver what they miss, retry what failed."""
        deliveries = [Delivery(each.subscription) for each in stored]
        for delivery, each in zip(deliveries, stored, strict=True):
            self.registry.add(delivery)
            # A success may have been stored without the end of the trouble before it.
            if each.trouble is not None and self._sender.is_behind(delivery):
                delivery.restore(msgspec.msgpack.decode(each.trouble, type=Trouble))
            self._sender.wake(delivery)
        self._sender.failures.restore(deliveries)

    async def released(self, ids: Collection[str]) -> None:
        await self._sender.finish(self._removed(ids))

    def revoked(self, ids: Collection[str]) -> None:
        for delivery in self._removed(ids):
            self._sender.stop(delivery)

    def _removed(self, ids: Collection[str]) -> list[Delivery]:
        """Remove subscriptions from the registry, so that nothing triggers a delivery to them."""
        found = [delivery for id in ids if (delivery := self.registry.get(id)) is not None]
        for delivery in found:
            self.registry.remove(delivery)
        return found

    def find(self, topic: str, callback: str) -> Subscription | None:
        delivery = self.registry.find(topic, callback)
        return delivery.subscription if delivery else None

    def subscribers(self, topic: str) -> int:
        return len(self.registry.of_topic(topic))

    def waiting(self) -> int:
        return self._scheduler.waiting()

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        if deliveries := self.registry.of_topic(topic):
            self._sender.deliver_appended(deliveries)

    async def put(self, subscription: Subscription) -> None:
        delivery = await self._updates.put(subscription)
        if delivery is not None:
            self._sender.retry_now(delivery)

    async def remove(self, topic: str, callback: str) -> None:
        """End a subscription, if there is one; raise `NotOwner` if another node may have it."""
        delivery = self.registry.find(topic, callback)
        if delivery is not None:
            await self._sender.end(delivery)
        else:
            self._updates.check_owner(callback)

    async def expire(self) -> None:
        """End every subscription whose lease has ended (WebSub §5.1)."""
        now = self._clock()
        for delivery in self.registry.all():
            subscription = delivery.subscription
            if is_expired(subscription, now):
                log.info("a subscription of %s ends: its lease has ended", subscription.topic)
                await self._sender.end(delivery, lease=subscription.expires)

    async def redeliver(self, id: str, since: Instant | None = None) -> bool:
        """Make an attempt now, whatever failed before; a suspended subscription stays suspended.

        It delivers again everything after `since` that the log still has.
        """
        delivery = self.registry.get(id)
        if delivery is None:
            return False
        position = await self._position_at(delivery.subscription.topic, since)
        if self.registry.get(id) is not delivery:
            return False
        self._sender.interrupt(delivery)
        if position is not None and position < delivery.subscription.position:
            self._updates.move_cursor(delivery, position)
        self._sender.retry_now(delivery)
        return True

    async def _position_at(self, topic: str, since: Instant | None) -> int | None:
        if since is None:
            return None
        entries = await self._topics.read(topic, after=0, since=since)
        return entries[0].position - 1 if entries else None

    async def suspend(self, id: str) -> bool:
        """Deliver nothing until `resume`."""
        delivery = self.registry.get(id)
        if delivery is None or not await self._updates.change(delivery, suspended=True):
            return False
        self._sender.interrupt(delivery)
        self._updates.store_trouble(delivery)
        return True

    async def resume(self, id: str) -> bool:
        delivery = self.registry.get(id)
        if delivery is None or not await self._updates.change(delivery, suspended=False):
            return False
        self._sender.retry_now(delivery)
        return True

    async def drop(self, id: str, reason: str) -> bool:
        """End a subscription, and inform its callback that it is denied (WebSub §5.2)."""
        delivery = self.registry.get(id)
        if delivery is None:
            return False
        topic, callback = delivery.subscription.topic, delivery.subscription.callback
        await self.remove(topic, callback)
        self._intent_requests.notify(denial_url(topic, callback, reason=reason))
        return True

    async def close(self) -> None:
        """Stop delivering; what is not delivered yet will be after the next start."""
        await self._sender.close()
