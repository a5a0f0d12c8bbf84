"""A WebSub channel over a real store, with real requests, and without the hub around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rsnotify.sync.retry import Retry
from rsnotify_hub.config.loading import load_configuration
from rsnotify_hub.fragments import read_fragment
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.interface import LogRetention, Store
from rsnotify_hub.store.nodes import HubNodes, SingleNode
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.topic_log import TopicLogs
from rsnotify_hub.websub.callback_requests import CallbackRequests, open_client
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber
from rsnotify_hub.websub.intent_requests import IntentRequests
from rsnotify_hub.websub.request_scheduler import RequestScheduler
from rsnotify_hub.websub.verification import IntentVerification
from rsnotify_hub.websub.websub_channel import WebSubChannel
from rsnotify_hub.websub_subscription import DeliveryState, Subscription
from tests.hub.helpers import TOPIC, Callback, Clock, fragment
from tests.waiting import PATIENCE

#: A delivery over a new connection is a task; one over a kept connection takes none.
EITHER_CONNECTION = pytest.mark.parametrize("kept", [False, True], ids=["new", "kept"])


class Deliveries:
    """A channel, its intent verification, and the parts around it."""

    def __init__(
        self,
        store: Store,
        topics: TopicLogs,
        channel: WebSubChannel,
        verification: IntentVerification,
        statistics: Statistics,
    ) -> None:
        self.store = store
        self.topics = topics
        self.channel = channel
        self.verification = verification
        self.statistics = statistics

    async def subscribed(
        self, callback: Callback | str, secret: str | None = None
    ) -> CallbackSubscriber:
        """Make a verified subscription, or renew it."""
        url = callback if isinstance(callback, str) else callback.url
        expires = Clock()() + timedelta(days=10)
        position = self.topics.position(TOPIC)
        await self.channel.put(Subscription(TOPIC, url, secret, expires, position))
        found = self.channel.registry.find(TOPIC, url)
        assert found is not None
        return found

    async def delivered(self, callback: Callback) -> CallbackSubscriber:
        """Make a subscription that has received one fragment."""
        delivery = await self.subscribed(callback)
        await self.publish(1)
        await callback.delivery()
        await self.until(lambda: delivery.behind_since is None)
        return delivery

    async def connected(self, callback: Callback, *, kept: bool) -> CallbackSubscriber:
        """Make a subscription whose next delivery is over a new connection or a kept one."""
        return await (self.delivered(callback) if kept else self.subscribed(callback))

    async def running(self, callback: Callback, *, kept: bool) -> CallbackSubscriber:
        """Make a subscription with a delivery that is answered once `callback.open` is set."""
        delivery = await self.connected(callback, kept=kept)
        callback.open.clear()
        await self.publish_next()
        await callback.delivery()
        assert (delivery.slot.task is None) is kept
        return delivery

    async def failing(
        self, callback: Callback, *answers: int, kept: bool = False
    ) -> CallbackSubscriber:
        """Make a subscription whose last delivery, of one fragment, has failed.

        Args:
            answers: The next answers of the callback; without any, only that one fails.
        """
        delivery = await self.connected(callback, kept=kept)
        callback.answers = [*answers] or [500]
        await self.publish_next()
        await self.until(lambda: delivery.retry_at is not None)
        return delivery

    async def given_up(self, callback: Callback, clock: Clock) -> CallbackSubscriber:
        """Make a subscription whose first delivery has failed for a day, and will fail again."""
        callback.answers = [500] * 10_000
        delivery = await self.subscribed(callback)
        await self.publish(1)
        await self.until(lambda: delivery.failures > 0)
        clock.advance(days=1)
        await self.until(lambda: delivery.state is DeliveryState.GIVEN_UP)
        return delivery

    async def publish(self, *seconds: float) -> None:
        """Publish one fragment for each second, which chain."""
        for second in seconds:
            await self.topics.publish(TOPIC, read_fragment(fragment(second - 1, second)))

    async def publish_next(self) -> bytes:
        """Publish the fragment that follows on those of the seconds before; return it."""
        second = self.topics.position(TOPIC) + 1
        await self.publish(second)
        return fragment(second - 1, second)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Run the event loop, and the store, until a condition holds."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await self.store.check()


@asynccontextmanager
async def opened_channel(
    folder: Path, clock: Clock, scheduler: RequestScheduler | None = None, **settings: Any
) -> AsyncIterator[Deliveries]:
    """Open a channel over the store in a folder."""
    retention = LogRetention(size=10**9, age=timedelta(days=365))
    async with AsyncExitStack() as stack:
        store = SqliteStore(folder, retention, clock)
        stack.push_async_callback(store.close)
        yield await stack.enter_async_context(channel_over(store, clock, scheduler, **settings))


@asynccontextmanager
async def channel_over(
    store: Store,
    clock: Clock,
    scheduler: RequestScheduler | None = None,
    hub: str = "http://hub.example/websub",
    nodes: HubNodes | None = None,
    **settings: Any,
) -> AsyncIterator[Deliveries]:
    """Open a channel over a store, which the caller closes."""
    patient = {"retry_seconds": 0.01, "callback_seconds": 600}
    config = load_configuration(None, **{**patient, **settings}).websub
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client(allow_private_addresses=True))
        requests = CallbackRequests(
            client, hub, method=config.signature, clock=clock, allow_private_addresses=True
        )
        stack.callback(requests.close)
        statistics = Statistics()
        intent_requests = IntentRequests(requests, Retry(0.01), config.callback_seconds)
        stack.push_async_callback(intent_requests.close)
        topics = TopicLogs(store, statistics)
        channel = WebSubChannel(
            store, topics, requests, intent_requests, config, clock, statistics, scheduler
        )
        await topics.start((channel,))
        await store.assign(channel)
        stack.push_async_callback(channel.close)
        stack.push_async_callback(topics.close)
        verification = IntentVerification(
            channel,
            topics,
            intent_requests,
            config,
            clock,
            nodes or SingleNode(),
            is_served=lambda topic: True,
        )
        stack.push_async_callback(verification.close)
        yield Deliveries(store, topics, channel, verification, statistics)
