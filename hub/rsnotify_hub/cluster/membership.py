"""Which node owns which shard: events and instants in, actions out.

Theory of operation. Each node renews its record in the store, and observes the records of the
others. A node is *alive* while its record changes; each observer measures that with its own clock,
so clocks are never compared. A shard has a record with its owner and an *epoch*, which every
compare-and-set increases.

    state      event                                       next       action
    free       assigned to this node, no living owner      taking     Take
    taking     taken                                       owned
    taking     take_failed                                 free
    owned      assigned to another node                    releasing  Release
    releasing  released                                    free
    any        the record has a later epoch, or fenced     free       Revoke

Safety: a node that could not renew its record for `fence_seconds` is *fenced*: it owns nothing, by
its own clock, before the others consider it dead after `death_seconds`. So a node that was paused
finds itself fenced when it continues. What was sent before, and arrives later, fails in the store,
since the next owner has changed the revision that it expects. A node that has not seen a renewal of
its own that it sent lately has an outdated view, and decides nothing: to it the others may look
dead, since their renewals wait to be processed before its own.

A node that joins is assigned shards only after `settle_seconds`, and an owner releases only some
shards at a time, so that neither a restart nor a new node moves everything at once. The others are
delivered meanwhile. What nobody delivers is taken in a few steps, however many shards there are.

Cost: `decide` looks at each node and at the shards of this node, not at all shards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum, auto

from msgspec import Struct

from rsnotify_hub.cluster.assignment import Assignment
from rsnotify_hub.cluster.node_views import NodeViews
from rsnotify_hub.cluster.pace import ClusterPace
from rsnotify_hub.cluster.sharding import BRIDGE


class Take(Struct, frozen=True):
    """Become the owner of a shard by compare-and-set, then load it and call `taken`.

    Args:
        shard: The shard.
        epoch: Its new epoch.
        revision: The revision of its record to replace; 0 if it has none.
    """

    shard: str
    epoch: int
    revision: int


class Release(Struct, frozen=True):
    """Stop the work of a shard, write its state, free it by compare-and-set, and call `released`.

    Args:
        shard: The shard.
        epoch: Its new epoch.
        revision: The revision of its record to replace.
    """

    shard: str
    epoch: int
    revision: int


class Revoke(Struct, frozen=True):
    """Stop the work of shards that this node no longer owns, without writing anything."""

    shards: tuple[str, ...]


Action = Take | Release | Revoke


class ShardView(Struct, frozen=True):
    """The record of a shard as last seen.

    Args:
        owner: The node that owns it; None if it is free.
        epoch: Increases with each change of the owner.
        revision: The revision of the record in the store.
    """

    owner: str | None = None
    epoch: int = 0
    revision: int = 0


class _Holding(Enum):
    FREE = auto()
    TAKING = auto()
    OWNED = auto()
    RELEASING = auto()

    @property
    def is_working(self) -> bool:
        return self in (_Holding.OWNED, _Holding.RELEASING)


class _Hold(Struct):
    """What this node has of a shard, and at which epoch."""

    state: _Holding
    epoch: int


_NOTHING = _Hold(_Holding.FREE, 0)


class Membership:
    """The view of one node on the cluster.

    Args:
        node: The id of this node; a node that restarts has another id.
        shards: The names of all shards.
        pace: How fast nodes and shards change.
    """

    def __init__(self, node: str, shards: tuple[str, ...], pace: ClusterPace) -> None:
        self.node = node
        self._pace = pace
        self._nodes = NodeViews(node, pace)
        self._views = dict.fromkeys(shards, ShardView())
        self._recorded: dict[str, None] = {}  # the shards whose record names this node
        self._holds: dict[str, _Hold] = {}
        self._assignment = Assignment(node, [shard for shard in shards if shard != BRIDGE])
        self._bridge = Assignment(node, [shard for shard in shards if shard == BRIDGE])
        self._renewed = float("-inf")
        self._deposed: list[str] = []

    # Events.

    def node_seen(self, node: str, *, is_draining: bool, now: float, bridges: bool = True) -> None:
        """Note that the record of a node was written.

        Args:
            node: The node.
            is_draining: Whether it is about to stop.
            now: The current instant; for this node's own record, when it sent that.
            bridges: Whether it can run the bridge to the MQTT broker.
        """
        self._nodes.seen(node, is_draining=is_draining, bridges=bridges, now=now)

    def node_gone(self, node: str) -> None:
        """Note that the record of a node was deleted."""
        self._nodes.gone(node)

    def renewed(self, sent_at: float) -> None:
        """Note that this node's record was renewed by a request that was sent at an instant."""
        if sent_at - self._renewed >= self._pace.fence_seconds:
            self._give_up_all()  # it was fenced meanwhile, perhaps without noticing
        self._renewed = max(self._renewed, sent_at)

    def shard_seen(self, shard: str, view: ShardView) -> None:
        """Note the record of a shard, unless a later one is known."""
        if shard not in self._views or view.revision <= self._views[shard].revision:
            return
        self.shard_read(shard, view)
        hold = self._holds.get(shard)
        if hold is None:
            return
        is_own_release = hold.state is _Holding.RELEASING and view.owner is None
        if hold.state.is_working and view.epoch > hold.epoch and not is_own_release:
            del self._holds[shard]
            self._deposed.append(shard)

    def shard_read(self, shard: str, view: ShardView) -> None:
        """Note the record of a shard as it is stored, whatever was seen of it before."""
        self._views[shard] = view
        if view.owner == self.node:
            self._recorded[shard] = None
        else:
            self._recorded.pop(shard, None)

    def taken(self, take: Take, revision: int) -> bool:
        """Note that a shard was taken and loaded.

        Args:
            take: The action.
            revision: The revision of the shard's record afterwards.

        Returns:
            Whether this node owns it now; if not, nothing may be done with it.
        """
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
        """Note that a shard is not worked on any more, whether its record says so or not.

        Args:
            release: The action.
            revision: The revision of the shard's record afterwards; None if it was not written, or
                if that is unknown.
        """
        if revision is not None:
            self.shard_seen(release.shard, ShardView(None, release.epoch, revision))
        if self._holds.get(release.shard) == _Hold(_Holding.RELEASING, release.epoch - 1):
            del self._holds[release.shard]

    def lost(self, shard: str, epoch: int) -> None:
        """Note that a write for a shard was refused, since another node has written for it."""
        hold = self._holds.get(shard)
        if hold is not None and hold.epoch == epoch and hold.state.is_working:
            del self._holds[shard]
            self._deposed.append(shard)

    # Decisions.

    def decide(self, now: float) -> list[Action]:
        """Return what to do now."""
        if self.is_fenced(now):
            self._give_up_all()
        deposed, self._deposed = self._deposed, []
        actions: list[Action] = [Revoke(tuple(deposed))] if deposed else []
        if self.is_fenced(now) or not self._nodes.is_current(now):
            return actions
        candidates = self._nodes.candidates(now)
        self._assignment.set_nodes(candidates)
        self._bridge.set_nodes(self._nodes.bridging(candidates))
        own = dict.fromkeys((*self._assignment.own, *self._bridge.own))
        return [*actions, *self._releases(own), *self._takes(own, now)]

    def _give_up_all(self) -> None:
        self._deposed += self._holds
        self._holds = {}

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
        is_draining = self._nodes.is_draining(self.node)
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

    def is_alive(self, node: str, now: float) -> bool:
        """Return whether a node has renewed its record lately."""
        return self._nodes.is_alive(node, now)

    def living(self, now: float) -> list[str]:
        """Return the nodes that have renewed their records lately."""
        return self._nodes.living(now)

    def forgettable(self, now: float) -> list[str]:
        """Return the nodes that have been dead for so long that their records may be deleted."""
        return self._nodes.forgettable(now)

    def owns(self, shard: str, now: float) -> bool:
        """Return whether this node may work on a shard."""
        hold = self._holds.get(shard, _NOTHING)
        return hold.state is _Holding.OWNED and not self.is_fenced(now)

    def may_finish(self, shard: str, now: float) -> bool:
        """Return whether this node may still write the state of a shard, which it may release."""
        return self._holds.get(shard, _NOTHING).state.is_working and not self.is_fenced(now)

    def owned(self) -> list[str]:
        """Return the shards that this node works on."""
        return [shard for shard, hold in self._holds.items() if hold.state is _Holding.OWNED]

    def is_idle(self) -> bool:
        """Return whether this node has nothing left to release."""
        return not self._holds

    def owner(self, shard: str) -> str | None:
        """Return the node that the record of a shard names."""
        return self._views[shard].owner
