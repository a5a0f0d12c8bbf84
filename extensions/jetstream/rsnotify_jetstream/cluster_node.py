"""One node of the cluster.

It renews its own record, follows the records of the other nodes, and performs the actions that
`Membership` returns every half second. Each `Acquire`, `Confirm` and `Release` runs in its own
task, at most one per shard. A `Revoke` is performed immediately. Failures of the store are reported
to the `Membership`, which then retries.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from secrets import token_hex
from typing import Any, Protocol

from msgspec.structs import replace

from rsnotify.errors import StorageError, counted
from rsnotify.runtime.tasks import cancel, wait_for_event
from rsnotify_jetstream.bucket import Bucket
from rsnotify_jetstream.cluster_records import (
    META,
    NODES,
    SHARDS,
    ClusterMeta,
    NodeRecord,
    ShardRecord,
    decode,
    encode,
)
from rsnotify_jetstream.shard_ownership import (
    BRIDGE,
    DEFAULT_SHARDS,
    Acquire,
    ClusterPace,
    Confirm,
    Membership,
    Release,
    Revoke,
    ShardAction,
    Sharding,
    ShardView,
)

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def lease_clock() -> float:
    """Return the time in seconds. If possible, the clock also runs while the machine sleeps."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)


class ShardWork(Protocol):
    """The work of a node on the shards that it owns."""

    async def load(self, shard: str, epoch: int) -> None:
        """Prepare work on a shard, without starting it.

        Raises:
            StorageError: The shard cannot be loaded.
        """

    def begin(self, shard: str) -> None:
        """Start work on a loaded shard."""

    def resume(self, shard: str) -> None:
        """Resume work on a shard after this node has confirmed its ownership."""

    async def finish(self, shard: str) -> None:
        """Stop work on a shard within a bounded time, and write its state."""

    def abandon(self, shard: str) -> None:
        """Stop loading or working on a shard immediately, without writing anything."""


logger = logging.getLogger("rsnotify.hub.cluster")

#: Timeout for releasing all shards when a node stops, in seconds.
CLOSE_SECONDS = 10.0
_RETRY_SECONDS = 0.2


class ClusterNode:
    """This node as a member of the cluster, whose records are in `records`.

    `record` is the initial record of this node. `shards` is the number of shards if this node
    creates the cluster.

    Attributes:
        id: The id of this node, which changes with each start.
        nodes: The records of all nodes by id.
        sharding: The mapping of callbacks to shards.
        membership: This node's view of the cluster.
        report: Adds current facts to the record of this node before a renewal.
        moved: The numbers of shards that this node has acquired, released and lost.
    """

    sharding: Sharding
    membership: Membership

    def __init__(
        self,
        records: Bucket,
        record: NodeRecord,
        *,
        shards: int = DEFAULT_SHARDS,
        pace: ClusterPace = ClusterPace(),  # noqa: B008 - it is immutable
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self.id = token_hex(8)
        self.nodes: dict[str, NodeRecord] = {}
        self.report: Callable[[NodeRecord], NodeRecord] = lambda record: record
        self.moved: Counter[str] = Counter(taken=0, released=0, lost=0)
        self._records = records
        self._record = replace(record, started=time.time())
        self._shards = shards
        self._pace = pace
        self._clock = clock
        self._revisions: dict[str, int] = {}
        self._sent: dict[int, float] = {}  # when each renewal was sent
        self._moves: dict[str, asyncio.Task[None]] = {}
        self._wanted = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._work: ShardWork | None = None
        self._unconfirmed = 0

    async def open(self) -> None:
        """Read the records of the cluster, or create them. This node does not join it yet.

        Raises:
            StorageError: The records cannot be read, or a newer hub has created the cluster.
        """
        await self._records.prepare()
        found: dict[str, tuple[bytes | None, int]] = {}
        is_created = asyncio.Event()
        is_loaded = False

        def receive(key: str, value: bytes | None, revision: int) -> None:
            if is_loaded:
                self._seen(key, value, revision)
                return
            found[key] = value, revision
            if key == META:
                is_created.set()

        await self._records.follow(receive)
        if not is_created.is_set():
            created = encode(ClusterMeta(shards=self._shards))
            await self._records.replace(META, created, 0)
            # Another node may have created it first.
            if not await wait_for_event(is_created, CLOSE_SECONDS):
                raise StorageError("cannot follow the records of the cluster")
        meta = found[META][0]
        assert meta is not None
        self.sharding = Sharding(decode(meta, ClusterMeta).shards)
        self.membership = Membership(self.id, self.sharding.names(), self._pace)
        is_loaded = True
        for key, (value, revision) in found.items():
            self._seen(key, value, revision)

    def join(self, work: ShardWork) -> None:
        """Join the cluster, and use `work` for the shards that this node owns."""
        self._work = work
        self._loops = [
            asyncio.create_task(self._renew_all()),
            asyncio.create_task(self._tick_all()),
        ]

    def owns(self, shard: str) -> bool:
        return self.membership.owns(shard, self._clock())

    def may_finish(self, shard: str) -> bool:
        return self.membership.may_finish(shard, self._clock())

    def lost(self, shard: str, epoch: int) -> None:
        """Record that another node has written for a shard that this node worked on."""
        self.membership.lost(shard, epoch)
        self._wanted.set()

    def living(self) -> list[str]:
        return self.membership.living(self._clock())

    def working(self) -> list[str]:
        """Return the shards that this node may work on."""
        return [shard for shard in self.membership.owned() if self.owns(shard)]

    def owners(self) -> Counter[str | None]:
        """Return the number of shards that each living node owns.

        The key None is for free shards. The bridge's shard is included only if a living node can
        run the bridge.
        """
        living = set(self.living())
        bridges = any(self.nodes[node].bridges for node in living if node in self.nodes)
        shards = [name for name in self.sharding.names() if bridges or name != BRIDGE]
        owners = map(self.membership.owner, shards)
        return Counter(owner if owner in living else None for owner in owners)

    # Records that this node sees.

    def _seen(self, key: str, value: bytes | None, revision: int) -> None:
        try:
            if key.startswith(NODES):
                self._node_seen(key.removeprefix(NODES), value, revision)
            elif key.startswith(SHARDS) and value is not None:
                self.membership.shard_seen(key.removeprefix(SHARDS), _view(value, revision))
        except StorageError as error:
            logger.warning("%s", error)

    def _node_seen(self, node: str, value: bytes | None, revision: int) -> None:
        if value is None:
            self.nodes.pop(node, None)
            self._revisions.pop(node, None)
            self.membership.node_gone(node)
            return
        record = decode(value, NodeRecord)
        self.nodes[node] = record
        self._revisions[node] = revision
        now = self._clock()
        if node == self.id:
            now = self._sent.get(record.renewals, float("-inf"))
            self.membership.renewed(now)  # even if the answer to the request was lost
        self.membership.node_seen(
            node, is_draining=record.draining, now=now, bridges=record.bridges
        )

    # Renewals.

    async def _renew_all(self) -> None:
        while True:
            sent_at = self._clock()
            pause = _RETRY_SECONDS
            with suppress(StorageError, TimeoutError):
                # Half of the interval, so that the lease survives a lost message.
                await self._renew(self._pace.renew_seconds / 2)
                pause = max(0.0, self._pace.renew_seconds - (self._clock() - sent_at))
            await asyncio.sleep(pause)

    async def _renew(self, seconds: float) -> None:
        number = self._record.renewals + 1
        sent_at = self._clock()
        self._sent[number] = sent_at
        self._sent.pop(number - 16, None)
        record = replace(self._record, renewals=number, shards=len(self.membership.owned()))
        self._record = self.report(record)
        async with asyncio.timeout(seconds):
            await self._records.put(NODES + self.id, encode(self._record))
        self.membership.renewed(sent_at)

    # Actions.

    async def _tick_all(self) -> None:
        while True:
            try:
                await self._tick()
            except Exception:
                logger.exception("cannot determine which shards this node should own")
            self._wanted.clear()
            await wait_for_event(self._wanted, self._pace.tick_seconds)

    async def _tick(self) -> None:
        now = self._clock()
        for action in self.membership.next_actions(now):
            match action:
                case Revoke():
                    self._revoke(action.shards)
                case Acquire():
                    self._move(action.shard, self._acquire(action))
                case Confirm():
                    self._move(action.shard, self._confirm(action))
                case Release():
                    self._move(action.shard, self._release(action))
        self._report_unconfirmed()
        if not self.membership.is_fenced(now):
            for node in self.membership.forgettable(now):
                with suppress(StorageError):
                    # This fails if the node has renewed its record.
                    await self._records.delete(NODES + node, self._revisions[node])

    def _report_unconfirmed(self) -> None:
        before, self._unconfirmed = self._unconfirmed, len(self.membership.unconfirmed())
        if self._unconfirmed > before:
            logger.warning(
                "this node did not renew its lease in NATS in time: deliveries of %s are paused "
                "until it has, or another node acquires them",
                counted(self._unconfirmed, "shard"),
            )
        elif before and not self._unconfirmed:
            logger.info("this node has renewed its lease")

    def _revoke(self, shards: tuple[str, ...]) -> None:
        assert self._work is not None
        lost = counted(len(shards), "shard")
        logger.warning("this node has lost %s, which other nodes acquire", lost)
        self.moved["lost"] += len(shards)
        for shard in shards:
            if (move := self._moves.pop(shard, None)) is not None:
                move.cancel()
            self._work.abandon(shard)

    def _move(self, shard: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._moves[shard] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._moved(shard, task))

    def _moved(self, shard: str, task: asyncio.Task[None]) -> None:
        if self._moves.get(shard) is task:
            del self._moves[shard]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("cannot move the shard %s", shard, exc_info=error)

    def _is_wanted(self, shard: str) -> bool:
        """Return whether the move that calls this has not been cancelled.

        A cancellation may be lost, because Python 3.11 does not cancel `wait_for` if the result has
        just arrived. In this case, another move of the shard may already be running.
        """
        return self._moves.get(shard) is asyncio.current_task()

    async def _acquire(self, acquire: Acquire) -> None:
        assert self._work is not None
        try:
            revision = await self._write(acquire, self.id)
            if revision is None:
                if self._is_wanted(acquire.shard):
                    self.membership.acquire_failed(acquire)
                return
            if self._is_wanted(acquire.shard):
                await self._work.load(acquire.shard, acquire.epoch)
        except Exception as error:
            if self._is_wanted(acquire.shard):
                self._work.abandon(acquire.shard)
                self.membership.acquire_failed(acquire)
                if isinstance(error, StorageError):
                    self._warn(f"cannot acquire shards, retrying: {error}")
            if not isinstance(error, StorageError):
                raise
            return
        if not self._is_wanted(acquire.shard):
            return
        if self.membership.acquired(acquire, revision):
            try:
                self._work.begin(acquire.shard)
            except Exception:
                self.lost(acquire.shard, acquire.epoch)
                raise
            self.moved["taken"] += 1
            self._wanted.set()  # this node may now acquire another shard
        else:
            self._work.abandon(acquire.shard)

    async def _confirm(self, confirm: Confirm) -> None:
        revision = None
        try:
            revision = await self._write(confirm, self.id)
        except StorageError as error:
            self._warn(f"cannot confirm the ownership of shards, retrying: {error}")
        finally:
            is_owned = self.membership.confirmed(confirm, revision)
        if is_owned:
            assert self._work is not None
            self._work.resume(confirm.shard)
        self._wanted.set()  # another node may have acquired the shard

    def _warn(self, text: str) -> None:
        self._records.connection.warn(logger, text)

    async def _release(self, release: Release) -> None:
        assert self._work is not None
        revision = None
        try:
            await self._work.finish(release.shard)
            revision = await self._write(release, None)
        except StorageError as error:
            self._warn(f"cannot release shards, retrying: {error}")
        finally:
            self.membership.released(release, revision)
        self.moved["released"] += revision is not None
        if self._record.draining and revision is not None:
            self._wanted.set()

    async def _write(self, action: ShardAction, owner: str | None) -> int | None:
        """Replace the record of a shard, and return its new revision.

        If another node has changed the record, pass the leader's version to the membership, and
        return None.
        """
        key = SHARDS + action.shard
        record = encode(ShardRecord(epoch=action.epoch, owner=owner))
        revision = await self._records.replace(key, record, action.revision)
        if revision is None:
            value, current = await self._records.latest(key)
            view = ShardView() if value is None else _view(value, current)
            self.membership.shard_read(action.shard, view)
        return revision

    # Shutdown.

    async def drain(self) -> None:
        """Release all shards, and acquire no more. Return when all are released."""
        self._record = replace(self._record, draining=True)
        while True:
            with suppress(StorageError, TimeoutError):  # NATS may be electing a leader
                await self._renew(self._pace.renew_seconds)
                break
            await asyncio.sleep(_RETRY_SECONDS)
        while not self.membership.is_idle():
            self._wanted.set()
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Release all shards within `CLOSE_SECONDS`, and leave the cluster."""
        if self._loops:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.drain()
                    for task in self._loops:
                        task.cancel()
                    key = NODES + self.id
                    revision = await self._records.put(key, encode(self._record))
                    await self._records.delete(key, revision)
            except (StorageError, TimeoutError):
                logger.warning(
                    "NATS does not answer, so this node stops without releasing its shards: other "
                    "nodes will acquire them in a few seconds, and redeliver some fragments"
                )
        await self.stop()

    async def stop(self) -> None:
        """Stop like after a crash, without releasing shards."""
        tasks = [*self._loops, *self._moves.values()]
        self._loops = []
        await cancel(tasks)
        if self._work is not None:
            for shard in self.sharding.names():
                self._work.abandon(shard)
        await self._records.close()


def _view(value: bytes, revision: int) -> ShardView:
    record = decode(value, ShardRecord)
    return ShardView(record.owner, record.epoch, revision)
