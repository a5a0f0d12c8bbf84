"""Reads and restores the subscriptions of a cluster, without owning them.

Theory of operation. A record is stored only in place of the revision that was read, so a node that
writes the same subscription meanwhile is not overwritten. The node that owns its shard watches the
records of the shard, and begins to deliver; a later owner reads them.
"""

from __future__ import annotations

from contextlib import aclosing

from rsnotify.format.datetimes import to_microseconds
from rsnotify_hub.cluster.sharding import BRIDGE, Sharding
from rsnotify_hub.store.interface import SubscriptionRecords
from rsnotify_hub.store.jetstream.bucket import Bucket, BucketRecord
from rsnotify_hub.store.jetstream.fenced_parts import read_fenced, store_fenced
from rsnotify_hub.store.jetstream.owned_bridge import bridge_format, bridge_key
from rsnotify_hub.store.jetstream.owned_shard import CLAIM, CURSORS_FORMAT, ShardBuckets
from rsnotify_hub.store.jetstream.subscription_records import (
    BridgeRecord,
    StoredCursor,
    SubscriptionRecord,
    cursor_of,
    decode,
    encode,
    record_of,
    subscription_of,
)
from rsnotify_hub.subscriptions import Subscription, subscription_id
from rsnotify_hub.urls import authority_of

_EVERY_SHARD = "*"


async def read_records(buckets: ShardBuckets, sharding: Sharding) -> SubscriptionRecords:
    """Return all subscriptions and cursors (`SubscriptionStore.records`)."""
    cursors: dict[bytes, StoredCursor] = {}
    for shard in sharding.names():
        if shard != BRIDGE:
            cursors |= await read_fenced(buckets.cursors, shard, CURSORS_FORMAT)
    subscriptions = []
    for id, found in (await _read(buckets.subscriptions, _EVERY_SHARD)).items():
        if found.value is not None:
            record = decode(found.value, SubscriptionRecord)
            _, position, _ = cursor_of(record, cursors.get(bytes.fromhex(id)))
            subscriptions.append(subscription_of(record, position))
    brokers = {}
    async with aclosing(buckets.cursors.read("bridge")) as bridges:
        names = {decode(each.value, BridgeRecord).broker async for each in bridges if each.value}
    for broker in names:
        key = bridge_key(broker)
        brokers[broker] = await read_fenced(buckets.cursors, key, bridge_format(broker))
    return SubscriptionRecords(subscriptions, brokers)


async def restore_records(
    buckets: ShardBuckets, sharding: Sharding, records: SubscriptionRecords
) -> int:
    """Store what is missing (`SubscriptionStore.restore`)."""
    known = await _read(buckets.subscriptions, _EVERY_SHARD)
    stored = 0
    for each in records.subscriptions:
        id = subscription_id(each.topic, each.callback)
        key = f"{sharding.shard_of(authority_of(each.callback))}.{id}"
        stored += await _restore(buckets.subscriptions, key, known.get(id), each)
    for broker, cursors in records.brokers.items():
        key, format = bridge_key(broker), bridge_format(broker)
        await store_fenced(buckets.cursors, key, format, dict(cursors))
    return stored


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


async def _read(bucket: Bucket, group: str) -> dict[str, BucketRecord]:
    """Return the records of a group by the last part of their keys."""
    async with aclosing(bucket.read(group)) as records:
        found = {record.key.rpartition(".")[2]: record async for record in records}
    found.pop(CLAIM, None)
    return found
