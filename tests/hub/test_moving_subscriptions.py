"""A subscription whose shard moves to another node while the subscription is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from rsnotify_hub.store.interface import StoredSubscription
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.websub_subscription import Subscription, subscription_id
from tests.hub.deliveries import channel_over
from tests.hub.helpers import TOPIC, Clock, at
from tests.hub.storing import FOREVER

SUBSCRIPTION = Subscription(TOPIC, "http://127.0.0.1:9/callback", None, at(10**9), 0)


class MovingStore(SqliteStore):
    """A store that does something right after it has stored a subscription.

    Attributes:
        is_owned: Whether this node owns all subscriptions.
        after_save: What it does.
    """

    is_owned = True
    after_save: Callable[[], Awaitable[None]] | None = None

    def owns(self, authority: str) -> bool:
        return self.is_owned

    async def save(self, subscription: Subscription) -> None:
        await super().save(subscription)
        if self.after_save is not None:
            await self.after_save()


async def test_a_node_that_lost_it_meanwhile_does_not_keep_it(tmp_path: Path, clock: Clock):
    store = MovingStore(tmp_path, FOREVER, clock)
    async with channel_over(store, clock) as deliveries:

        async def lose() -> None:
            store.is_owned = False
            await deliveries.channel.released([subscription_id(TOPIC, SUBSCRIPTION.callback)])

        store.after_save = lose
        await deliveries.channel.put(SUBSCRIPTION)
        assert list(deliveries.channel.registry.all()) == []
    await store.close()


async def test_a_node_that_lost_and_acquired_it_meanwhile_has_it_once(tmp_path: Path, clock: Clock):
    store = MovingStore(tmp_path, FOREVER, clock)
    async with channel_over(store, clock) as deliveries:
        registry = deliveries.channel.registry

        async def acquire() -> None:
            deliveries.channel.acquired([StoredSubscription(SUBSCRIPTION, None)])

        store.after_save = acquire
        await deliveries.channel.put(SUBSCRIPTION)
        assert len(list(registry.all())) == registry.hosts["127.0.0.1"] == 1
    await store.close()
