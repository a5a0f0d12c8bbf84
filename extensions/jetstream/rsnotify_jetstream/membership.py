"""Which node owns which shard: events and instants in, actions out.

Each node renews its record in the store, and observes the records of the others. A node is *alive*
while its record changes; each observer measures that with its own clock, so clocks are never
compared. Shards are assigned to living nodes by rendezvous hashing (`Assignment`), so nodes that
see the same members agree without talking to each other. A shard has a record with its owner and an
*epoch*, which every compare-and-set increases.

    state      event                                       next       action
    free       assigned to this node, no living owner      taking     Take
    taking     taken                                       owned
    taking     take_failed                                 free
    owned      assigned to another node                    releasing  Release
    releasing  released                                    free
    owned      fenced                                      unconfirmed
    unconfirmed  the node has renewed its record           confirming  Confirm
    confirming confirmed                                   owned
    taking, releasing, confirming: fenced                  free       Revoke
    any        the record has a later epoch                free       Revoke

Safety: a node that could not renew its record for `fence_seconds` is *fenced*: it owns nothing, by
its own clock, before the others consider it dead after `death_seconds`. So a node that was paused
finds itself fenced when it continues. What it sent before, and arrives later, fails in the store,
since the next owner has changed the revision that it expects. A node that has not seen a renewal of
its own that it sent lately has an outdated view, and decides nothing: to it the others may look
dead, since their renewals wait to be processed before its own.

A store without a leader for some seconds fences every node, although no other node can take a shard
meanwhile. So a fenced node keeps what it has loaded, and does nothing with it. When it has renewed
its record, it writes those of its shards again, at the revisions that it knows: where that
succeeds, no other node has taken the shard, and it continues as if nothing had happened.

A node that joins is assigned shards only after `settle_seconds`, and an owner releases only some
shards at a time, so that neither a restart nor a new node moves everything at once. The others are
delivered meanwhile. What nobody delivers is taken in a few steps, however many shards there are.

Cost: `decide` looks at each node and at the shards of this node, not at all shards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum, auto
from functools import lru_cache
from hashlib import blake2b

from msgspec import Struct


def weight(node: str, shard: str) -> bytes:
    """Return the weight of a node for a shard, so long that no two nodes have the same."""
    return blake2b(f"{node} {shard}".encode(), digest_size=16).digest()


class Assignment:
    """The shards that belong to one node: of all nodes, it has the highest weight for them.

    For each shard that does not, a *rival* is known: any other node with a higher weight. So a node
    that joins is compared only for the shards that belong to this one, and a node that leaves costs
    a search for the shards whose rival it was. A search tries about log(nodes) nodes: one shard for
    all nodes, or all shards for one node, but never each for each.
    """

    def __init__(self, node: str, shards: Iterable[str]) -> None:
        self._node = node
        self._others: set[str] = set()
        self._is_candidate = False
        self._won = dict.fromkeys(shards)
        self._rivals: dict[str, str] = {}

    def set_nodes(self, nodes: set[str]) -> None:
        """Replace the nodes; shards belong to this node only if it is one of them."""
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
        """The shards that belong to this node, in a fixed order."""
        return self._won.keys() if self._is_candidate else ()


#: The shard of the bridge to the MQTT broker.
BRIDGE = "mqtt"
DEFAULT_SHARDS = 64


class Sharding:
    """The shards of a cluster: `count` of subscriptions, which never changes, and the bridge.

    All callbacks of one host and port are in one shard, so what the hub limits for each host, and
    the connections that it keeps, are in one place.
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
    """How fast nodes and shards change, in seconds of the observer's clock.

    Args:
        renew_seconds: How often a node renews its record.
        fence_seconds: How long after its last renewal a node owns nothing.
        death_seconds: How long after the last renewal that it saw another node considers it dead.
        settle_seconds: How long a new node waits for its first shards; long enough for it to see a
            renewal of each living node.
        moves: How many shards one node takes, or releases, at the same time.
        part: One of how many of its shards a node takes, or releases while it drains, at the same
            time, if these are more than `moves`.
        forget_seconds: How long a dead node keeps its record.
        tick_seconds: How often a node decides.
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

    If the store was away, all nodes were silent. So a node that did not see its own renewals does
    not take the silence of the others in that time for a sign of death, and all take again what
    they owned.
    """

    def __init__(self, node: str, pace: ClusterPace) -> None:
        self.node = node
        self._pace = pace
        self._members: dict[str, _NodeView] = {}

    def node_seen(self, node: str, *, is_draining: bool, now: float, bridges: bool = True) -> None:
        """Note that the record of a node was written.

        Args:
            node: The node.
            is_draining: Whether it is about to stop.
            now: The current instant; for this node's own record, when it sent that.
            bridges: Whether it can run the bridge to a broker.
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
        """Count the nodes that were alive before this one was suspended as alive now."""
        for view in self._members.values():
            if since - view.last_seen < self._pace.death_seconds:
                view.last_seen = max(view.last_seen, now)

    def node_gone(self, node: str) -> None:
        self._members.pop(node, None)

    def is_current(self, now: float) -> bool:
        """Return whether this node sees its own renewals, and has seen who else is there."""
        own = self._members.get(self.node)
        return (
            own is not None
            and now - own.last_seen < self._pace.fence_seconds
            and now - own.first_seen >= self._pace.settle_seconds
        )

    def candidates(self, now: float) -> set[str]:
        """Return the nodes that shards are assigned to.

        A record that was never renewed since this node saw it may be that of a dead node. All that
        this node saw while it settled itself have started before it, or with it.
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

    def bridging(self, nodes: set[str]) -> set[str]:
        """Return those of some nodes that can run the bridge to the MQTT broker."""
        return {node for node in nodes if self._members[node].bridges}

    def is_alive(self, node: str, now: float) -> bool:
        """Return whether a node has renewed its record lately."""
        view = self._members.get(node)
        return view is not None and now - view.last_seen < self._pace.death_seconds

    def living(self, now: float) -> list[str]:
        return [node for node in self._members if self.is_alive(node, now)]

    def forgettable(self, now: float) -> list[str]:
        """Return the nodes that have been dead for so long that their records may be deleted."""
        seconds = self._pace.forget_seconds
        return [node for node, view in self._members.items() if now - view.last_seen >= seconds]

    def is_draining(self, node: str) -> bool:
        view = self._members.get(node)
        return view is not None and view.is_draining


class Take(Struct, frozen=True):
    """Become the owner of a shard by compare-and-set, then load it and call `taken`.

    `revision` is that of its record to replace, 0 if it has none; `epoch` is the new one.
    """

    shard: str
    epoch: int
    revision: int


class Release(Struct, frozen=True):
    """Stop the work of a shard, write its state, free it by compare-and-set; call `released`."""

    shard: str
    epoch: int
    revision: int


class Confirm(Struct, frozen=True):
    """Write the record of a shard again by compare-and-set, and call `confirmed`."""

    shard: str
    epoch: int
    revision: int


class Revoke(Struct, frozen=True):
    """Stop the work of shards that this node no longer owns, without writing anything."""

    shards: tuple[str, ...]


Action = Take | Release | Confirm | Revoke


class ShardView(Struct, frozen=True):
    """The record of a shard, with its revision, as last seen; it has no owner if it is free."""

    owner: str | None = None
    epoch: int = 0
    revision: int = 0


class _Holding(Enum):
    FREE = auto()
    TAKING = auto()
    OWNED = auto()
    UNCONFIRMED = auto()
    CONFIRMING = auto()
    RELEASING = auto()

    @property
    def is_loaded(self) -> bool:
        return self not in (_Holding.FREE, _Holding.TAKING)


class _Hold(Struct):
    """What this node has of a shard, and at which epoch."""

    state: _Holding
    epoch: int


_NOTHING = _Hold(_Holding.FREE, 0)


class Membership(NodeViews):
    """The view of one node on the cluster.

    Args:
        node: The id of this node; a node that restarts has another id.
        shards: The names of all shards.
        pace: How fast nodes and shards change.
    """

    def __init__(self, node: str, shards: tuple[str, ...], pace: ClusterPace) -> None:
        super().__init__(node, pace)
        self._views = dict.fromkeys(shards, ShardView())
        self._recorded: dict[str, None] = {}  # the shards whose record names this node
        self._holds: dict[str, _Hold] = {}
        self._assignment = Assignment(node, [shard for shard in shards if shard != BRIDGE])
        self._bridge = Assignment(node, [shard for shard in shards if shard == BRIDGE])
        self._renewed = float("-inf")
        self._deposed: list[str] = []

    # Events.

    def renewed(self, sent_at: float) -> None:
        """Note that this node's record was renewed by a request that was sent at an instant."""
        if sent_at - self._renewed >= self._pace.fence_seconds:
            self._unconfirm_all()  # it was fenced meanwhile, perhaps without noticing
        self._renewed = max(self._renewed, sent_at)

    def shard_seen(self, shard: str, view: ShardView) -> None:
        """Note the record of a shard, unless a later one is known."""
        if shard not in self._views or view.revision <= self._views[shard].revision:
            return
        self.shard_read(shard, view)
        hold = self._holds.get(shard)
        if hold is None:
            return
        if hold.state is _Holding.RELEASING and view == ShardView(
            None, hold.epoch + 1, view.revision
        ):
            # Its answer has not arrived yet, and another node may take the shard before.
            del self._holds[shard]
        elif hold.state.is_loaded and view.epoch > hold.epoch:
            self._depose(shard)

    def shard_read(self, shard: str, view: ShardView) -> None:
        """Note the record of a shard as it is stored, whatever was seen of it before."""
        self._views[shard] = view
        if view.owner == self.node:
            self._recorded[shard] = None
        else:
            self._recorded.pop(shard, None)

    def taken(self, take: Take, revision: int) -> bool:
        """Note that a shard was taken and loaded, and return whether this node owns it now."""
        self.shard_seen(take.shard, ShardView(self.node, take.epoch, revision))
        if self._holds.get(take.shard) != _Hold(_Holding.TAKING, take.epoch):
            return False
        if self._views[take.shard].epoch > take.epoch:
            del self._holds[take.shard]
            return False
        self._holds[take.shard].state = _Holding.OWNED
        return True

    def take_failed(self, take: Take) -> None:
        """Note that a shard could not be taken; `decide` may try again."""
        if self._holds.get(take.shard) == _Hold(_Holding.TAKING, take.epoch):
            del self._holds[take.shard]

    def released(self, release: Release, revision: int | None = None) -> None:
        """Record that work on a shard has ended.

        `revision` is that of its record, None if that was not written, or may not have been.
        """
        if revision is not None:
            self.shard_seen(release.shard, ShardView(None, release.epoch, revision))
        if self._holds.get(release.shard) == _Hold(_Holding.RELEASING, release.epoch - 1):
            del self._holds[release.shard]

    def lost(self, shard: str, epoch: int) -> None:
        """Note that a write for a shard was refused, since another node has written for it."""
        hold = self._holds.get(shard)
        if hold is not None and hold.epoch == epoch and hold.state.is_loaded:
            self._depose(shard)

    def confirmed(self, confirm: Confirm, revision: int | None = None) -> bool:
        """Note that the record of a shard was written again; return whether this node owns it.

        `revision` is the new one; None if it was not written, or may not have been. In the first
        case, `shard_read` was called before.
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

    def decide(self, now: float) -> list[Action]:
        """Return what to do now."""
        if self.is_fenced(now):
            self._unconfirm_all()
        deposed, self._deposed = self._deposed, []
        actions: list[Action] = [Revoke(tuple(deposed))] if deposed else []
        if self.is_fenced(now) or not self.is_current(now):
            return actions
        candidates = self.candidates(now)
        self._assignment.set_nodes(candidates)
        self._bridge.set_nodes(self.bridging(candidates))
        own = dict.fromkeys((*self._assignment.own, *self._bridge.own))
        return [*actions, *self._confirms(), *self._releases(own), *self._takes(own, now)]

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
            # The answer to a take or a release was lost, so nobody works on these.
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

    def _takes(self, own: Collection[str], now: float) -> Iterator[Take]:
        free = [
            shard
            for shard in own
            if shard not in self._holds and not self._has_other_owner(shard, now)
        ]
        for shard in free[: self._room(_Holding.TAKING, len(own))]:
            view = self._views[shard]
            self._holds[shard] = _Hold(_Holding.TAKING, view.epoch + 1)
            yield Take(shard, view.epoch + 1, view.revision)

    def _room(self, state: _Holding, shards: int) -> int:
        busy = sum(hold.state is state for hold in self._holds.values())
        return max(0, max(self._pace.moves, shards // self._pace.part) - busy)

    def _has_other_owner(self, shard: str, now: float) -> bool:
        owner = self._views[shard].owner
        return owner is not None and owner != self.node and self.is_alive(owner, now)

    # The view.

    def is_fenced(self, now: float) -> bool:
        """Return whether this node owns nothing, since it could not renew its record in time."""
        return now - self._renewed >= self._pace.fence_seconds

    def owns(self, shard: str, now: float) -> bool:
        """Return whether this node may work on a shard."""
        hold = self._holds.get(shard, _NOTHING)
        return hold.state is _Holding.OWNED and not self.is_fenced(now)

    def may_finish(self, shard: str, now: float) -> bool:
        """Return whether this node may still write the state of a shard, which it may release."""
        state = self._holds.get(shard, _NOTHING).state
        return state in (_Holding.OWNED, _Holding.RELEASING) and not self.is_fenced(now)

    def owned(self) -> list[str]:
        """Return the shards that this node works on."""
        return [shard for shard, hold in self._holds.items() if hold.state is _Holding.OWNED]

    def unconfirmed(self) -> list[str]:
        """Return the shards that this node works on again once it has confirmed them."""
        waiting = (_Holding.UNCONFIRMED, _Holding.CONFIRMING)
        return [shard for shard, hold in self._holds.items() if hold.state in waiting]

    def is_idle(self) -> bool:
        """Return whether this node has nothing left to release."""
        return not self._holds

    def owner(self, shard: str) -> str | None:
        """Return the node that the record of a shard names."""
        return self._views[shard].owner
