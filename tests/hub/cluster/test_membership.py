"""Nodes that are paused, or see each other late, share the shards safely."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsnotify_jetstream.bucket import Bucket
from rsnotify_jetstream.cluster_node import ClusterNode, ShardWork
from rsnotify_jetstream.cluster_records import META, ClusterMeta, NodeRecord, encode
from rsnotify_jetstream.shard_ownership import (
    BRIDGE,
    Acquire,
    Action,
    Assignment,
    ClusterPace,
    Confirm,
    Membership,
    Release,
    Revoke,
    ShardView,
)
from tests.examples_count import examples
from tests.hub.jetstream.hubs import node_of

SHARDS = tuple(str(number) for number in range(8))
PACE = ClusterPace()


class Cluster:
    """Nodes around one store: messages take time, and nodes pause or lose their connection."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.nodes: dict[str, Node] = {}
        self.records = dict.fromkeys(SHARDS, ShardView())
        self.members: dict[str, bool] = {}
        self.written: list[tuple[str, str | None]] = []
        self._revision = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def start(self, name: str) -> Node:
        node = self.nodes[name] = Node(name, self)
        for member, is_draining in self.members.items():
            node.membership.node_seen(member, is_draining=is_draining, now=node.clock())
        for shard, view in self.records.items():
            node.membership.shard_seen(shard, view)
        node.renew()
        node.tick()
        return node

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, event))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self.check()
        self.now = end

    def check(self) -> None:
        for shard in SHARDS:
            owners = [
                node.name
                for node in self.nodes.values()
                if node.works_on(shard) and node.membership.owns(shard, node.clock())
            ]
            assert len(owners) <= 1, (shard, owners, self.now)

    def renew(self, name: str, is_draining: bool, sent_at: float) -> None:
        self.members[name] = is_draining
        for node in self.nodes.values():
            node.deliver(lambda node=node: node.see_member(name, is_draining, sent_at))

    def write(self, shard: str, owner: str | None, epoch: int, revision: int) -> int | None:
        """Compare and set; return the new revision."""
        if self.records[shard].revision != revision:
            return None
        self._revision += 1
        self.written.append((shard, owner))
        view = self.records[shard] = ShardView(owner, epoch, self._revision)
        for node in self.nodes.values():
            node.deliver(lambda node=node: node.membership.shard_seen(shard, view))
        return self._revision


class Node:
    """The shell of a membership in the simulation."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name = name
        self.membership = Membership(name, SHARDS, PACE)
        self.is_draining = False
        self.is_dead = False
        self._offset = cluster.random.uniform(-1000, 1000)
        self._cluster = cluster
        self._paused_until = 0.0
        self._away_until = 0.0
        self._last_delivery = 0.0
        self._working: set[str] = set()
        self.revoked: set[str] = set()

    def clock(self) -> float:
        return self._cluster.now + self._offset

    def works_on(self, shard: str) -> bool:
        return not self.is_dead and shard in self._working and not self.is_paused

    @property
    def is_paused(self) -> bool:
        return self._cluster.now < self._paused_until

    def pause(self, seconds: float) -> None:
        self._paused_until = max(self._paused_until, self._cluster.now + seconds)

    def disconnect(self, seconds: float) -> None:
        self._away_until = max(self._away_until, self._cluster.now + seconds)

    def _delay(self) -> float:
        return self._cluster.random.choice((0.001, 0.001, 0.02, 0.3))

    def deliver(self, event: Callable[[], None]) -> None:
        """Deliver an event of the watch, in order."""
        at = max(self._cluster.now + self._delay(), self._last_delivery, self._away_until)
        self._last_delivery = at
        self._cluster.after(at - self._cluster.now, lambda: self._do(event))

    def _do(self, event: Callable[[], None]) -> None:
        if self.is_dead:
            return
        if self.is_paused:
            self._cluster.after(self._paused_until - self._cluster.now, lambda: self._do(event))
        else:
            event()

    def see_member(self, name: str, is_draining: bool, sent_at: float) -> None:
        now = sent_at if name == self.name else self.clock()
        self.membership.node_seen(name, is_draining=is_draining, now=now)

    def _send(self, request: Callable[[], None]) -> None:
        """Send a request to the store; it may arrive much later."""
        wait = max(0.0, self._away_until - self._cluster.now) + self._delay()
        self._cluster.after(wait, request)

    def _reply(self, event: Callable[[], None]) -> None:
        self._cluster.after(self._delay(), lambda: self._do(event))

    def renew(self) -> None:
        sent_at = self.clock()

        def arrive() -> None:
            if not self.is_dead:
                self._cluster.renew(self.name, self.is_draining, sent_at)
                self._reply(lambda: self.membership.renewed(sent_at))

        self._send(arrive)
        self._cluster.after(PACE.renew_seconds, lambda: self._do(self.renew))

    def tick(self) -> None:
        for action in self.membership.next_actions(self.clock()):
            self._perform(action)
        self._cluster.after(0.5, lambda: self._do(self.tick))

    def _perform(self, action: Action) -> None:
        match action:
            case Revoke():
                self._working -= set(action.shards)
                self.revoked |= set(action.shards)
            case Release():
                self._working.discard(action.shard)
                self._send(lambda: self._written(action, None))
            case Acquire() | Confirm():
                self._send(lambda: self._written(action, self.name))

    def _written(self, action: Acquire | Release | Confirm, owner: str | None) -> None:
        revision = self._cluster.write(action.shard, owner, action.epoch, action.revision)
        found = self._cluster.records[action.shard] if revision is None else None
        if self._cluster.random.random() < 0.05:
            revision = None  # the answer is lost
        self._reply(lambda: self._answered(action, revision, found))

    def _answered(
        self, action: Acquire | Release | Confirm, revision: int | None, found: ShardView | None
    ) -> None:
        if found is not None:
            self.membership.shard_read(action.shard, found)
        if isinstance(action, Confirm):
            self.membership.confirmed(action, revision)
        elif isinstance(action, Release):
            self.membership.released(action)
        elif revision is None:
            self.membership.acquire_failed(action)
        elif self.membership.acquired(action, revision):
            self._working.add(action.shard)


def calm(*names: str, seed: int = 1) -> tuple[Cluster, list[Node]]:
    """Return a cluster whose nodes have shared the shards."""
    cluster = Cluster(seed)
    nodes = [cluster.start(name) for name in names]
    cluster.run(60)
    return cluster, nodes


def seen(membership: Membership, now: float, *others: str) -> None:
    """Renew the lease of node `a`, whose record is seen after those of others."""
    membership.renewed(now)
    for name in (*others, "a"):
        membership.node_seen(name, is_draining=False, now=now)


def shards_of(actions: list[Action], kind: type[Acquire | Confirm | Release]) -> set[str]:
    return {each.shard for each in actions if isinstance(each, kind)}


def faults(cluster: Cluster, steps: list[tuple[str, int, float]]) -> Iterator[None]:
    for number, (fault, which, seconds) in enumerate(steps):
        living = [node for node in cluster.nodes.values() if not node.is_dead]
        node = living[which % len(living)] if living else None
        if fault == "join" and len(living) < 6:
            cluster.start(f"joined-{number}")
        elif node is not None and fault == "pause":
            node.pause(seconds)
        elif node is not None and fault == "disconnect":
            node.disconnect(seconds)
        elif node is not None and fault == "drain" and len(living) > 1:
            node.is_draining = True
        elif node is not None and fault == "kill" and len(living) > 1:
            node.is_dead = True
        cluster.run(seconds / 2)
        yield


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("join", "pause", "disconnect", "drain", "kill", "wait")),
        st.integers(0, 5),
        st.floats(0.1, 15.0),
    ),
    max_size=12,
)


@given(st.integers(0, 2**32), STEPS)
@settings(max_examples=examples(60), deadline=None)
def test_no_shard_ever_has_two_owners_and_all_have_one_once_the_faults_end(
    seed: int, steps: list[tuple[str, int, float]]
) -> None:
    cluster = Cluster(seed)
    for name in ("a", "b", "c"):
        cluster.start(name)
    for _ in faults(cluster, steps):
        pass
    cluster.start("last")
    cluster.run(120)
    serving = {
        node.name: node
        for node in cluster.nodes.values()
        if not node.is_dead and not node.is_draining
    }
    for shard in SHARDS:
        owners = [name for name, node in cluster.nodes.items() if node.works_on(shard)]
        assert owners == [node_of(shard, serving)]


def test_the_shards_of_a_dead_node_have_moved_within_ten_seconds() -> None:
    cluster, nodes = calm("a", "b", "c")
    nodes[0].is_dead = True
    cluster.run(10)
    assert set(SHARDS) == {shard for node in nodes[1:] for shard in node.membership.owned()}


def test_a_node_that_was_paused_for_longer_than_its_lease_owns_nothing_when_it_continues() -> None:
    _, (node, _) = calm("a", "b")
    mine = node.membership.owned()
    assert all(node.membership.owns(shard, node.clock()) for shard in mine)
    later = node.clock() + PACE.fence_seconds + PACE.renew_seconds
    assert mine
    assert not any(node.membership.owns(shard, later) for shard in mine)
    assert not any(node.membership.may_finish(shard, later) for shard in mine)
    assert node.membership.next_actions(later) == []
    assert node.membership.owned() == []
    assert node.membership.unconfirmed() == mine


def test_a_node_is_fenced_from_the_very_end_of_its_time_on() -> None:
    membership = Membership("a", SHARDS, PACE)
    membership.renewed(1000.0)
    assert not membership.is_fenced(1000.0 + PACE.fence_seconds - 0.001)
    assert membership.is_fenced(1000.0 + PACE.fence_seconds)


def test_a_node_that_was_fenced_without_noticing_owns_nothing_after_its_next_renewal() -> None:
    _, (node,) = calm("a")
    later = node.clock() + PACE.death_seconds
    node.membership.renewed(later)
    assert not any(node.membership.owns(shard, later) for shard in SHARDS)


def test_a_node_that_continues_decides_nothing_before_it_has_seen_its_new_record() -> None:
    _, (node, _) = calm("a", "b")
    membership, sent_at = node.membership, node.clock()
    later = sent_at + 100  # to this node the other one looks dead
    membership.renewed(later)
    membership.next_actions(later)
    # What arrives first is the record that it had sent before the pause.
    membership.node_seen("a", is_draining=False, now=sent_at)
    assert membership.next_actions(later) == []
    seen(membership, later, "b")
    actions = membership.next_actions(later)
    mine = {shard for shard in SHARDS if membership.owner(shard) == "a"}
    assert shards_of(actions, Confirm) == mine
    assert len(actions) == len(mine)


@pytest.mark.parametrize("seed", range(5))
def test_after_a_stall_of_the_store_every_node_continues_with_its_shards(seed: int) -> None:
    cluster, nodes = calm("a", "b", "c", seed=seed)
    owners = {shard: view.owner for shard, view in cluster.records.items()}
    cluster.written.clear()
    for number, node in enumerate(nodes):
        node.disconnect(PACE.death_seconds * 3 + 2.5 * number)
    cluster.run(PACE.death_seconds * 2)
    assert not any(node.membership.owned() for node in nodes)
    cluster.run(60)
    assert {shard: view.owner for shard, view in cluster.records.items()} == owners
    assert {shard for node in nodes for shard in node.membership.owned()} == set(SHARDS)
    # No other node has taken a shard in between, and none was given up.
    assert set(cluster.written) == set(owners.items())
    assert not any(node.revoked for node in nodes)


def test_a_node_that_sees_the_store_again_first_waits_for_the_others() -> None:
    _, (node, _) = calm("a", "b")
    membership, later = node.membership, node.clock() + 100
    mine = {shard for shard in SHARDS if membership.owner(shard) == "a"}

    def takes(now: float, kind: type[Acquire | Confirm] = Acquire) -> set[str]:
        seen(membership, now)
        return shards_of(membership.next_actions(now), kind)

    assert takes(later, Confirm) == mine
    assert takes(later + PACE.renew_seconds) == set()
    assert takes(later + 2 * PACE.renew_seconds) == set()
    assert takes(later + PACE.death_seconds + 0.1) == set(SHARDS) - mine


def test_a_shard_that_was_taken_meanwhile_is_not_confirmed() -> None:
    cluster, (node, other) = calm("a", "b")
    mine = set(node.membership.owned())
    # It sees nothing of the takes before its own record is written again.
    node.disconnect(PACE.death_seconds * 3)
    cluster.run(PACE.death_seconds * 2)
    assert set(node.membership.unconfirmed()) == mine
    assert set(other.membership.owned()) == set(SHARDS)
    cluster.run(2 * PACE.death_seconds)
    assert node.revoked == mine
    assert set(node.membership.owned()) == mine


def test_a_confirmation_whose_answer_was_lost_is_repeated() -> None:
    _, (node,) = calm("a")
    membership, now = node.membership, node.clock() + PACE.fence_seconds

    def confirms() -> list[Confirm]:
        seen(membership, now)
        return [each for each in membership.next_actions(now) if isinstance(each, Confirm)]

    first, *others = confirms()
    for confirm in others:
        membership.confirmed(confirm, 9999)
    membership.shard_seen(first.shard, ShardView("a", first.epoch, 10_000))
    membership.confirmed(first, None)
    assert not membership.owns(first.shard, now)
    (again,) = confirms()
    assert again == Confirm(first.shard, first.epoch, 10_000)
    # Another node was faster, and what that wrote has been read.
    membership.shard_read(first.shard, ShardView("b", first.epoch + 1, 10_001))
    membership.confirmed(again, None)
    assert not membership.owns(first.shard, now)
    assert membership.next_actions(now)[0] == Revoke((first.shard,))


def test_a_node_that_was_fenced_by_a_write_takes_the_shard_again_if_it_is_its_own() -> None:
    _, (node,) = calm("a")
    epoch = node.membership._holds["3"].epoch
    node.membership.lost("3", epoch - 1)
    assert node.membership.owns("3", node.clock())
    node.membership.lost("3", epoch)
    assert not node.membership.owns("3", node.clock())
    actions = node.membership.next_actions(node.clock())
    assert Revoke(("3",)) in actions
    assert shards_of(actions, Acquire) == {"3"}


def test_only_a_node_that_has_been_dead_for_long_may_be_forgotten() -> None:
    cluster, (node, other) = calm("a", "b")
    other.is_dead = True
    cluster.run(PACE.death_seconds * 2)
    assert node.membership.living(node.clock()) == ["a"]
    assert node.membership.forgettable(node.clock()) == []
    cluster.run(PACE.forget_seconds)
    assert node.membership.forgettable(node.clock()) == ["b"]


def test_a_node_gives_up_a_shard_whose_record_has_a_later_epoch() -> None:
    _, (node,) = calm("a")
    node.membership.shard_seen("3", ShardView("b", epoch=99, revision=9999))
    assert not node.membership.owns("3", node.clock())
    assert Revoke(("3",)) in node.membership.next_actions(node.clock())


def test_what_was_released_is_not_released_again_before_its_record_is_seen() -> None:
    _, (node, _) = calm("a", "b")
    membership, now = node.membership, node.clock()
    membership.node_seen("a", is_draining=True, now=now)
    releases = [each for each in membership.next_actions(now) if isinstance(each, Release)]
    assert releases
    for number, release in enumerate(releases):
        membership.released(release, 9999 + number)
    assert membership.next_actions(now) == []


def test_a_shard_that_another_node_takes_before_the_release_is_answered_is_not_lost() -> None:
    _, (node, _) = calm("a", "b")
    membership, now = node.membership, node.clock()
    membership.node_seen("a", is_draining=True, now=now)
    release = next(each for each in membership.next_actions(now) if isinstance(each, Release))
    membership.shard_seen(release.shard, ShardView(None, release.epoch, 10_000))
    membership.shard_seen(release.shard, ShardView("b", release.epoch + 1, 10_001))
    assert not any(isinstance(each, Revoke) for each in membership.next_actions(now))
    membership.released(release, 10_000)
    assert membership.owner(release.shard) == "b"


def test_a_node_that_has_seen_nothing_for_long_does_not_take_what_others_own() -> None:
    _, (node, other) = calm("a", "b")
    mine, its = set(node.membership.owned()), set(other.membership.owned())
    later = node.clock() + 100
    seen(node.membership, later)
    actions = node.membership.next_actions(later)
    assert shards_of(actions, Confirm) == mine
    assert other.membership.is_alive("a", other.clock())
    assert not shards_of(actions, Acquire) & its


def test_what_nobody_works_on_is_released_before_what_is_still_delivered() -> None:
    shards = tuple(map(str, range(100)))
    lost = [shard for shard in shards if node_of(shard, ("a", "b")) == "b"][-1]
    membership = Membership("a", shards, PACE)
    seconds = PACE.settle_seconds
    for now in (0.0, seconds):
        seen(membership, now)
    for revision in range(1, 101, 25):
        for number, take in enumerate(membership.next_actions(seconds)):
            assert isinstance(take, Acquire)
            if take.shard == lost:
                membership.shard_seen(lost, ShardView("a", take.epoch, revision + number))
            else:
                membership.acquired(take, revision + number)
    membership.acquire_failed(Acquire(lost, 1, 0))
    for now in (seconds, 2 * seconds):
        seen(membership, now, "b")
    first, *others = membership.next_actions(2 * seconds)
    assert isinstance(first, Release)
    assert first.shard == lost
    assert len(others) == PACE.moves - 1


def test_few_nodes_with_many_shards_replace_a_dead_one_within_ten_seconds() -> None:
    membership = Membership("a", tuple(map(str, range(1000))), PACE)
    for now in (0.0, PACE.settle_seconds):
        seen(membership, now)
    taken = 0
    for _ in range(8):
        actions = membership.next_actions(PACE.settle_seconds)
        for revision, take in enumerate(actions, 1):
            assert isinstance(take, Acquire)
            assert membership.acquired(take, taken + revision)
        taken += len(actions)
    assert taken == 1000


@pytest.mark.parametrize("nodes", [2, 5, 20])
def test_only_the_shards_of_the_node_that_joins_or_leaves_move(nodes: int) -> None:
    shards = [str(number) for number in range(512)]
    names = {f"node {number}" for number in range(nodes)}
    before = {shard: node_of(shard, names) for shard in shards}
    after = {shard: node_of(shard, names | {"new"}) for shard in shards}
    assert {after[shard] for shard in shards if after[shard] != before[shard]} == {"new"}
    counts = Counter(after.values())
    assert max(counts.values()) < 3 * len(shards) / (nodes + 1)


@given(st.lists(st.sets(st.sampled_from("abcdefg")), max_size=8))
@settings(max_examples=examples(40))
def test_each_node_knows_the_shards_that_belong_to_it_whichever_nodes_come_and_go(
    steps: list[set[str]],
) -> None:
    shards = [str(number) for number in range(20)]
    assignments = {node: Assignment(node, shards) for node in "abcdefg"}
    for nodes in steps:
        for node, assignment in assignments.items():
            assignment.set_nodes(nodes)
            assert set(assignment.own) == {s for s in shards if node_of(s, nodes) == node}


@pytest.mark.parametrize("other", ["b", "c", "d", "e"])
def test_a_node_that_cannot_run_the_bridge_leaves_it_to_one_that_can(other: str) -> None:
    a = Membership("a", (*SHARDS, BRIDGE), PACE)
    b = Membership(other, (*SHARDS, BRIDGE), PACE)
    seconds = PACE.settle_seconds
    for membership in (a, b):
        for now in (0.0, seconds):
            membership.renewed(now)
            membership.node_seen("a", is_draining=False, now=now, bridges=False)
            membership.node_seen(other, is_draining=False, now=now)
    taken = [shards_of(each.next_actions(seconds), Acquire) for each in (a, b)]
    assert BRIDGE not in taken[0]
    assert BRIDGE in taken[1]
    assert taken[0] | taken[1] == {*SHARDS, BRIDGE}


class Records:
    """The bucket of a cluster that answers only the last of some writes, or none."""

    def __init__(self, unanswered: float) -> None:
        self.unanswered = unanswered

    async def prepare(self) -> None: ...

    async def follow(self, receive: Callable[[str, bytes | None, int], None]) -> None:
        self.receive = receive
        receive(META, encode(ClusterMeta(shards=4)), 1)

    async def put(self, key: str, value: bytes) -> int:
        self.receive(key, value, 2)
        self.unanswered -= 1
        if self.unanswered >= 0:
            raise TimeoutError
        return 2


async def opened_node(unanswered: float) -> ClusterNode:
    records = cast("Bucket", Records(unanswered))
    node = ClusterNode(records, NodeRecord(), clock=lambda: 1000.0)
    await node.open()
    return node


async def test_a_node_that_stops_while_the_store_has_no_leader_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rsnotify_jetstream.cluster_node._RETRY_SECONDS", 0)
    node = await opened_node(unanswered=3)
    await node.drain()
    assert node.nodes[node.id].draining
    assert node.nodes[node.id].renewals == 4


async def test_a_take_that_was_given_up_does_not_go_on_though_its_cancellation_was_lost() -> None:
    node = await opened_node(unanswered=0)
    began, calls = asyncio.Event(), []

    class Work:
        def __getattr__(self, name: str) -> Callable[[str], None]:
            return lambda shard: calls.append((name, shard))

    async def replace(key: str, value: bytes, revision: int) -> int:
        began.set()
        with suppress(asyncio.CancelledError):  # as `wait_for` does whose result has just arrived
            await asyncio.Event().wait()
        return 3

    node._work = cast("ShardWork", Work())
    node._records.replace = replace  # type: ignore[method-assign, assignment]
    node._move("0", node._acquire(Acquire("0", 1, 0)))
    task = node._moves["0"]
    await began.wait()
    node._revoke(("0",))
    await task
    assert calls == [("abandon", "0")]


async def test_a_renewal_counts_that_was_stored_and_not_answered() -> None:
    node = await opened_node(unanswered=float("inf"))
    assert node.membership.is_fenced(1000.0)
    with suppress(TimeoutError):
        await node._renew(1)
    assert not node.membership.is_fenced(1000.0 + PACE.fence_seconds - 0.001)
    assert node.membership.is_fenced(1000.0 + PACE.fence_seconds)
