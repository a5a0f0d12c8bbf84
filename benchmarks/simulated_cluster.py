"""A cluster of hub nodes on a virtual clock: the real decisions, and a virtual store.

Every node has its own `Membership` with its own view. Simulated are the clocks, the store (a write
is compare-and-set, its answer may be lost), the watch (each node sees all records in order, each
time with another delay) and the loading of subscriptions, for which a node has one processor. Nodes
share only the values of records, which do not change.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from rsnotify_jetstream.shard_ownership import (
    Acquire,
    Action,
    ClusterPace,
    Confirm,
    Membership,
    Release,
    Revoke,
    ShardView,
)

TICK = 0.5
#: How long a request waits for its answer.
TIMEOUT = 1.0
#: Of how many answers one is lost.
LOST = 200
#: Seconds of a processor for loading a shard, and each of its subscriptions (an assumption).
LOAD, LOAD_EACH = 0.001, 20e-6
#: For how long a node loads one shard before it goes on with another, in seconds.
SLICE = 0.02
#: Seconds for which nothing may change until the cluster is called stable.
QUIET = 10.0


@dataclass
class Pause:
    """A time in which nobody delivered a shard's subscriptions.

    Args:
        shard: The shard.
        unowned: Seconds until a node owned it.
        undelivered: Seconds until that node had loaded it.
    """

    shard: str
    unowned: float
    undelivered: float


@dataclass
class Journal:
    """What happened since a scenario began."""

    began: float
    moved: int = 0
    pauses: list[Pause] = field(default_factory=list)
    writes: Counter[int] = field(default_factory=Counter)
    refused: int = 0
    messages: int = 0
    last_change: float = 0.0


class SimulatedNode:
    """A node: the shell of a `Membership`."""

    def __init__(self, name: str, cluster: SimulatedCluster) -> None:
        self.name = name
        self.membership = Membership(name, cluster.shards, cluster.pace)
        self.is_draining = False
        self.is_running = True
        self._frozen_until = 0.0
        self._cluster = cluster
        self._offset = cluster.random.uniform(-1000, 1000)
        self._position = cluster.load_records(self.membership, self.clock())
        self._renewed = float("-inf")
        self._loading: deque[tuple[float, Callable[[], None]]] = deque()
        cluster.after(cluster.random.uniform(0, TICK), self._guarded(self._tick))
        self._renew()

    def clock(self) -> float:
        return self._cluster.now + self._offset

    @property
    def is_active(self) -> bool:
        return self.is_running and self._cluster.now >= self._frozen_until

    def may_deliver(self, shard: str) -> bool:
        return self.is_active and self.membership.owns(shard, self.clock())

    def fenced_at(self) -> float:
        """Return the instant, by the cluster's clock, at which its lease is over."""
        return self._renewed + self._cluster.pace.fence_seconds

    def freeze(self, seconds: float) -> None:
        self._frozen_until = self._cluster.now + seconds

    def drain(self) -> None:
        self.is_draining = True
        self._renew_once()

    def _guarded(self, event: Callable[[], None]) -> Callable[[], None]:
        """Make an event happen only while the node runs, and not while it is frozen."""

        def happen() -> None:
            if self.is_active:
                event()
            elif self.is_running:
                self._cluster.after(self._frozen_until - self._cluster.now, happen)

        return happen

    def _tick(self) -> None:
        self._follow()
        self._decide()
        if self.is_draining and self.membership.is_idle():
            self._cluster.remove(self)
        else:
            self._cluster.after(TICK, self._guarded(self._tick))

    def _decide(self) -> None:
        actions = self.membership.next_actions(self.clock())
        self._cluster.stop(self, self.membership.unconfirmed())
        for action in actions:
            self._perform(action)

    def _follow(self) -> None:
        """Handle the records that have arrived since the last time, as of their arrival."""
        delay, offset = self._cluster.delay(), self._offset
        until = self._cluster.now - delay
        log, position = self._cluster.log, self._position
        node_seen, shard_seen = self.membership.node_seen, self.membership.shard_seen
        while position < len(log) and log[position][0] <= until:
            written, key, value = log[position]
            position += 1
            if isinstance(value, ShardView):
                shard_seen(key, value)
            elif value is None:
                self.membership.node_gone(key)
            else:
                arrived = max(written + delay, self._frozen_until)
                node_seen(key, is_draining=value, now=arrived + offset)
        self._position = position

    def _renew(self) -> None:
        self._renew_once()
        self._cluster.after(self._cluster.pace.renew_seconds, self._guarded(self._renew))

    def _renew_once(self) -> None:
        sent_at = self._cluster.now

        def note() -> None:
            self.membership.renewed(sent_at + self._offset)
            self._renewed = max(self._renewed, sent_at)

        def arrive() -> None:
            if self.is_running and self._cluster.put(self.name, self.is_draining):
                self._answer(note)

        self._cluster.after(self._cluster.delay(), arrive)

    def _answer(self, event: Callable[[], None], delay: float | None = None) -> None:
        self._cluster.after(delay or self._cluster.delay(), self._guarded(event))

    def _perform(self, action: Action) -> None:
        if isinstance(action, Revoke):
            self._cluster.stop(self, action.shards)
            return
        if isinstance(action, Release):
            self._cluster.stop(self, (action.shard,))
        self._cluster.after(self._cluster.delay(), lambda: self._write(action))

    def _write(self, action: Acquire | Release | Confirm) -> None:
        owner = None if isinstance(action, Release) else self.name
        revision = self._cluster.write(action.shard, owner, action.epoch, action.revision)
        if revision is None or not self._cluster.random.randrange(LOST):
            found = None if revision else self._cluster.record(action.shard)
            self._answer(lambda: self._failed(action, found), TIMEOUT if revision else None)
        elif isinstance(action, Acquire):
            self._answer(lambda: self._load(action, revision))
        elif isinstance(action, Confirm):
            self._answer(lambda: self._confirmed(action, revision))
        else:
            self._answer(lambda: self._released(action, revision))

    def _failed(self, action: Acquire | Release | Confirm, found: ShardView | None) -> None:
        if found is not None:
            self.membership.shard_read(action.shard, found)
        if isinstance(action, Acquire):
            self.membership.acquire_failed(action)
        elif isinstance(action, Confirm):
            self.membership.confirmed(action)
        else:
            self.membership.released(action)

    def _confirmed(self, confirm: Confirm, revision: int) -> None:
        self.membership.confirmed(confirm, revision)
        if self.membership.owns(confirm.shard, self.clock()):
            self._cluster.start(self, confirm.shard, self._cluster.now)

    def _released(self, release: Release, revision: int) -> None:
        self.membership.released(release, revision)
        if self.is_draining:
            self._decide()

    def _load(self, acquire: Acquire, revision: int) -> None:
        owned = self._cluster.now

        def loaded() -> None:
            if self.membership.acquired(acquire, revision):
                self._cluster.start(self, acquire.shard, owned)
                self._decide()  # another one may be taken now

        self._loading.append(
            (LOAD + LOAD_EACH * self._cluster.subscriptions[acquire.shard], loaded)
        )
        if len(self._loading) == 1:
            self._load_slice()

    def _load_slice(self) -> None:
        """Load a part of the first shard, which is the last one afterwards."""
        seconds, loaded = self._loading[0]
        part = min(seconds, SLICE)

        def end() -> None:
            self._loading.popleft()
            if seconds > part:
                self._loading.append((seconds - part, loaded))
            if self._loading:
                self._load_slice()
            if seconds <= part:
                loaded()

        self._answer(end, part)


class SimulatedCluster:
    """Nodes around one store, and who delivers what.

    Args:
        subscriptions: How many subscriptions each shard has.
        pace: How fast nodes and shards change.
        seed: Of all that is random.
    """

    def __init__(self, subscriptions: dict[str, float], pace: ClusterPace, seed: int) -> None:
        self.subscriptions = subscriptions
        self.shards = tuple(subscriptions)
        self.pace = pace
        self.random = Random(seed)
        self.now = 0.0
        self.nodes: dict[str, SimulatedNode] = {}
        #: What the store told: the instant, the key, and a shard's record or whether a node drains.
        self.log: list[tuple[float, str, ShardView | bool | None]] = []
        self.journal = Journal(0.0)
        self.away_until = 0.0
        self._records = dict.fromkeys(self.shards, ShardView())
        self._members: dict[str, bool] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._delivering: dict[str, SimulatedNode] = {}
        self._stopped: dict[str, float] = {}
        self._last: dict[str, str] = {}

    # The virtual time.

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, event))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = end

    def run_until_stable(self) -> bool:
        """Run until all shards are delivered and nothing changes; return whether that happened."""
        end = self.now + 600
        while self.now < end:
            self.run(1.0)
            if self.is_complete() and self.now - self.journal.last_change >= QUIET:
                return True
        return False

    def is_complete(self) -> bool:
        return len(self._delivering) == len(self.shards)

    def delay(self) -> float:
        """Return how long a message takes."""
        return 0.3 if self.random.random() < 0.02 else self.random.uniform(0.001, 0.02)

    # The store.

    def load_records(self, membership: Membership, now: float) -> int:
        """Report all records to a new node; return where it follows on."""
        for name, is_draining in self._members.items():
            membership.node_seen(name, is_draining=is_draining, now=now)
        for shard, view in self._records.items():
            membership.shard_seen(shard, view)
        return len(self.log)

    def put(self, name: str, is_draining: bool) -> bool:
        """Write the record of a node."""
        if self.now < self.away_until:
            return False
        self._members[name] = is_draining
        self.log.append((self.now, name, is_draining))
        return True

    def write(self, shard: str, owner: str | None, epoch: int, revision: int) -> int | None:
        """Compare and set; return the new revision."""
        self.journal.writes[int(self.now)] += 1
        if self.now < self.away_until or self._records[shard].revision != revision:
            self.journal.refused += 1
            return None
        view = self._records[shard] = ShardView(owner, epoch, len(self.log) + 1)
        self.log.append((self.now, shard, view))
        self.journal.messages += len(self.nodes)
        return view.revision

    def record(self, shard: str) -> ShardView | None:
        """Return the record of a shard; None while the store is away."""
        return None if self.now < self.away_until else self._records[shard]

    def _delete(self, name: str) -> None:
        if self._members.pop(name, None) is not None:
            self.log.append((self.now, name, None))

    # What happens to nodes.

    def join(self, name: str) -> SimulatedNode:
        node = self.nodes[name] = SimulatedNode(name, self)
        return node

    def remove(self, node: SimulatedNode) -> None:
        """End a node that has released everything."""
        node.is_running = False
        del self.nodes[node.name]
        self._delete(node.name)

    def kill(self, node: SimulatedNode) -> None:
        """End a node; its record is deleted by another one, but not soon."""
        self.stop(node, self.delivered_by(node))
        node.is_running = False
        del self.nodes[node.name]
        self.after(60, lambda: self._delete(node.name))

    def freeze(self, node: SimulatedNode, seconds: float) -> None:
        shards = self.delivered_by(node)
        self.stop(node, shards)
        node.freeze(seconds)
        self.after(seconds, lambda: self._check_fenced(node, shards))

    # Who delivers what.

    def begin(self) -> Journal:
        """Begin a new journal."""
        self.journal = Journal(self.now, last_change=self.now)
        return self.journal

    def delivered_by(self, node: SimulatedNode) -> list[str]:
        return [shard for shard, one in self._delivering.items() if one is node]

    def deliverer(self, shard: str) -> str | None:
        node = self._delivering.get(shard)
        return node.name if node else None

    def stop(self, node: SimulatedNode, shards: Iterable[str]) -> None:
        """Note that a node does not deliver shards any more."""
        for shard in shards:
            if self._delivering.get(shard) is node:
                del self._delivering[shard]
                self._stopped[shard] = min(self.now, node.fenced_at())
                self.journal.last_change = self.now

    def start(self, node: SimulatedNode, shard: str, owned: float) -> None:
        """Note that a node delivers a shard, which it has owned since an instant."""
        former = self._delivering.get(shard)
        if former is not None:
            assert not former.may_deliver(shard), (shard, former.name, node.name)
            self.stop(former, [shard])
        if node.may_deliver(shard):
            began = self._stopped.get(shard, self.journal.began)
            self._delivering[shard] = node
            self.journal.pauses.append(Pause(shard, owned - began, self.now - began))
            self.journal.moved += self._last.get(shard) != node.name
            self.journal.last_change = self.now
            self._last[shard] = node.name

    def _check_fenced(self, node: SimulatedNode, shards: list[str]) -> None:
        """Check that a node that continues delivers nothing that others do."""
        assert not any(node.may_deliver(each) and each in self._delivering for each in shards)
