"""Decides which node owns which shard. The inputs are events and times, the outputs actions.

Each node renews its record in the store, and observes the records of the other nodes. A node is
*alive* while its record keeps changing. Each observer measures this with its own clock, so clocks
are never compared. Shards are assigned to living nodes by rendezvous hashing (`Assignment`), so
nodes that see the same members agree without communicating. Each shard has a record with its owner
and an *epoch*, which increases with each change of ownership.

    state        event                                     next state   action
    free         assigned to this node, no living owner    acquiring    Acquire
    acquiring    acquired                                  owned
    acquiring    acquire_failed                            free
    owned        assigned to another node                  releasing    Release
    releasing    released                                  free
    owned        fenced                                    unconfirmed
    unconfirmed  the node has renewed its record           confirming   Confirm
    confirming   confirmed                                 owned
    acquiring, releasing, confirming: fenced               free         Revoke
    any          the record has a later epoch              free         Revoke

Safety: a node that has not renewed its record for `fence_seconds`, by its own clock, is *fenced*,
which means that it owns nothing. The other nodes consider it dead only later, after
`death_seconds`. A node that was paused is therefore fenced when it continues. If its earlier writes
are delayed, the store refuses them, because the next owner has changed the revision that they
expect. A node that has not seen its own recent renewals has an outdated view, and takes no actions:
other nodes may seem dead because it has not processed their renewals yet.

A store without a leader for a few seconds fences every node, although no node can acquire a shard
during that time. Therefore a fenced node keeps its loaded shards, but does not work on them. After
it has renewed its record, it writes the records of its shards again, expecting the revisions that
it knows. If such a write succeeds, no other node has acquired the shard, and this node resumes
work.

A new node is assigned shards only after `settle_seconds`, and an owner releases only some shards at
a time. Therefore a restart or a new node never moves all shards at once, and deliveries on the
others continue. Shards without an owner are acquired in a few steps, regardless of their number.

Cost: `next_actions` examines each node and the shards of this node, but not all shards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum, auto
from functools import lru_cache
from hashlib import blake2b

from msgspec import Struct


def weight(node: str, shard: str) -> bytes:
    """Return the weight of a node for a shard, which is long enough to be unique."""
    return blake2b(f"{node} {shard}".encode(), digest_size=16).digest()


class Assignment:
    """The shards of one node, which are those for which it has the highest weight of all nodes.

    For each other shard, one *rival* is known: any node with a higher weight. Therefore a node that
    joins is only compared for the shards of this node. After a node has left, a search is only
    needed for the shards whose rival it was, and tries about log(nodes) nodes. An update compares
    one shard with all nodes, or all shards with one node, but never all shards with all nodes.
    """

    def __init__(self, node: str, shards: Iterable[str]) -> None:
        self._node = node
        self._others: set[str] = set()
        self._is_candidate = False
        self._won = dict.fromkeys(shards)
        self._rivals: dict[str, str] = {}

    def set_nodes(self, nodes: set[str]) -> None:
        """Replace the set of nodes. This node has shards only if it is in the set."""
        self._is_candidate = self._node in nodes
        others = nodes - {self._node}
        joined, left = others - self._others, self._others - others
        self._others = others
        if left:
            self._find_rivals([s for s, rival in self._rivals.items() if rival in left], others)
        if joined:
            self._find_rivals(list(self._won), joined)

    def _find_rivals(self, shards: list[str], nodes: Collection[str]) -> None:
        for shard in shards:
            own = weight(self._node, shard)
            rival = next((node for node in nodes if weight(node, shard) > own), None)
            if rival is None:
                self._rivals.pop(shard, None)
                self._won[shard] = None
            else:
                self._won.pop(shard, None)
                self._rivals[shard] = rival

    @property
    def own(self) -> Collection[str]:
        """The shards of this node, in a fixed order."""
        return self._won.keys() if self._is_candidate else ()


#: The shard of the bridge to the MQTT broker.
BRIDGE = "mqtt"
DEFAULT_SHARDS = 64


class Sharding:
    """The shards of a cluster: `count` shards of subscriptions, and the shard of the bridge.

    The count never changes. Callbacks with the same host and port are in the same shard, so that
    one node applies the limits of each host, and keeps the connections to it.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.shard_of = lru_cache(maxsize=65_536)(self._shard_of)

    def names(self) -> tuple[str, ...]:
        return (*map(str, range(self.count)), BRIDGE)

    def _shard_of(self, authority: str) -> str:
        digest = blake2b(authority.encode(), digest_size=8).digest()
        return str(int.from_bytes(digest) % self.count)


class ClusterPace(Struct, frozen=True):
    """The timing of the cluster. Each node uses its own clock.

    Args:
        renew_seconds: The interval between renewals of a node's record.
        fence_seconds: The time without a renewal after which a node is fenced.
        death_seconds: The time without an observed renewal after which a node is considered dead.
        settle_seconds: How long a new node waits for its first shards. In this time, it observes a
            renewal by each living node.
        moves: The maximum number of shards that a node acquires or releases concurrently, with the
            exception of `part`.
        part: A node may concurrently acquire, or release while it drains, up to one in `part` of
            its shards, if that is more than `moves`.
        forget_seconds: The time until the record of a dead node is deleted.
        tick_seconds: The interval between decisions of a node.
    """

    renew_seconds: float = 2.0
    fence_seconds: float = 4.0
    death_seconds: float = 6.0
    settle_seconds: float = 3.0
    moves: int = 8
    part: int = 4
    forget_seconds: float = 60.0
    tick_seconds: float = 0.5


class _NodeView(Struct):
    first_seen: float
    last_seen: float
    is_draining: bool
    bridges: bool


class NodeViews:
    """The records of all nodes, as last seen by one of them.

    While the store is unavailable, no node can renew its record. Therefore a node that has not seen
    its own renewals does not consider the others dead, and all nodes keep the shards that they
    owned.
    """

    def __init__(self, node: str, pace: ClusterPace) -> None:
        self.node = node
        self._pace = pace
        self._members: dict[str, _NodeView] = {}

    def node_seen(self, node: str, *, is_draining: bool, now: float, bridges: bool = True) -> None:
        """Process a write to a node's record.

        `now` is the current time or, for this node's own record, the time when it was sent.
        `bridges` is whether the node can run the bridge to a broker.
        """
        known = self._members.get(node)
        if known is None:
            self._members[node] = _NodeView(now, now, is_draining, bridges)
            return
        if node == self.node and now - known.last_seen >= self._pace.fence_seconds:
            self._excuse_silence(known.last_seen, now)
        known.last_seen = now
        known.is_draining = is_draining

    def _excuse_silence(self, since: float, now: float) -> None:
        """Treat the nodes that were alive before this node was suspended as alive now."""
        for view in self._members.values():
            if since - view.last_seen < self._pace.death_seconds:
                view.last_seen = max(view.last_seen, now)

    def node_gone(self, node: str) -> None:
        self._members.pop(node, None)

    def is_current(self, now: float) -> bool:
        """Return whether this node sees its own renewals, and has had time to see the others'."""
        own = self._members.get(self.node)
        return (
            own is not None
            and now - own.last_seen < self._pace.fence_seconds
            and now - own.first_seen >= self._pace.settle_seconds
        )

    def candidates(self, now: float) -> set[str]:
        """Return the nodes that may own shards.

        A record without a renewal since this node first saw it may belong to a dead node. Nodes
        that this node first saw while it was settling are not newer than this node.
        """
        settle = self._pace.settle_seconds
        settled = max(now - settle, self._members[self.node].first_seen + settle)
        living = now - self._pace.death_seconds
        return {
            name
            for name, view in self._members.items()
            if not view.is_draining
            and view.last_seen > max(living, view.first_seen)
            and view.first_seen <= settled
        }

    def is_alive(self, node: str, now: float) -> bool:
        """Return whether a node has renewed its record within `death_seconds`."""
        view = self._members.get(node)
        return view is not None and now - view.last_seen < self._pace.death_seconds

    def living(self, now: float) -> list[str]:
        return [node for node in self._members if self.is_alive(node, now)]

    def forgettable(self, now: float) -> list[str]:
        """Return the nodes that have been dead for long enough to delete their records."""
        seconds = self._pace.forget_seconds
        return [node for node, view in self._members.items() if now - view.last_seen >= seconds]

    def is_draining(self, node: str) -> bool:
        view = self._members.get(node)
        return view is not None and view.is_draining


class ShardAction(Struct, frozen=True):
    """An action that writes the record of a shard by compare-and-set.

    `revision` is the revision of the record to replace, or 0 if there is no record. `epoch` is the
    epoch of the new record.
    """

    shard: str
    epoch: int
    revision: int


class Acquire(ShardAction, frozen=True):
    """Acquire a shard by writing its record, then load it and call `acquired`."""


class Release(ShardAction, frozen=True):
    """Stop work on a shard, write its state and its record, and call `released`."""


class Confirm(ShardAction, frozen=True):
    """Write the record of an owned shard again, and call `confirmed`."""


class Revoke(Struct, frozen=True):
    """Stop work on shards that this node no longer owns, without writing anything."""

    shards: tuple[str, ...]


Action = Acquire | Release | Confirm | Revoke


class ShardView(Struct, frozen=True):
    """The record of a shard, as last seen, and its revision. A free shard has no owner."""

    owner: str | None = None
    epoch: int = 0
    revision: int = 0


class _Holding(Enum):
    FREE = auto()
    ACQUIRING = auto()
    OWNED = auto()
    UNCONFIRMED = auto()
    CONFIRMING = auto()
    RELEASING = auto()

    @property
    def is_loaded(self) -> bool:
        return self not in (_Holding.FREE, _Holding.ACQUIRING)


class _Hold(Struct):
    """This node's hold on a shard, and the epoch of the hold."""

    state: _Holding
    epoch: int


_NOTHING = _Hold(_Holding.FREE, 0)


class Membership(NodeViews):
    """One node's view of the cluster. A node gets a new id when it restarts."""

    def __init__(self, node: str, shards: tuple[str, ...], pace: ClusterPace) -> None:
        super().__init__(node, pace)
        self._views = dict.fromkeys(shards, ShardView())
        self._recorded: dict[str, None] = {}  # the shards whose records name this node
        self._holds: dict[str, _Hold] = {}
        self._assignment = Assignment(node, [shard for shard in shards if shard != BRIDGE])
        self._bridge = Assignment(node, [shard for shard in shards if shard == BRIDGE])
        self._renewed = float("-inf")
        self._deposed: list[str] = []

    # Events.

    def renewed(self, sent_at: float) -> None:
        """Record that a request sent at `sent_at` has renewed this node's record."""
        if sent_at - self._renewed >= self._pace.fence_seconds:
            self._unconfirm_all()  # this node was fenced, perhaps without noticing it
        self._renewed = max(self._renewed, sent_at)

    def shard_seen(self, shard: str, view: ShardView) -> None:
        """Store the record of a shard, unless a later one is known."""
        if shard not in self._views or view.revision <= self._views[shard].revision:
            return
        self.shard_read(shard, view)
        hold = self._holds.get(shard)
        if hold is None:
            return
        if hold.state is _Holding.RELEASING and view == ShardView(
            None, hold.epoch + 1, view.revision
        ):
            # The answer to the release is still pending. Another node may already acquire the
            # shard.
            del self._holds[shard]
        elif hold.state.is_loaded and view.epoch > hold.epoch:
            self._depose(shard)

    def shard_read(self, shard: str, view: ShardView) -> None:
        """Store the record of a shard, even if its revision is not newer."""
        self._views[shard] = view
        if view.owner == self.node:
            self._recorded[shard] = None
        else:
            self._recorded.pop(shard, None)

    def acquired(self, acquire: Acquire, revision: int) -> bool:
        """Record that a shard was acquired and loaded. Return whether this node still owns it."""
        self.shard_seen(acquire.shard, ShardView(self.node, acquire.epoch, revision))
        if self._holds.get(acquire.shard) != _Hold(_Holding.ACQUIRING, acquire.epoch):
            return False
        if self._views[acquire.shard].epoch > acquire.epoch:
            del self._holds[acquire.shard]
            return False
        self._holds[acquire.shard].state = _Holding.OWNED
        return True

    def acquire_failed(self, acquire: Acquire) -> None:
        """Record that a shard could not be acquired. `next_actions` may retry."""
        if self._holds.get(acquire.shard) == _Hold(_Holding.ACQUIRING, acquire.epoch):
            del self._holds[acquire.shard]

    def released(self, release: Release, revision: int | None = None) -> None:
        """Record that work on a shard has ended.

        `revision` is the new revision of the shard's record, or None if the record was not written
        or the outcome is unknown.
        """
        if revision is not None:
            self.shard_seen(release.shard, ShardView(None, release.epoch, revision))
        if self._holds.get(release.shard) == _Hold(_Holding.RELEASING, release.epoch - 1):
            del self._holds[release.shard]

    def lost(self, shard: str, epoch: int) -> None:
        """Record that a write was refused because another node has written for the shard."""
        hold = self._holds.get(shard)
        if hold is not None and hold.epoch == epoch and hold.state.is_loaded:
            self._depose(shard)

    def confirmed(self, confirm: Confirm, revision: int | None = None) -> bool:
        """Record that the confirmation of a shard has ended. Return whether this node owns it.

        `revision` is the new revision of the shard's record, or None if the record was not written
        or the outcome is unknown. If it was certainly not written, `shard_read` was called before.
        """
        if revision is not None:
            self.shard_seen(confirm.shard, ShardView(self.node, confirm.epoch, revision))
        if self._holds.get(confirm.shard) != _Hold(_Holding.CONFIRMING, confirm.epoch):
            return False
        view = self._views[confirm.shard]
        if (view.owner, view.epoch) != (self.node, confirm.epoch):
            self._depose(confirm.shard)
            return False
        is_owned = revision is not None
        self._holds[confirm.shard].state = _Holding.OWNED if is_owned else _Holding.UNCONFIRMED
        return is_owned

    def _depose(self, shard: str) -> None:
        del self._holds[shard]
        self._deposed.append(shard)

    # Decisions.

    def next_actions(self, now: float) -> list[Action]:
        """Return the actions that this node has to perform now."""
        if self.is_fenced(now):
            self._unconfirm_all()
        deposed, self._deposed = self._deposed, []
        actions: list[Action] = [Revoke(tuple(deposed))] if deposed else []
        if self.is_fenced(now) or not self.is_current(now):
            return actions
        candidates = self.candidates(now)
        self._assignment.set_nodes(candidates)
        self._bridge.set_nodes({node for node in candidates if self._members[node].bridges})
        own = dict.fromkeys((*self._assignment.own, *self._bridge.own))
        return [*actions, *self._confirms(), *self._releases(own), *self._acquires(own, now)]

    def _unconfirm_all(self) -> None:
        for shard, hold in list(self._holds.items()):
            if hold.state in (_Holding.OWNED, _Holding.UNCONFIRMED):
                hold.state = _Holding.UNCONFIRMED
            else:
                self._depose(shard)

    def _confirms(self) -> Iterator[Confirm]:
        for shard, hold in self._holds.items():
            if hold.state is _Holding.UNCONFIRMED:
                hold.state = _Holding.CONFIRMING
                yield Confirm(shard, hold.epoch, self._views[shard].revision)

    def _releases(self, own: Collection[str]) -> Iterator[Release]:
        leaving = [
            # No node works on these, because the answer to an `Acquire` or `Release` was lost.
            *(shard for shard in self._recorded if shard not in self._holds and shard not in own),
            *(
                shard
                for shard, hold in self._holds.items()
                if hold.state is _Holding.OWNED and shard not in own
            ),
        ]
        is_draining = self.is_draining(self.node)
        for shard in leaving[: self._room(_Holding.RELEASING, len(leaving) if is_draining else 0)]:
            view = self._views[shard]
            self._holds[shard] = _Hold(_Holding.RELEASING, view.epoch)
            yield Release(shard, view.epoch + 1, view.revision)

    def _acquires(self, own: Collection[str], now: float) -> Iterator[Acquire]:
        free = [
            shard
            for shard in own
            if shard not in self._holds and not self._has_other_owner(shard, now)
        ]
        for shard in free[: self._room(_Holding.ACQUIRING, len(own))]:
            view = self._views[shard]
            self._holds[shard] = _Hold(_Holding.ACQUIRING, view.epoch + 1)
            yield Acquire(shard, view.epoch + 1, view.revision)

    def _room(self, state: _Holding, shards: int) -> int:
        busy = sum(hold.state is state for hold in self._holds.values())
        return max(0, max(self._pace.moves, shards // self._pace.part) - busy)

    def _has_other_owner(self, shard: str, now: float) -> bool:
        owner = self._views[shard].owner
        return owner is not None and owner != self.node and self.is_alive(owner, now)

    # Queries.

    def is_fenced(self, now: float) -> bool:
        """Return whether this node owns nothing, because it has not renewed its record in time."""
        return now - self._renewed >= self._pace.fence_seconds

    def owns(self, shard: str, now: float) -> bool:
        """Return whether this node may work on a shard."""
        hold = self._holds.get(shard, _NOTHING)
        return hold.state is _Holding.OWNED and not self.is_fenced(now)

    def may_finish(self, shard: str, now: float) -> bool:
        """Return whether this node may write the state of a shard, perhaps while releasing it."""
        state = self._holds.get(shard, _NOTHING).state
        return state in (_Holding.OWNED, _Holding.RELEASING) and not self.is_fenced(now)

    def owned(self) -> list[str]:
        return [shard for shard, hold in self._holds.items() if hold.state is _Holding.OWNED]

    def unconfirmed(self) -> list[str]:
        """Return the shards that this node can work on after it has confirmed its ownership."""
        waiting = (_Holding.UNCONFIRMED, _Holding.CONFIRMING)
        return [shard for shard, hold in self._holds.items() if hold.state in waiting]

    def is_idle(self) -> bool:
        """Return whether this node has nothing left to release."""
        return not self._holds

    def owner(self, shard: str) -> str | None:
        """Return the owner that the record of a shard names."""
        return self._views[shard].owner
