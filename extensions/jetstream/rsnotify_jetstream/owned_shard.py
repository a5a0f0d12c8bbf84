"""A shard of subscriptions on the node that owns it.

A node acquires a shard in three steps. First, it writes the records of the shard's cursors with the
new epoch, so that the previous owner can no longer move them. Second, it watches the keys of the
subscriptions. Third, it writes a special key, the *claim*, and reads the subscriptions from any
server. What it reads is complete if it contains the claim. If writes of the previous owner are
stored later, the watch reports them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing, suppress

from msgspec import Struct
from nats.aio.subscription import Subscription as NatsSubscription

from rsnotify.errors import StorageError, counted
from rsnotify_hub.store.interface import NotOwner, StoredSubscription
from rsnotify_hub.websub_subscription import Subscription, subscription_id
from rsnotify_jetstream.bucket import Bucket, BucketRecord
from rsnotify_jetstream.cluster_records import (
    CursorsRecord,
    SubscriptionRecord,
    cursor_of,
    decode,
    encode,
    record_of,
    subscription_of,
)
from rsnotify_jetstream.fenced_map import NO_EPOCH, FencedMap, OwnerRights

logger = logging.getLogger("rsnotify.hub.store")

#: The record of a shard without cursors.
NO_CURSORS = CursorsRecord(epoch=NO_EPOCH)
#: The last part of the key of the claim.
CLAIM = "claim"
#: Maximum number of reads from servers that lack the claim, and seconds between them.
_MAX_READS, _READ_INTERVAL_SECONDS = 40, 0.1


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
    and its new state, which is None if it was deleted.
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
        """Find the cursors beyond the end of the log, which `begin` will reset to 0.

        The positions of a log start again after it was deleted or restored from a backup.
        """
        positions = {
            subscription_id(each.topic, each.callback): each.position
            for each in (stored.subscription for stored in self.stored())
        }
        end = await reached(max(positions.values(), default=0))
        self._beyond = [id for id, position in positions.items() if position > end]

    def begin(self) -> list[StoredSubscription]:
        """Start working on the shard, and return its subscriptions."""
        self.is_working = True
        for id in self._beyond:
            self.move(id, 0)
        if self._beyond:
            logger.warning(
                "the log in NATS was deleted or restored: %s of the shard %s start again at its "
                "beginning",
                counted(len(self._beyond), "subscription"),
                self._shard,
            )
        return self.stored()

    async def _read_all(self) -> None:
        """Read at least all subscriptions that have been stored so far."""
        key = f"{self._shard}.{CLAIM}"
        claim = await self._bucket.put(key, self._stamp["epoch"].encode())
        for _ in range(_MAX_READS):
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
                        known.record = None  # this node missed the deletion
                        self._report(id)
                return
            await asyncio.sleep(_READ_INTERVAL_SECONDS)
        raise StorageError(f"cannot read the subscriptions of the shard {self._shard}")

    def reload(self) -> None:
        """Read all subscriptions again in the background, in case the watch missed changes."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        with suppress(StorageError):
            await self._read_all()

    def _received(self, record: BucketRecord) -> None:
        if record.headers.get("Rs-Node") != self._stamp["node"]:
            self._apply(record)

    def _apply(self, record: BucketRecord) -> None:
        """Apply a stored record unless it is already known. Report it if work has started."""
        id = record.key.rpartition(".")[2]
        known = self._known.get(id)
        if id == CLAIM or (known is not None and known.revision >= record.revision):
            return
        if self.is_working and record.headers.get("Rs-Node") == self._stamp["node"]:
            return  # this node is writing it
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
                # A deleted key has no revision.
                stored = 0 if await self._bucket.delete(key, revision, **self._stamp) else None
            if stored is not None:
                self._known[id] = _Known(record, stored)
                self._unapplied.add(id)
                asyncio.get_running_loop().call_soon(self._applied, id)
                self.check()
                return
            await self._refresh(id)

    def _applied(self, id: str) -> None:
        """Record that the caller of `save` or `delete` has continued while owning the shard."""
        if self._rights.may_write():
            self._unapplied.discard(id)

    def resume(self) -> None:
        """Resume work after the node has renewed an expired lease.

        Report the writes that were stored although `save` or `delete` raised `NotOwner`.
        """
        unapplied, self._unapplied = self._unapplied, set()
        for id in unapplied:
            self._report(id)

    async def _refresh(self, id: str) -> None:
        """Read the record of another owner. Raise `NotOwner` if that is a later owner."""
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
        """Stop writing permanently."""
        self.is_working = False
        self._cursors.close()
        if self._reading is not None:
            self._reading.cancel()
        if self._watch is not None:
            watch, self._watch = self._watch, None
            with suppress(Exception):  # the connection may be closed
                await watch.unsubscribe()
