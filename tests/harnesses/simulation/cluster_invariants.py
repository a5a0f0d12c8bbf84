"""What must hold of a cluster of hub nodes, besides I1 to I10.

C1  The owner of a shard changes by a later epoch, and only the last owner writes its cursors.
C2  At most one node works on a shard at a time.
C3  A cursor does not pass what its callback has accepted.
C4  A callback receives each fragment, in the order of the log.
C5  What a node has acknowledged is durable in the log.
C6  A node gives up a shard only if there is a later owner, or it could not renew its lease.
C7  `/readyz` is right, and says what is missing.
C8  A wrong clock is reported only if a clock was wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import aiohttp

import rsnotify_jetstream.jetstream_store as jetstream_store
from rsnotify.format.datetimes import Instant, from_microseconds
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.store.interface import LogRetention
from rsnotify_hub.websub_subscription import subscription_id
from rsnotify_jetstream.cluster_node import ClusterNode
from rsnotify_jetstream.cluster_records import CursorsRecord, ShardRecord, decode
from rsnotify_jetstream.jetstream_log import JetStreamLog
from rsnotify_jetstream.log_index import LogIndex
from rsnotify_jetstream.log_records import LogRecord, RecordKind, digest_of, read_record
from tests.harnesses.simulation import faults
from tests.harnesses.simulation.history import Wrong
from tests.harnesses.simulation.loop import current_loop, current_machine
from tests.harnesses.simulation.nats_server import Backup
from tests.harnesses.simulation.streams import Change, Message, Store, Stream
from tests.harnesses.simulation.wire import after_last

if TYPE_CHECKING:
    from tests.harnesses.simulation.cluster import ClusterRun, HubNode

#: The name of the log that the nodes share, in the checks of fragments.
LOG_NAME = "cluster"
_LOG, _CLUSTER, _CURSORS = "rsnotify-log", "KV_rsnotify-cluster", "KV_rsnotify-cursors"
_FOREVER = LogRetention(size=2**40, age=timedelta(days=36_500))
#: Seconds in which a node renews its lease that is connected to a server which reaches the leader:
#: it notices in 4 that data on the connection is delayed, and connects again.
_LEASE_SECONDS = 10.0
#: Seconds in which a request for the readiness may share a check that has begun before.
_SHARED_SECONDS = 20.0
_WATCH_SECONDS = 0.5
#: Seconds between requests for the readiness after the faults.
_READY_SECONDS = 2.0


class ClusterCheck:
    """The checks of one run.

    Args:
        run: The run.
        topic: The topic of the Source.
    """

    def __init__(self, run: ClusterRun, topic: str) -> None:
        self._run = run
        self._topic = topic
        self._streams: dict[str, Stream] = {}
        self._index = LogIndex(_FOREVER)
        #: The records of the topic that count, by their positions.
        self._records: dict[int, LogRecord] = {}
        #: The epoch of each shard, as its record and its cursors have it.
        self._epochs: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._owners: dict[str, str | None] = {}
        self._checked = -1.0
        #: Since when each node can use NATS, and has not been disturbed.
        self._possible: dict[str, float] = {}
        #: What the nodes have answered last that are not ready.
        self._unready: dict[str, str] = {}
        self._had_wrong_clock = False

    # What becomes durable.

    def restored(self, backup: Backup) -> None:
        """Forget what the servers stored after a backup."""
        self._streams, self._index, self._records = {}, LogIndex(_FOREVER), {}
        self._epochs, self._written, self._owners = {}, {}, {}
        self._run.wire.forgotten(LOG_NAME)
        for name, log in backup.items():
            for _, change in log:
                self.changed(name, change)

    def changed(self, name: str, change: Change) -> None:
        stream = self._streams.setdefault(name, Stream({}, 0))
        if name in (_CLUSTER, _CURSORS):
            stream.config["max_msgs_per_subject"] = 1
        if isinstance(change, Store):
            for seq, message in enumerate(change.messages, stream.last + 1):
                self._stored(name, seq, message)
        stream.apply(change)

    def _stored(self, name: str, seq: int, message: Message) -> None:
        key = message.headers.get("Rs-Key", "")
        if name == _LOG:
            self._logged(seq, message)
        elif name == _CLUSTER and key.startswith("shard.") and message.body:
            self._owned(key.removeprefix("shard."), decode(message.body, ShardRecord))
        elif name == _CURSORS and key.isdigit() and message.body:
            self._moved(key, decode(message.body, CursorsRecord))

    def _logged(self, seq: int, message: Message) -> None:
        record = read_record(seq, message.headers, len(message.body))
        if record is None:
            raise Wrong(f"{message} is not of a hub")
        if record.kind is RecordKind.CHECK:
            self._checked = self._run.loop.now
            return
        applied = self._index.apply(record)
        if applied.forgotten:
            self._run.note("the log of the cluster begins again")
            self._run.wire.forgotten(LOG_NAME, record.topic)
            if record.topic == self._topic:
                self._records.clear()
        if applied.added:
            end = from_microseconds(record.until)
            self._run.note(f"the cluster stores {end} at {seq}")
            self._run.wire.stored(LOG_NAME, record.topic, [end])
            if record.topic == self._topic:
                self._records[seq] = record

    def _owned(self, shard: str, record: ShardRecord) -> None:
        self._run.note(f"the shard {shard} has the owner {record.owner} at {record.epoch}")
        is_known = record.owner is not None and record.owner == self._owners.get(shard)
        if record.epoch < self._epochs.get(shard, 0) + (not is_known):
            raise Wrong(f"C1: {record.owner} takes {shard} at {record.epoch}, which is not later")
        self._epochs[shard] = record.epoch
        self._owners[shard] = record.owner

    def _moved(self, shard: str, record: CursorsRecord) -> None:
        written = self._written.get(shard, 0)
        if record.epoch < written:
            raise Wrong(f"C1: an owner of {shard} at {record.epoch} writes after one at {written}")
        self._written[shard] = record.epoch
        for callback in self._run.callbacks:
            id = bytes.fromhex(subscription_id(self._topic, callback.url))
            cursor = record.cursors.get(id)
            if cursor is None:
                continue
            begins, position, _ = cursor
            passed = [
                from_microseconds(each.until)
                for seq, each in self._records.items()
                if begins < seq <= position
            ]
            if passed and (callback.through is None or max(passed) > callback.through):
                raise Wrong(
                    f"C3: the cursor of {callback.name} is at {position}, {max(passed)}, and it "
                    f"has {callback.through}"
                )

    # Callbacks.

    def received(self, name: str, begin: Instant, until: Instant, through: Instant | None) -> None:
        self._run.note(f"{name} receives {begin} to {until}")
        if through is not None and begin > through:
            later = after_last(self._run.wire.ends(LOG_NAME, self._topic), through)
            if any(through < end <= begin for end in later):
                raise Wrong(f"C4: {name} receives {begin} to {until} after {through}")

    # Nodes.

    def _running(self) -> Iterator[HubNode]:
        for node in self._run.nodes:
            if node.machine is not None and not node.is_paused and node.store is not None:
                yield node

    def check(self) -> None:
        """C2 and C6: compare what the nodes regard as their own, and whether they can work."""
        owners: dict[str, str] = {}
        now = self._run.loop.now
        for node in self._running():
            assert node.store is not None
            member = node.store.node
            since = self._possible.get(node.name, now)
            is_late = now - since > _LEASE_SECONDS and not node.is_stopping
            if is_late and member.membership.is_fenced(now):
                raise Wrong(f"C6: {node.name} has no lease, and NATS was there since {since:.1f}")
            for shard in node.store.node.working():
                if (other := owners.setdefault(shard, node.name)) != node.name:
                    raise Wrong(f"C2: {other} and {node.name} work on the shard {shard}")

    def acknowledged(self, topic: str, fragments: Sequence[Fragment]) -> None:
        """C5: fragments are acknowledged that a node has appended."""
        ends = set(self._run.wire.ends(LOG_NAME, topic))
        for each in fragments:
            if each.until not in ends:
                digest = digest_of(each).hex()
                raise Wrong(f"C5: {each.until} ({digest}) is acknowledged, and not in the log")

    def lost(self, shard: str, epoch: int) -> None:
        """C6: a node gives up a shard since another one has written for it."""
        self._run.note(f"the owner of {shard} at {epoch} finds that there is another one")
        if max(self._epochs.get(shard, 0), self._written.get(shard, 0)) <= epoch:
            machine = current_machine()
            name = machine.name if machine else ""
            raise Wrong(f"C6: {name} gives up the shard {shard} at {epoch}, which it owns")

    def gives_up(self, node: str, shards: Sequence[str]) -> None:
        """C6: a node gives up shards, of which it may still be the owner in NATS."""
        machine = current_machine()
        assert machine is not None
        since = self._possible.get(machine.name)
        seconds = 0.0 if since is None else self._run.loop.now - since
        own = [each for each in shards if self._owners.get(each) == node]
        self._run.note(f"{machine.name} gives up {shards}; NATS was there for {seconds:.1f} s")
        if own and seconds > _LEASE_SECONDS:
            raise Wrong(f"C6: {machine.name} gives up {own}, and NATS was there")

    def disturb(self) -> None:
        """Note that any connection may be delayed or broken."""
        self._possible.clear()

    def watch(self) -> None:
        """Note from time to time which nodes could use NATS."""
        loop = self._run.loop
        possible = self._possible
        for node in self._run.nodes:
            if not self._can_use_nats(node):
                possible.pop(node.name, None)
            else:
                possible.setdefault(node.name, loop.now)
        self.watch_clocks()
        loop.call_at(loop.now + _WATCH_SECONDS, self.watch)

    def watch_clocks(self) -> None:
        now = self._run.loop.now
        clocks = [each.clock for each in (*self._run.servers.all, *self._run.nodes)]
        self._had_wrong_clock |= any(abs(each.read(now) - now) > 1 for each in clocks)

    def _can_use_nats(self, node: HubNode) -> bool:
        if node.machine is None or node.is_paused or node.store is None:
            return False
        network = self._run.network
        up = [
            each
            for each in self._run.servers.all
            if each.machine is not None and not each.is_paused
        ]
        leader = self._run.servers.leader(_CLUSTER)
        if leader is None or leader not in up:
            return False
        near = [each.name for each in up if not network.are_cut(leader.name, each.name)]
        server = node.store.connection.server
        return len(near) >= 2 and server in near and not network.are_cut(node.name, server)

    # Readiness and clocks.

    async def request_readiness(self, node: HubNode) -> None:
        begin = self._run.loop.now
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with (
                faults.open_client() as client,
                client.get(f"http://127.0.0.1:{node.port}/readyz") as response,
            ):
                text = await response.text()
                self._run.note(f"{node.name} answers {response.status}: {text.strip()}")
                self._ready(node, response.status, text, begin)

    def _ready(self, node: HubNode, status: int, text: str, begin: float) -> None:
        if status == 200:
            self._unready.pop(node.name, None)
            if self._checked < begin - _SHARED_SECONDS:
                raise Wrong(f"C7: {node.name} is ready, and nothing was stored")
        else:
            self._unready[node.name] = text
            if "least 0 records" in text:
                raise Wrong(f"C7: {node.name} is not ready, and does not say why: {text}")

    def warned(self, warnings: Sequence[str]) -> None:
        """C8: a node reports what is wrong with the servers."""
        self.watch_clocks()
        for each in warnings:
            if "the clock of NATS is" in each and not self._had_wrong_clock:
                raise Wrong(f"C8: all clocks are right: {each}")

    # The end.

    def ended(self) -> None:
        """C7: request the readiness of all nodes from now on, until each is ready."""
        for node in self._run.nodes:
            self._unready[node.name] = "no answer"
            self._run.intruder.spawn(self._wait_for_readiness(node))

    async def _wait_for_readiness(self, node: HubNode) -> None:
        while node.name in self._unready:
            await self.request_readiness(node)
            await asyncio.sleep(_READY_SECONDS)

    def is_level(self) -> bool:
        """Return whether callbacks have everything, shards have an owner, and nodes are ready."""
        ends = self._run.wire.ends(LOG_NAME, self._topic)
        working = [
            shard for node in self._running() if node.store for shard in node.store.node.working()
        ]
        return (
            not self._unready
            and len(working) == len(self._epochs) > 0
            and bool(ends)
            and all(
                each.is_verified and each.through is not None and each.through >= ends[-1]
                for each in self._run.callbacks
            )
        )

    def describe(self) -> str:
        found = [f"{each.name}: {each.is_verified} {each.through}" for each in self._run.callbacks]
        found += [f"{name} is not ready: {text}" for name, text in self._unready.items()]
        for node in self._running():
            assert node.store is not None
            found.append(f"{node.name}: {node.store.node.working()} {node.store.trouble()}")
        return "; ".join(found)


def _check() -> ClusterCheck:
    loop: Any = current_loop()
    check: ClusterCheck = loop.check_cluster
    return check


_append = JetStreamLog.append
_lost = ClusterNode.lost
_revoke = ClusterNode._revoke
_warnings_of = jetstream_store.warnings_of


def patch() -> None:
    """Report what the nodes do to the check of the run."""

    async def append(
        self: Any, topic: str, fragments: Any, *, after: int, replacing: int | None
    ) -> int:
        count = await _append(self, topic, fragments, after=after, replacing=replacing)
        _check().acknowledged(topic, fragments)
        return count

    def lost(self: Any, shard: str, epoch: int) -> None:
        _check().lost(shard, epoch)
        _lost(self, shard, epoch)

    def revoke(self: Any, shards: Sequence[str]) -> None:
        if shards:
            _check().gives_up(self.id, shards)
        _revoke(self, shards)

    def warnings_of(facts: Any, **options: Any) -> list[str]:
        found = _warnings_of(facts, **options)
        _check().warned(found)
        return found

    for target, name, replacement in (
        (JetStreamLog, "append", append),
        (ClusterNode, "lost", lost),
        (ClusterNode, "_revoke", revoke),
        (jetstream_store, "warnings_of", warnings_of),
    ):
        setattr(target, name, replacement)
