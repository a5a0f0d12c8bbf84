"""Hubs of one cluster in one process: a store, its channel of callbacks, and what can befall it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from msgspec.structs import replace

from rsnotify_hub.store.providers import NodeFacts
from rsnotify_hub.urls import authority_of
from rsnotify_hub.websub.forms import SubscriptionRequest
from rsnotify_hub.websub_subscription import Subscription
from rsnotify_jetstream.jetstream_store import JetStreamStore, open_jetstream
from rsnotify_jetstream.nats_settings import NatsSettings
from rsnotify_jetstream.shard_ownership import BRIDGE, ClusterPace, weight
from tests.hub.deliveries import Deliveries, channel_over
from tests.hub.helpers import TOPIC, Clock
from tests.hub.storing import FOREVER
from tests.waiting import until

#: Of hubs that all live: none is considered dead, however long a busy machine keeps it waiting.
PACE = ClusterPace(
    renew_seconds=0.2,
    fence_seconds=60,
    death_seconds=90,
    settle_seconds=0.3,
    moves=16,
    tick_seconds=0.05,
)
#: Of hubs that are killed, suspended or cut off: the others soon take what they had.
SHORT_LEASES = replace(
    PACE, renew_seconds=0.4, fence_seconds=1.8, death_seconds=2.5, settle_seconds=0.5
)
#: Few, so that they are taken soon, and so many that each of three hubs has some.
SHARDS = 16


def node_of(shard: str, nodes: Iterable[str]) -> str | None:
    """Return the node that a shard is assigned to; None if there are no nodes."""
    return max(nodes, key=lambda node: weight(node, shard), default=None)


class ClusterHub:
    """A hub on a cluster."""

    def __init__(self, name: str, store: JetStreamStore, deliveries: Deliveries) -> None:
        self.name = name
        self.store = store
        self.deliveries = deliveries

    async def request(self, url: str, mode: str = "subscribe", client: str = "") -> None:
        """Receive a subscription request, whoever owns the subscription."""
        request = SubscriptionRequest(mode, TOPIC, url)
        await self.deliveries.verification.forward(request, client)

    @property
    def shards(self) -> set[str]:
        """The shards of subscriptions that it owns."""
        return set(self.store.node.working()) - {BRIDGE}

    @property
    def urls(self) -> set[str]:
        """The callbacks that it delivers to."""
        every = self.deliveries.channel.registry.all()
        return {delivery.subscription.callback for delivery in every}

    def owns(self, url: str) -> bool:
        return self.store.owns(authority_of(url))

    async def subscribe(self, url: str, position: int | None = None) -> None:
        if position is None:
            position = self.deliveries.topics.position(TOPIC)
        expires = Clock()() + timedelta(days=10)
        await self.deliveries.channel.put(Subscription(TOPIC, url, None, expires, position))

    async def publish(self, *seconds: float) -> None:
        await self.deliveries.publish(*seconds)

    async def kill(self) -> None:
        """Stop it as a crash does: nothing is released or written any more."""
        await self.store.stop()


class Hubs:
    """The hubs that were started, by their names."""

    def __init__(
        self, settings: NatsSettings, clock: Clock, pace: ClusterPace, stack: AsyncExitStack
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._pace = pace
        self._stack = stack
        self._hubs: dict[str, AsyncExitStack] = {}

    async def start(
        self, name: str, settings: NatsSettings | None = None, **limits: int
    ) -> ClusterHub:
        stack = self._hubs[name] = AsyncExitStack()
        self._stack.push_async_callback(stack.aclose)
        store = await open_jetstream(
            settings or self._settings,
            FOREVER,
            self._clock,
            NodeFacts(name=name),
            shards=SHARDS,
            pace=self._pace,
        )
        stack.push_async_callback(store.close)
        deliveries = await stack.enter_async_context(
            channel_over(
                store,
                self._clock,
                hub=f"http://{name}.example/websub",
                nodes=store.nodes,
                **limits,
            )
        )
        return ClusterHub(name, store, deliveries)

    async def start_all(self, *names: str, **limits: int) -> list[ClusterHub]:
        """Start hubs, and wait until each has the shards that it should have."""
        hubs = [await self.start(name, **limits) for name in names]
        await settled(hubs)
        return hubs

    async def stop(self, hub: ClusterHub) -> None:
        """Stop it in order."""
        await self._hubs[hub.name].aclose()


@asynccontextmanager
async def running_hubs(
    settings: NatsSettings, clock: Clock, pace: ClusterPace = PACE
) -> AsyncIterator[Hubs]:
    async with AsyncExitStack() as stack:
        yield Hubs(settings, clock, pace, stack)


async def settled(hubs: Sequence[ClusterHub], *others: str) -> None:
    """Wait until each hub has the shards that it should have, besides nodes in other processes."""
    nodes = {hub.store.node.id for hub in hubs} | set(others)

    def is_settled() -> bool:
        owners = {shard: hub.store.node.id for hub in hubs for shard in hub.shards}
        owners |= {
            shard: node
            for shard in map(str, range(SHARDS))
            if (node := hubs[0].store.node.membership.owner(shard)) in others
        }
        return owners == {shard: node_of(shard, nodes) for shard in map(str, range(SHARDS))}

    await until(is_settled)


def owner_of(url: str, hubs: Sequence[ClusterHub]) -> ClusterHub:
    (owner,) = [hub for hub in hubs if hub.owns(url)]
    return owner


async def subscribe(urls: Iterable[str], *hubs: ClusterHub) -> None:
    """Subscribe each callback at the hub that owns it."""
    for url in urls:
        await owner_of(url, hubs).subscribe(url)
