"""The store of a hub of many nodes: all of it is in NATS JetStream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify_hub.store.interface import (
    BridgeOwner,
    LogRetention,
    SubscriptionOwner,
    SubscriptionRecords,
)
from rsnotify_hub.subscriptions import Subscription
from rsnotify_jetstream.bucket import Bucket
from rsnotify_jetstream.cluster_records import NodeRecord
from rsnotify_jetstream.connection import NatsConnection
from rsnotify_jetstream.jetstream_log import JetStreamLog
from rsnotify_jetstream.membership import DEFAULT_SHARDS, ClusterPace
from rsnotify_jetstream.node import ClusterNode
from rsnotify_jetstream.node_messages import NodeMessages
from rsnotify_jetstream.settings import NatsSettings
from rsnotify_jetstream.shared_subscriptions import JetStreamSubscriptions


class JetStreamStore(JetStreamLog):
    """A `Store` for any number of nodes; `open_jetstream` makes one.

    Args:
        connection: An open connection, which this closes at the end.
        retention: How much of each log is kept.
        clock: Returns the current instant.
        node: This node, which has read the cluster.
        subscriptions: The subscriptions.

    Attributes:
        node: This node in the cluster.
        nodes: The way to the other nodes.
    """

    def __init__(
        self,
        connection: NatsConnection,
        retention: LogRetention,
        clock: Callable[[], Instant],
        node: ClusterNode,
        subscriptions: JetStreamSubscriptions,
    ) -> None:
        super().__init__(
            connection,
            retention,
            clock,
            # Of topics, too, each has one node that cleans up.
            cleans=lambda topic: node.owns(node.sharding.shard_of(topic)),
        )
        self.node = node
        self.nodes = NodeMessages(connection.client, connection.settings.prefix, node)
        self._subscriptions = subscriptions
        node.report = self._report
        subscriptions.reached = self.reached

    def _report(self, record: NodeRecord) -> NodeRecord:
        return replace(record, behind=self.behind, server=self.connection.server or "")

    async def assign(self, owner: SubscriptionOwner) -> None:
        await self.nodes.start()
        await self._subscriptions.assign(owner)

    async def assign_bridge(self, bridge: BridgeOwner) -> None:
        await self._subscriptions.assign_bridge(bridge)

    def owns(self, authority: str) -> bool:
        return self._subscriptions.owns(authority)

    async def save(self, subscription: Subscription) -> None:
        await self._subscriptions.save(subscription)

    async def delete(self, topic: str, callback: str) -> None:
        await self._subscriptions.delete(topic, callback)

    def move_cursor(self, topic: str, callback: str, position: int) -> None:
        self._subscriptions.move_cursor(topic, callback, position)

    def note_trouble(self, topic: str, callback: str, state: bytes | None) -> None:
        self._subscriptions.note_trouble(topic, callback, state)

    def owns_bridge(self) -> bool:
        return self._subscriptions.owns_bridge()

    async def bridged(self, broker: str) -> dict[str, int]:
        return await self._subscriptions.bridged(broker)

    async def bridge(self, broker: str, positions: Mapping[str, int]) -> None:
        await self._subscriptions.bridge(broker, positions)

    async def unbridge(self, broker: str, topic: str) -> None:
        await self._subscriptions.unbridge(broker, topic)

    def move_bridged(self, broker: str, topic: str, position: int) -> None:
        self._subscriptions.move_bridged(broker, topic, position)

    async def records(self) -> SubscriptionRecords:
        return await self._subscriptions.records()

    async def restore(self, records: SubscriptionRecords) -> int:
        return await self._subscriptions.restore(records)

    async def leave(self) -> None:
        """Release all shards, and leave the cluster, while their owner can still deliver."""
        await self._subscriptions.close()

    async def stop(self) -> None:
        """Stop without a word to the other nodes, as in a crash."""
        await self._subscriptions.stop()
        await self.nodes.close()
        await super().close()
        await self.connection.close()

    async def close(self) -> None:
        await self.leave()
        await self.nodes.close()
        await super().close()
        await self.connection.close()


async def open_jetstream(
    settings: NatsSettings,
    retention: LogRetention,
    clock: Callable[[], Instant],
    describe: NodeRecord,
    *,
    shards: int = DEFAULT_SHARDS,
    pace: ClusterPace = ClusterPace(),  # noqa: B008 - it is immutable
) -> JetStreamStore:
    """Connect to NATS, and return the store there; `assign` makes this node take part.

    Args:
        settings: Where NATS is.
        retention: How much of each log is kept.
        clock: Returns the current instant.
        describe: What the other nodes should know about this one.
        shards: The number of shards of subscriptions, if this node creates the cluster.
        pace: How fast nodes and shards change.

    Raises:
        ConfigurationError: NATS cannot be reached, or cannot have the data.
        StorageError: It does not answer, or a newer hub has written there.
    """
    connection = NatsConnection(settings)
    async with AsyncExitStack() as stack:
        await connection.open(f"rsnotify hub {describe.name}".strip())
        stack.push_async_callback(connection.close)
        records = Bucket(connection, "cluster")
        stack.push_async_callback(records.close)
        node = ClusterNode(records, describe, shards=shards, pace=pace)
        await node.open()
        subscriptions = JetStreamSubscriptions(connection, node)
        await subscriptions.prepare()
        store = JetStreamStore(connection, retention, clock, node, subscriptions)
        stack.pop_all()
    return store
