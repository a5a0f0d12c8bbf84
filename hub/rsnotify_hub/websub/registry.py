"""Changes of subscriptions, first in the store and then here, so that neither is ahead for long.

Theory of operation. Changes of one subscription wait for each other, and whoever has waited looks
again: it may have ended meanwhile, or been renewed. What the store refuses has not happened.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify_hub.log.store import Store
from rsnotify_hub.subscriptions import Subscription
from rsnotify_hub.websub.delivery.delivery import Delivery
from rsnotify_hub.websub.register import SubscriptionRegistry


class SubscriptionUpdates:
    """Keeps subscriptions.

    Args:
        store: Keeps them over a restart.
        register: Has those that are there now.
    """

    def __init__(self, store: Store, register: SubscriptionRegistry) -> None:
        self._store = store
        self._register = register

    async def put(self, subscription: Subscription) -> Delivery:
        """Keep a subscription, or the secret and the lease of one that is there.

        Raises:
            StorageError: It could not be kept, and nothing has changed.
        """
        known = self._register.find(subscription.topic, subscription.callback)
        renewed = {"secret": subscription.secret, "expires": subscription.expires}
        if known is not None and await self.change(known, **renewed):
            return known
        await self._store.save(subscription)
        new = Delivery(subscription)
        self._register.add(new)
        return new

    async def change(self, delivery: Delivery, **fields: Any) -> bool:
        """Change a subscription, unless it has ended meanwhile.

        Args:
            delivery: Which.
            fields: What is new of it.

        Returns:
            Whether it has not.

        Raises:
            StorageError: It could not be kept, and nothing has changed.
        """
        async with delivery.changing:
            if not self._has(delivery):
                return False
            await self._store.save(replace(delivery.subscription, **fields))
            # The cursor may have moved while it was saved.
            delivery.subscription = replace(delivery.subscription, **fields)
            return True

    async def end(self, delivery: Delivery, *, lease: Instant | None = None) -> bool:
        """End a subscription, unless that was done meanwhile.

        Args:
            delivery: Which.
            lease: The lease that it is ended for, and not for another after a renewal.

        Returns:
            Whether it has ended.

        Raises:
            StorageError: It could not be forgotten, and goes on.
        """
        async with delivery.changing:
            if not self._has(delivery):
                return True
            subscription = delivery.subscription
            if lease not in (None, subscription.expires):
                return False
            await self._store.delete(subscription.topic, subscription.callback)
            self._register.remove(delivery)
            return True

    def note_trouble(self, delivery: Delivery) -> None:
        """Store how deliveries fail, if that has changed; durable soon."""
        trouble = delivery.trouble
        if trouble != delivery.noted:
            delivery.noted = trouble
            state = None if trouble is None else msgspec.msgpack.encode(trouble)
            subscription = delivery.subscription
            self._store.note_trouble(subscription.topic, subscription.callback, state)

    def _has(self, delivery: Delivery) -> bool:
        return self._register.get(delivery.id) is delivery

    def move(self, delivery: Delivery, position: int) -> None:
        """Move a subscription's place in the log; durable soon (`Store.move_cursor`)."""
        # A renewal may have replaced the value meanwhile; the position is the sender's alone.
        delivery.subscription = replace(delivery.subscription, position=position)
        subscription = delivery.subscription
        self._store.move_cursor(subscription.topic, subscription.callback, position)
