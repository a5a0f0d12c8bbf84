"""The subscriptions of a multi-node hub, divided into shards and stored in two JetStream buckets.

A shard contains the callbacks of some hosts and ports. Its owner (`shard_ownership`) keeps the
subscriptions in memory, and only the owner writes them (`OwnedShard`). Before each delivery and
write, it checks that it still owns the shard, and each write expects the revision that it knows.
Therefore a node that was paused, and has lost its shards without knowing it, neither delivers nor
writes.

Exports and imports read and restore all subscriptions without owning them. A restored record only
replaces the revision that was read, so it never overwrites a concurrent write of a node. The owner
watches the records of its shards, and starts to deliver to restored subscriptions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing, suppress
from functools import partial

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import to_microseconds
from rsnotify_hub.store.interface import (
    BridgeOwner,
    NotOwner,
    StoredSubscription,
    SubscriptionOwner,
    SubscriptionRecords,
)
from rsnotify_hub.urls import authority_of
from rsnotify_hub.websub_subscription import Subscription, subscription_id
from rsnotify_jetstream.bucket import Bucket, BucketRecord
from rsnotify_jetstream.cluster_node import ClusterNode
from rsnotify_jetstream.cluster_records import (
    BridgeRecord,
    StoredCursor,
    SubscriptionRecord,
    cursor_of,
    decode,
    encode,
    record_of,
    subscription_of,
)
from rsnotify_jetstream.fenced_map import NO_EPOCH, OwnerRights, read_fenced, store_fenced
from rsnotify_jetstream.nats_connection import NatsConnection
from rsnotify_jetstream.owned_bridge import BridgeSwitch, OwnedBridge, bridge_key
from rsnotify_jetstream.owned_shard import CLAIM, NO_CURSORS, OwnedShard, ShardBuckets
from rsnotify_jetstream.shard_ownership import BRIDGE, Sharding

logger = logging.getLogger("rsnotify.hub.store")

#: Timeout for the last write of cursors before a shard is released, in seconds. NATS usually elects
#: a leader in this time.
FLUSH_SECONDS = 6.0


class JetStreamSubscriptions:
    """A `SubscriptionStore` in NATS JetStream, and the work of this node on its shards.

    The connection and the node must be open. This object closes the node only.
    """

    def __init__(self, connection: NatsConnection, node: ClusterNode) -> None:
        subscriptions, cursors = Bucket(connection, "subscriptions"), Bucket(connection, "cursors")
        self.connection = connection
        self.node = node
        self._buckets = ShardBuckets(subscriptions, cursors, node.id)
        self._owner: SubscriptionOwner | None = None
        self._shards: dict[str, OwnedShard] = {}
        self._bridge: OwnedBridge | None = None
        self._switch: BridgeSwitch | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def reached(self, position: int) -> int:
        """Return the position that this node has reached in the log. See `JetStreamLog.reached`."""
        raise NotImplementedError

    async def prepare(self) -> None:
        await self._buckets.subscriptions.prepare()
        await self._buckets.cursors.prepare()

    async def assign(self, owner: SubscriptionOwner) -> None:
        self._owner = owner
        self.connection.reconnected.append(self._reload)
        self.node.join(self)

    async def assign_bridge(self, bridge: BridgeOwner) -> None:
        self._switch = BridgeSwitch(bridge)
        self._switch.set(self._bridge if self.owns_bridge() else None)

    def _reload(self) -> None:
        for shard in self._shards.values():
            if shard.is_working:
                shard.reload()

    # Work on shards (`node.ShardWork`).

    async def load(self, shard: str, epoch: int) -> None:
        rights = OwnerRights(
            epoch, partial(self.node.may_finish, shard), partial(self.node.lost, shard, epoch)
        )
        if shard == BRIDGE:
            self._bridge = OwnedBridge(self._buckets.cursors, rights)
            return
        loaded = self._shards[shard] = OwnedShard(self._buckets, shard, rights, self._changed)
        await loaded.load()
        await loaded.check_cursors(self.reached)
        if self._shards.get(shard) is not loaded:
            await loaded.close()  # the shard was abandoned in the meantime
            raise NotOwner("the shard was abandoned while it was loaded")

    def begin(self, shard: str) -> None:
        if shard == BRIDGE:
            if self._switch is not None:
                self._switch.set(self._bridge)
            return
        assert self._owner is not None
        if stored := self._shards[shard].begin():
            self._owner.acquired(stored)

    def resume(self, shard: str) -> None:
        if shard != BRIDGE:
            self._shards[shard].resume()

    def _changed(self, id: str, stored: StoredSubscription | None) -> None:
        """Report a late write of the previous owner."""
        assert self._owner is not None
        self._owner.revoked([id])
        if stored is not None:
            self._owner.acquired([stored])

    async def finish(self, shard: str) -> None:
        if shard == BRIDGE:
            await self._finish_bridge()
            return
        assert self._owner is not None
        finished = self._shards.get(shard)
        if finished is None:
            return
        await self._owner.released(finished.ids())
        await _flush(finished, self.connection)
        await finished.close()
        if self._shards.get(shard) is finished:
            del self._shards[shard]

    async def _finish_bridge(self) -> None:
        if self._switch is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._switch.stop()
        if self._bridge is not None:
            bridge, self._bridge = self._bridge, None
            await _flush(bridge, self.connection)
            bridge.close()

    def abandon(self, shard: str) -> None:
        if shard == BRIDGE:
            if self._bridge is not None:
                self._bridge.close()
                self._bridge = None
            if self._switch is not None:
                self._switch.set(None)
            return
        abandoned = self._shards.pop(shard, None)
        if abandoned is not None:
            if abandoned.is_working and self._owner is not None:
                self._owner.revoked(abandoned.ids())
            abandoned.is_working = False
            task = asyncio.create_task(abandoned.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    # The store (`SubscriptionStore`).

    def owns(self, authority: str) -> bool:
        return self.node.owns(self.node.sharding.shard_of(authority))

    def _owned(self, callback: str) -> OwnedShard:
        shard = self.node.sharding.shard_of(authority_of(callback))
        owned = self._shards.get(shard)
        if owned is None or not self.node.owns(shard):
            raise NotOwner("this node does not own the subscription")
        return owned

    def _movable(self, callback: str) -> OwnedShard | None:
        return self._shards.get(self.node.sharding.shard_of(authority_of(callback)))

    async def save(self, subscription: Subscription) -> None:
        await self._owned(subscription.callback).save(subscription)

    async def delete(self, topic: str, callback: str) -> None:
        await self._owned(callback).delete(subscription_id(topic, callback))

    def move_cursor(self, topic: str, callback: str, position: int) -> None:
        if (shard := self._movable(callback)) is not None:
            shard.move(subscription_id(topic, callback), position)

    def save_failure_state(self, topic: str, callback: str, state: bytes | None) -> None:
        if (shard := self._movable(callback)) is not None:
            shard.save_failure_state(subscription_id(topic, callback), state)

    def _owned_bridge(self) -> OwnedBridge:
        if self._bridge is None:
            raise NotOwner("this node does not run the bridge to the broker")
        return self._bridge

    def owns_bridge(self) -> bool:
        return self._bridge is not None and self.node.owns(BRIDGE)

    async def bridged(self, broker: str) -> dict[str, int]:
        bridge = self._owned_bridge()
        positions = await bridge.read(broker)
        end = await self.reached(max(positions.values(), default=0))
        for key, position in positions.items():
            if position > end:  # the log was deleted or restored, see `OwnedShard.check_cursors`
                positions[key] = 0
                bridge.move(broker, key, 0)
        return positions

    async def bridge(self, broker: str, positions: Mapping[str, int]) -> None:
        await self._owned_bridge().store(broker, positions)

    async def unbridge(self, broker: str, topic: str) -> None:
        await self._owned_bridge().delete(broker, topic)

    def move_bridged(self, broker: str, topic: str, position: int) -> None:
        if self._bridge is not None:
            self._bridge.move(broker, topic, position)

    async def records(self) -> SubscriptionRecords:
        return await read_records(self._buckets, self.node.sharding)

    async def restore(self, records: SubscriptionRecords) -> int:
        known = await _read_all(self._buckets.subscriptions)
        stored = 0
        for each in records.subscriptions:
            id = subscription_id(each.topic, each.callback)
            key = f"{self.node.sharding.shard_of(authority_of(each.callback))}.{id}"
            stored += await _restore(self._buckets.subscriptions, key, known.get(id), each)
        for broker, cursors in records.brokers.items():
            empty = BridgeRecord(epoch=NO_EPOCH, broker=broker)
            await store_fenced(self._buckets.cursors, bridge_key(broker), empty, dict(cursors))
        return stored

    async def leave(self) -> None:
        """Release all shards, and leave the cluster."""
        await self.node.close()
        await self._end()

    async def stop(self) -> None:
        """Stop like after a crash, without releasing shards."""
        await self.node.stop()
        await self._end()

    async def _end(self) -> None:
        if self._switch is not None:
            await self._switch.close()
        await asyncio.gather(*self._closing, return_exceptions=True)


async def _flush(work: OwnedShard | OwnedBridge, connection: NatsConnection) -> None:
    """Write the last cursors. If this fails, some fragments will be delivered twice."""
    try:
        async with asyncio.timeout(FLUSH_SECONDS):
            await work.flush()
    except (StorageError, TimeoutError) as error:
        reason = str(error) or "no answer in time"
        connection.warn(logger, f"cannot save the last cursors of a shard: {reason}")


async def read_records(buckets: ShardBuckets, sharding: Sharding) -> SubscriptionRecords:
    """Return all subscriptions and cursors. See `SubscriptionStore.records`."""
    cursors: dict[bytes, StoredCursor] = {}
    for shard in sharding.names():
        if shard != BRIDGE:
            cursors |= await read_fenced(buckets.cursors, shard, NO_CURSORS)
    subscriptions = []
    for id, found in (await _read_all(buckets.subscriptions)).items():
        if found.value is not None:
            record = decode(found.value, SubscriptionRecord)
            _, position, _ = cursor_of(record, cursors.get(bytes.fromhex(id)))
            subscriptions.append(subscription_of(record, position))
    brokers = {}
    async with aclosing(buckets.cursors.read("bridge")) as bridges:
        names = {decode(each.value, BridgeRecord).broker async for each in bridges if each.value}
    for broker in names:
        empty = BridgeRecord(epoch=NO_EPOCH, broker=broker)
        brokers[broker] = await read_fenced(buckets.cursors, bridge_key(broker), empty)
    return SubscriptionRecords(subscriptions, brokers)


async def _restore(
    bucket: Bucket, key: str, known: BucketRecord | None, subscription: Subscription
) -> bool:
    value = encode(record_of(subscription, subscription.position))
    while known is None or _lease_end(known) < to_microseconds(subscription.expires):
        revision = 0 if known is None else known.revision
        if await bucket.replace(key, value, revision) is not None:
            return True
        known = await bucket.get(key)
    return False


def _lease_end(found: BucketRecord) -> int:
    return -1 if found.value is None else decode(found.value, SubscriptionRecord).expires


async def _read_all(bucket: Bucket) -> dict[str, BucketRecord]:
    """Return the records of all shards, keyed by the last part of their keys."""
    async with aclosing(bucket.read("*")) as records:
        found = {record.key.rpartition(".")[2]: record async for record in records}
    found.pop(CLAIM, None)
    return found
