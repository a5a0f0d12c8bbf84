"""All WebSub subscriptions of this node, as a delivery channel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

import msgspec

from rsnotify.format.datetimes import Instant
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.interface import LogEntry, StoredSubscription, SubscriptionStore
from rsnotify_hub.topic_log import DeliveryChannel, TopicLogs
from rsnotify_hub.websub.callback_requests import CallbackRequests
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber, FailureState
from rsnotify_hub.websub.forms import denial_url
from rsnotify_hub.websub.intent_requests import IntentRequests
from rsnotify_hub.websub.registry import SubscriptionRegistry, SubscriptionUpdates
from rsnotify_hub.websub.request_scheduler import RequestScheduler
from rsnotify_hub.websub.sender import DeliverySender
from rsnotify_hub.websub_subscription import Subscription, is_expired

logger = logging.getLogger("rsnotify.hub.websub")


class WebSubChannel(DeliveryChannel):
    """All WebSub subscriptions, and their deliveries.

    Methods that change a subscription raise `StorageError` if the store fails, and then change
    nothing. Methods with an `id` parameter return whether the subscription exists.
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
        scheduler: RequestScheduler | None = None,
    ) -> None:
        self.registry = SubscriptionRegistry()
        self._updates = SubscriptionUpdates(store, self.registry)
        self._topics = topics
        self._intent_requests = intent_requests
        self._clock = clock
        self._scheduler = scheduler or RequestScheduler(configuration.callback_seconds)
        self._sender = DeliverySender(
            requests, topics, self._scheduler, self._updates, configuration, clock, statistics
        )
        self.recent_failures = self._sender.retry_policy.recent_failures
        self.notifications = self._sender.notifications

    def acquired(self, stored: Sequence[StoredSubscription]) -> None:
        """Resume stored subscriptions: deliver missed entries, and retry failed deliveries."""
        subscribers = [CallbackSubscriber(each.subscription) for each in stored]
        for subscriber, each in zip(subscribers, stored, strict=True):
            self.registry.add(subscriber)
            # After a success, the store may have the new cursor and still the old failure state.
            if each.failure_state is not None and self._sender.is_behind(subscriber):
                subscriber.restore(msgspec.msgpack.decode(each.failure_state, type=FailureState))
            self._sender.wake(subscriber)
        self._sender.retry_policy.restore(subscribers)

    async def released(self, ids: Collection[str]) -> None:
        await self._sender.finish(self._removed(ids))

    def revoked(self, ids: Collection[str]) -> None:
        for subscriber in self._removed(ids):
            self._sender.stop(subscriber)

    def _removed(self, ids: Collection[str]) -> list[CallbackSubscriber]:
        """Remove subscriptions from the registry, so that nothing triggers their deliveries."""
        found = [subscriber for id in ids if (subscriber := self.registry.get(id)) is not None]
        for subscriber in found:
            self.registry.remove(subscriber)
        return found

    def find(self, topic: str, callback: str) -> Subscription | None:
        subscriber = self.registry.find(topic, callback)
        return subscriber.subscription if subscriber else None

    def subscribers(self, topic: str) -> int:
        return len(self.registry.of_topic(topic))

    def waiting(self) -> int:
        return self._scheduler.waiting()

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        if subscribers := self.registry.of_topic(topic):
            self._sender.deliver_appended(subscribers)

    async def put(self, subscription: Subscription) -> None:
        subscriber = await self._updates.put(subscription)
        if subscriber is not None:
            self._sender.retry_now(subscriber)

    async def remove(self, topic: str, callback: str) -> None:
        """End a subscription if it exists. Raise `NotOwner` if another node may own it."""
        subscriber = self.registry.find(topic, callback)
        if subscriber is not None:
            await self._sender.end(subscriber)
        else:
            self._updates.check_owner(callback)

    async def expire(self) -> None:
        """End every subscription whose lease has expired (WebSub §5.1)."""
        now = self._clock()
        for subscriber in self.registry.all():
            subscription = subscriber.subscription
            if is_expired(subscription, now):
                topic = subscription.topic
                logger.info("ending a subscription to %s: its lease has expired", topic)
                await self._sender.end(subscriber, lease=subscription.expires)

    async def redeliver(self, id: str, since: Instant | None = None) -> bool:
        """Make an attempt now, without waiting for the backoff.

        With `since`, deliver again everything that the log still has after that instant. A
        suspended subscription stays suspended.
        """
        subscriber = self.registry.get(id)
        if subscriber is None:
            return False
        again: Sequence[LogEntry] = ()
        if since is not None:
            again = await self._topics.read(subscriber.subscription.topic, after=0, since=since)
        if self.registry.get(id) is not subscriber:
            return False
        self._sender.interrupt(subscriber)
        if again and again[0].position <= subscriber.subscription.position:
            self._updates.move_cursor(subscriber, again[0].position - 1)
        self._sender.retry_now(subscriber)
        return True

    async def suspend(self, id: str) -> bool:
        """Deliver nothing until `resume`."""
        subscriber = self.registry.get(id)
        if subscriber is None or not await self._updates.change(subscriber, suspended=True):
            return False
        self._sender.interrupt(subscriber)
        self._updates.save_failure_state(subscriber)
        return True

    async def resume(self, id: str) -> bool:
        subscriber = self.registry.get(id)
        if subscriber is None or not await self._updates.change(subscriber, suspended=False):
            return False
        self._sender.retry_now(subscriber)
        return True

    async def drop(self, id: str, reason: str) -> bool:
        """End a subscription, and notify its callback of the denial (WebSub §5.2)."""
        subscriber = self.registry.get(id)
        if subscriber is None:
            return False
        topic, callback = subscriber.subscription.topic, subscriber.subscription.callback
        await self.remove(topic, callback)
        self._intent_requests.notify(denial_url(topic, callback, reason=reason))
        return True

    async def close(self) -> None:
        """Stop delivering. After its next start, the hub delivers the rest."""
        await self._sender.close()
