"""A shard on the node that owns it: the shard's subscriptions, or the bridge to a broker.

A node acquires a shard of subscriptions in three steps. First, it writes the records of the shard's
cursors with the new epoch, so that the previous owner can no longer move them. Second, it watches
the keys of the subscriptions. Third, it writes a special key, the *claim*, and reads the
subscriptions. Data that it reads from any server is complete if it contains the claim. Writes that
the previous owner sent and that are stored later arrive through the watch.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress

from msgspec import Struct
from nats.aio.subscription import Subscription as NatsSubscription

from rsnotify.errors import StorageError, counted
from rsnotify.runtime.tasks import cancel
from rsnotify_hub.store.interface import BridgeOwner, NotOwner, StoredSubscription
from rsnotify_hub.websub_subscription import Subscription, subscription_id
from rsnotify_jetstream.bucket import Bucket, BucketRecord
from rsnotify_jetstream.fenced_records import NO_EPOCH, RETRY_DELAY, FencedMap, OwnerRights
from rsnotify_jetstream.records import (
    BridgeRecord,
    CursorsRecord,
    SubscriptionRecord,
    cursor_of,
    decode,
    encode,
    record_of,
    subscription_of,
)

log = logging.getLogger("rsnotify.hub.store")

#: The record of a shard without cursors.
NO_CURSORS = CursorsRecord(epoch=NO_EPOCH)
#: The last part of the key of the claim that each new owner writes.
CLAIM = "claim"
#: Maximum number of reads from a server that does not have the claim yet, and seconds between them.
_READS, _READ_SECONDS = 40, 0.1


class ShardBuckets(Struct, frozen=True):
    """The buckets of subscriptions and cursors, and the id of this node."""

    subscriptions: Bucket
    cursors: Bucket
    node: str


class _Known(Struct):
    record: SubscriptionRecord | None  # None if it was deleted
    revision: int


class OwnedShard:
    """A shard of subscriptions that this node owns.

    `changed` is called for each late write of the previous owner, with the id of the subscription
    and either its new state, or None if it was deleted.
    """

    def __init__(
        self,
        buckets: ShardBuckets,
        shard: str,
        rights: OwnerRights,
        changed: Callable[[str, StoredSubscription | None], None],
    ) -> None:
        self._bucket = buckets.subscriptions
        self._shard = shard
        self._rights = rights
        self._changed = changed
        self._stamp = {"node": buckets.node, "epoch": str(rights.epoch)}
        self._known: dict[str, _Known] = {}
        self._cursors = FencedMap(buckets.cursors, shard, NO_CURSORS, rights)
        self._beyond: list[str] = []
        self._unapplied: set[str] = set()
        self._watch: NatsSubscription | None = None
        self._reading: asyncio.Task[None] | None = None
        self.is_working = False

    async def load(self) -> None:
        """Acquire the shard from the previous owner."""
        await self._cursors.load()
        self._watch = await self._bucket.watch(self._shard, self._received)
        await self._read_all()
        self._cursors.keep({bytes.fromhex(id) for id, known in self._known.items() if known.record})

    async def check_cursors(self, reached: Callable[[int], Awaitable[int]]) -> None:
        """Find the cursors beyond the end of the log, for `begin` to reset to its beginning.

        After a log was deleted or restored from a backup, its positions start again.
        """
        positions = {
            subscription_id(each.topic, each.callback): each.position
            for each in (stored.subscription for stored in self.stored())
        }
        end = await reached(max(positions.values(), default=0))
        self._beyond = [id for id, position in positions.items() if position > end]

    def begin(self) -> list[StoredSubscription]:
        """Begin work on the shard, and return all its subscriptions."""
        self.is_working = True
        for id in self._beyond:
            self.move(id, 0)
        if self._beyond:
            log.warning(
                "the log in NATS was deleted or restored: %s of the shard %s begin with what it "
                "has now",
                counted(len(self._beyond), "subscription"),
                self._shard,
            )
        return self.stored()

    async def _read_all(self) -> None:
        """Read all subscriptions stored so far, and perhaps some that are stored later."""
        key = f"{self._shard}.{CLAIM}"
        claim = await self._bucket.put(key, self._stamp["epoch"].encode())
        for _ in range(_READS):
            latest = 0
            found: set[str] = set()
            async with aclosing(self._bucket.read(self._shard)) as records:
                async for record in records:
                    latest = record.revision
                    found.add(record.key)
                    self._apply(record)
            if latest >= claim:
                for id, known in self._known.items():
                    if known.record and known.revision < claim and self._key(id) not in found:
                        known.record = None  # this node did not see the deletion
                        self._report(id)
                return
            await asyncio.sleep(_READ_SECONDS)
        raise StorageError(f"the subscriptions of the shard {self._shard} cannot be read")

    def reload(self) -> None:
        """Read all subscriptions again in the background, in case the watch has missed changes."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        with suppress(StorageError):
            await self._read_all()

    def _received(self, record: BucketRecord) -> None:
        if record.headers.get("Rs-Node") != self._stamp["node"]:
            self._apply(record)

    def _apply(self, record: BucketRecord) -> None:
        """Apply a stored record, unless it is known already. Report it if work has begun."""
        id = record.key.rpartition(".")[2]
        known = self._known.get(id)
        if id == CLAIM or (known is not None and known.revision >= record.revision):
            return
        if self.is_working and record.headers.get("Rs-Node") == self._stamp["node"]:
            return  # this node is writing it right now
        found = None if record.value is None else decode(record.value, SubscriptionRecord)
        self._known[id] = _Known(found, record.revision)
        self._report(id)

    def _report(self, id: str) -> None:
        if self.is_working:
            record = self._known[id].record
            self._changed(id, None if record is None else self._stored(id, record))

    def _stored(self, id: str, record: SubscriptionRecord) -> StoredSubscription:
        _, position, trouble = cursor_of(record, self._cursors.get(bytes.fromhex(id)))
        return StoredSubscription(subscription_of(record, position), trouble)

    def stored(self) -> list[StoredSubscription]:
        return [
            self._stored(id, known.record)
            for id, known in self._known.items()
            if known.record is not None
        ]

    def ids(self) -> Collection[str]:
        return [id for id, known in self._known.items() if known.record is not None]

    def _record(self, id: str) -> SubscriptionRecord | None:
        known = self._known.get(id)
        return None if known is None else known.record

    def _key(self, id: str) -> str:
        return f"{self._shard}.{id}"

    async def save(self, subscription: Subscription) -> None:
        id = subscription_id(subscription.topic, subscription.callback)
        known, old = self._record(id), self._cursors.get(bytes.fromhex(id))
        begins = known.begins if known else subscription.position
        trouble = old[2] if old and known else None
        self._move(id, begins, subscription.position, trouble)
        await self._write(id, record_of(subscription, begins))

    async def delete(self, id: str) -> None:
        if self._record(id) is not None:
            await self._write(id, None)
            self._cursors.remove(bytes.fromhex(id))

    async def _write(self, id: str, record: SubscriptionRecord | None) -> None:
        key = self._key(id)
        while True:
            self.check()
            known = self._known.get(id)
            revision = known.revision if known is not None else 0
            stored: int | None
            if record is not None:
                value = encode(record)
                stored = await self._bucket.replace(key, value, revision, **self._stamp)
            else:
                # After a deletion the key no longer has a revision.
                stored = 0 if await self._bucket.delete(key, revision, **self._stamp) else None
            if stored is not None:
                self._known[id] = _Known(record, stored)
                self._unapplied.add(id)
                asyncio.get_running_loop().call_soon(self._applied, id)
                self.check()
                return
            await self._refresh(id)

    def _applied(self, id: str) -> None:
        """Record that the caller of `save` or `delete` has continued, if this node is the owner."""
        if self._rights.may_write():
            self._unapplied.discard(id)

    def resume(self) -> None:
        """Resume work after the node has renewed its expired lease.

        Report the writes that were stored although `save` or `delete` raised `NotOwner`.
        """
        unapplied, self._unapplied = self._unapplied, set()
        for id in unapplied:
            self._report(id)

    async def _refresh(self, id: str) -> None:
        """Read what another owner has stored. Raise `NotOwner` if that was a later owner."""
        found = await self._bucket.get(self._key(id))
        if found is None:
            self._known[id] = _Known(None, 0)
            return
        if int(found.headers.get("Rs-Epoch", 0)) > self._rights.epoch:
            self._rights.lost()
            raise NotOwner("another node has written this subscription")
        self._known[id] = _Known(None, found.revision)
        with suppress(StorageError):
            if found.value is not None:
                self._known[id].record = decode(found.value, SubscriptionRecord)

    def check(self) -> None:
        """Raise `NotOwner` if this node may not write."""
        if not self.is_working or not self._rights.may_write():
            raise NotOwner("this node does not own the subscription")

    def move(self, id: str, position: int) -> None:
        if (record := self._record(id)) is not None:
            old = self._cursors.get(bytes.fromhex(id))
            self._move(id, record.begins, position, old[2] if old else None)

    def save_failure_state(self, id: str, state: bytes | None) -> None:
        if (record := self._record(id)) is not None:
            old = self._cursors.get(bytes.fromhex(id))
            self._move(id, record.begins, old[1] if old else record.begins, state)

    def _move(self, id: str, begins: int, position: int, trouble: bytes | None) -> None:
        self._cursors.set(bytes.fromhex(id), (begins, position, trouble))

    async def flush(self) -> None:
        await self._cursors.flush()

    async def close(self) -> None:
        """Stop writing for good."""
        self.is_working = False
        self._cursors.close()
        if self._reading is not None:
            self._reading.cancel()
        if self._watch is not None:
            watch, self._watch = self._watch, None
            with suppress(Exception):  # the connection may be closed
                await watch.unsubscribe()


def bridge_key(broker: str) -> str:
    return f"bridge.{hashlib.sha256(broker.encode()).hexdigest()}"


class OwnedBridge:
    """The cursors of brokers, while this node owns the bridge's shard."""

    def __init__(self, bucket: Bucket, rights: OwnerRights) -> None:
        self._bucket = bucket
        self._rights = rights
        self._brokers: dict[str, FencedMap[str, int]] = {}
        self._loading = asyncio.Lock()
        self._is_closed = False

    async def _broker(self, broker: str) -> FencedMap[str, int]:
        async with self._loading:
            found = self._brokers.get(broker)
            if found is None:
                empty = BridgeRecord(epoch=NO_EPOCH, broker=broker)
                found = FencedMap(self._bucket, bridge_key(broker), empty, self._rights)
                self._check()
                await found.load()
                self._brokers[broker] = found
        self._check()
        return found

    def _check(self) -> None:
        if self._is_closed or not self._rights.may_write():
            raise NotOwner("this node does not run the bridge to the broker")

    async def read(self, broker: str) -> dict[str, int]:
        return (await self._broker(broker)).all()

    async def store(self, broker: str, positions: Mapping[str, int]) -> None:
        found = await self._broker(broker)
        for key, position in positions.items():
            found.set(key, position)
        await found.write()

    async def delete(self, broker: str, topic: str) -> None:
        found = await self._broker(broker)
        found.remove(topic)
        await found.write()

    def move(self, broker: str, topic: str, position: int) -> None:
        found = self._brokers.get(broker)
        if found is not None and not self._is_closed:
            found.set(topic, position)

    async def flush(self) -> None:
        for found in self._brokers.values():
            await found.flush()

    def close(self) -> None:
        """Stop writing for good."""
        self._is_closed = True
        for found in self._brokers.values():
            found.close()


class BridgeSwitch:
    """Starts a bridge whenever this node becomes its owner, and stops it when it no longer is.

    The bridge then reads the cursors again, which another node may have moved in the meantime.
    """

    def __init__(self, bridge: BridgeOwner) -> None:
        self._bridge = bridge
        self._wanted: OwnedBridge | None = None
        self._running: OwnedBridge | None = None
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopped.set()
        self._task = asyncio.create_task(self._run())

    def set(self, wanted: OwnedBridge | None) -> None:
        """Run the bridge with these cursors, or stop it if they are None."""
        self._wanted = wanted
        self._changed.set()

    async def stop(self) -> None:
        self.set(None)
        await self._stopped.wait()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if self._wanted is not self._running:
                    await self._change(self._wanted)
            except StorageError as error:
                self._set_stopped()
                if self._wanted is not None:
                    log.warning("the bridge to the broker cannot start yet: %s", error)
                    await asyncio.sleep(RETRY_DELAY)
                    self._changed.set()

    async def _change(self, wanted: OwnedBridge | None) -> None:
        if self._running is not None:
            await self._bridge.close()
            self._set_stopped()
        if wanted is not None:
            self._running = wanted
            self._stopped.clear()
            await self._bridge.start()

    def _set_stopped(self) -> None:
        self._running = None
        self._stopped.set()

    async def close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_DELAY):
                await self.stop()
        await cancel([self._task])
