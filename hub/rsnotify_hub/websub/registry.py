"""The WebSub subscriptions of this node, in memory, and changes to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify_hub.store.interface import NotOwner, SubscriptionStore
from rsnotify_hub.urls import authority_of
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber
from rsnotify_hub.websub_subscription import Subscription


class SubscriptionRegistry:
    def __init__(self) -> None:
        self._topics: dict[str, dict[str, CallbackSubscriber]] = {}
        self._ids: dict[str, CallbackSubscriber] = {}
        self.hosts: Counter[str] = Counter()
        self.clients: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._ids)

    def all(self) -> list[CallbackSubscriber]:
        return list(self._ids.values())

    def of_topic(self, topic: str) -> Collection[CallbackSubscriber]:
        return self._topics.get(topic, {}).values()

    def get(self, id: str) -> CallbackSubscriber | None:
        return self._ids.get(id)

    def find(self, topic: str, callback: str) -> CallbackSubscriber | None:
        return self._topics.get(topic, {}).get(callback)

    def add(self, subscriber: CallbackSubscriber) -> None:
        subscription = subscriber.subscription
        self._topics.setdefault(subscription.topic, {})[subscription.callback] = subscriber
        self._ids[subscriber.id] = subscriber
        self.hosts[subscriber.host] += 1
        self.clients[subscription.client] += 1

    def remove(self, subscriber: CallbackSubscriber) -> None:
        subscription = subscriber.subscription
        if self._ids.pop(subscriber.id, None) is None:
            return
        group = self._topics[subscription.topic]
        del group[subscription.callback]
        if not group:
            del self._topics[subscription.topic]
        for counts, name in ((self.hosts, subscriber.host), (self.clients, subscription.client)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


class SubscriptionUpdates:
    """Changes subscriptions. A change that fails with a `StorageError` has no effect.

    Theory of operation. Changes to the same subscription are serialized. A change that has waited
    checks the subscription again, because it may have ended or been renewed in the meantime.
    """

    def __init__(self, store: SubscriptionStore, registry: SubscriptionRegistry) -> None:
        self._store = store
        self._registry = registry

    async def put(self, subscription: Subscription) -> CallbackSubscriber | None:
        """Add or renew a subscription. Return None if it has moved to another node."""
        known = self._registry.find(subscription.topic, subscription.callback)
        renewed = {"secret": subscription.secret, "expires": subscription.expires}
        if known is not None and await self.change(known, **renewed):
            return known
        await self._store.save(subscription)
        # During the save, the shard may have moved to another node, and may even have come back
        # with the stored subscription.
        if not self._store.owns(authority_of(subscription.callback)):
            return None
        acquired = self._registry.find(subscription.topic, subscription.callback)
        if acquired is not None:
            acquired.subscription = replace(acquired.subscription, **renewed)
            return acquired
        new = CallbackSubscriber(subscription)
        self._registry.add(new)
        return new

    async def change(self, subscriber: CallbackSubscriber, **fields: Any) -> bool:
        """Change fields of a subscription. Return False if it has ended."""
        async with subscriber.lock:
            if not self._has(subscriber):
                return False
            await self._store.save(replace(subscriber.subscription, **fields))
            # The cursor may have moved during the save.
            subscriber.subscription = replace(subscriber.subscription, **fields)
            return True

    async def end(self, subscriber: CallbackSubscriber, *, lease: Instant | None = None) -> bool:
        """End a subscription. Return False if `lease` is given and was renewed."""
        async with subscriber.lock:
            if not self._has(subscriber):
                return True
            subscription = subscriber.subscription
            if lease not in (None, subscription.expires):
                return False
            await self._store.delete(subscription.topic, subscription.callback)
            self._registry.remove(subscriber)
            return True

    def check_owner(self, callback: str) -> None:
        """Raise `NotOwner` if another node may own the subscriptions of a callback."""
        if not self._store.owns(authority_of(callback)):
            raise NotOwner("another node owns the subscriptions of this callback")

    def may_deliver(self, subscriber: CallbackSubscriber) -> bool:
        """Return whether this node owns the subscription at this moment."""
        return not subscriber.is_stopped and self._store.owns(subscriber.authority)

    def _has(self, subscriber: CallbackSubscriber) -> bool:
        return self._registry.get(subscriber.id) is subscriber

    def save_failure_state(self, subscriber: CallbackSubscriber) -> None:
        """Store the failure state if it has changed."""
        state = subscriber.failure_state
        if state != subscriber.stored_failure_state:
            subscriber.stored_failure_state = state
            encoded = None if state is None else msgspec.msgpack.encode(state)
            subscription = subscriber.subscription
            self._store.save_failure_state(subscription.topic, subscription.callback, encoded)

    def move_cursor(self, subscriber: CallbackSubscriber, position: int) -> None:
        # A renewal may have replaced the subscription, but only the sender changes the position.
        subscriber.subscription = replace(subscriber.subscription, position=position)
        subscription = subscriber.subscription
        self._store.move_cursor(subscription.topic, subscription.callback, position)
