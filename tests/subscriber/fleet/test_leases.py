"""Any number of processes divide Sources, whatever fails; simulated, with tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsnotify.errors import StorageError
from rsnotify_subscriber.fleet.leases import BEAT, HOLD, LEASE, FleetShare, Lease, Members

SOURCES = frozenset(f"s{number}" for number in range(20))


class Tables:
    """What the database has, for all processes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.number = 0
        self.members: dict[int, tuple[float, bool]] = {}
        self.leases: dict[str, Lease] = {}

    def next(self) -> int:
        self.number += 1
        return self.number

    def expired(self) -> set[int]:
        return {id for id, (expires, _) in self.members.items() if expires < self.now}


class Access:
    """A `LeaseTable` of one process; `before` is called before each transaction."""

    def __init__(self, tables: Tables, before: Callable[[], None] = lambda: None) -> None:
        self._tables = tables
        self._before = before
        self.is_away = False

    def _begin(self) -> Tables:
        self._before()
        if self.is_away:
            raise StorageError("the database is away")
        return self._tables

    def renew(self, me: int | None, *, shares: bool) -> Members:
        tables = self._begin()
        if me not in tables.members:
            me = tables.next()
        assert me is not None
        tables.members[me] = (tables.now + LEASE, shares)
        over = tables.expired()
        sharing = {id for id, (_, shares) in tables.members.items() if shares} - over
        lost = any(one.owner not in tables.members for one in tables.leases.values())
        names = {id: f"process {id}" for id in tables.members}
        return Members(me, names, frozenset(sharing), bool(over) or lost, dict(tables.leases))

    def leases(self) -> dict[str, Lease]:
        return dict(self._begin().leases)

    def remove_expired(self) -> None:
        tables = self._begin()
        for id in tables.expired():
            del tables.members[id]
        tables.leases = {
            source: one for source, one in tables.leases.items() if one.owner in tables.members
        }

    def take(self, me: int, sources: Collection[str]) -> None:
        tables = self._begin()
        for source in sources:
            tables.leases.setdefault(source, Lease(me, tables.next()))

    def request(self, me: int, owner: int, sources: Collection[str], count: int) -> None:
        tables = self._begin()
        for source in sources:
            one = tables.leases.get(source)
            if count and one is not None and one.owner == owner and one.wanted_by is None:
                tables.leases[source] = one._replace(wanted_by=me)
                count -= 1

    def hand_over(self, me: int, sources: Collection[str]) -> None:
        tables = self._begin()
        for source in sources:
            one = tables.leases.get(source)
            if one is None or one.owner != me:
                continue
            if one.wanted_by in tables.members and one.wanted_by not in tables.expired():
                assert one.wanted_by is not None
                tables.leases[source] = Lease(one.wanted_by, tables.next())
            else:
                del tables.leases[source]

    def leave(self, me: int) -> None:
        tables = self._begin()
        tables.members.pop(me, None)
        tables.leases = {source: one for source, one in tables.leases.items() if one.owner != me}


class Process:
    """Follows at any moment what its leases allow."""

    def __init__(self, world: World, listed: frozenset[str]) -> None:
        self.access = Access(world.tables, world.disturb)
        self.share = FleetShare(self.access, clock=lambda: world.tables.now, random=world.random)
        self.share.set_listed(listed)
        self.is_busy = False
        self.is_suspended = False
        self.next_beat = world.tables.now

    def followed(self) -> set[str]:
        return {source for source in SOURCES if self.share.fence_of(source) is not None}

    def beat(self, now: float) -> None:
        self.is_busy = True
        self.next_beat = now + BEAT
        try:
            self.share.hand_over([*self.share.requested, *self.share.superfluous])
            self.share.beat()
        except StorageError:
            pass
        finally:
            self.is_busy = False


class World:
    """Processes that fail at random, between any two transactions."""

    def __init__(self, seed: int, *, calm: bool = False) -> None:
        self.random = Random(seed)
        self.tables = Tables()
        self.processes: list[Process] = []
        self.is_calm = calm
        self._depth = 0

    def start(self, listed: frozenset[str] = SOURCES) -> Process:
        self.processes.append(Process(self, listed))
        return self.processes[-1]

    def disturb(self) -> None:
        """Let time pass and others act, while a process waits for its transaction."""
        if self.is_calm or self._depth > 2 or self.random.random() < 0.7:
            return
        self._depth += 1
        self.wait(self.random.choice((0.01, 0.5, 2.0, 7.0)))
        if self.random.random() < 0.5:
            self.run_due()
        self._depth -= 1

    def wait(self, seconds: float) -> None:
        self.tables.now += seconds
        self.check()

    def check(self) -> None:
        followed = [source for one in self.processes for source in one.followed()]
        assert len(followed) == len(set(followed)), f"followed twice: {sorted(followed)}"

    def run_due(self) -> None:
        for process in list(self.processes):
            is_due = process.next_beat <= self.tables.now
            if is_due and not process.is_busy and not process.is_suspended:
                process.beat(self.tables.now)
                self.check()

    def pass_time(self, seconds: float) -> None:
        until = self.tables.now + seconds
        while self.tables.now < until:
            self.wait(0.25)
            self.run_due()

    def fail(self) -> None:
        """Do something to a process, or to the database."""
        one = self.random.choice(self.processes) if self.processes else self.start()
        match self.random.randrange(8):
            case 0 if not one.is_busy:
                self.processes.remove(one)  # it is killed
            case 1 if not (one.is_busy or one.is_suspended or one.access.is_away):
                one.share.leave()
                self.processes.remove(one)
            case 2:
                self.start(frozenset(self.random.sample(sorted(SOURCES), 12)))
            case 3:
                self.start()
            case 4:
                one.is_suspended = not one.is_suspended
            case 5:
                one.access.is_away = not one.access.is_away
            case 6:
                for each in self.processes:
                    each.access.is_away = True
            case 7:
                one.share.set_listed(self.random.sample(sorted(SOURCES), 15))

    def calm(self) -> None:
        self.is_calm = True
        for each in self.processes:
            each.access.is_away = each.is_suspended = False
            each.share.set_listed(SOURCES)
        if not self.processes:
            self.start()

    def followed(self) -> list[int]:
        return sorted(len(one.followed()) for one in self.processes)


def shared_by(processes: int) -> World:
    world = World(1, calm=True)
    for _ in range(processes):
        world.start()
    world.pass_time(6 * BEAT)
    return world


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_followed_twice_and_in_the_end_everything_once(seed: int) -> None:
    world = World(seed)
    for _ in range(3):
        world.start()
    for _ in range(12):
        world.pass_time(world.random.choice((0.5, 3.0, 9.0)))
        world.fail()
    world.calm()
    world.pass_time(LEASE + 12 * BEAT)
    shares = world.followed()
    assert sum(shares) == len(SOURCES), shares
    assert shares[-1] - shares[0] <= 2, shares
    before = dict(world.tables.leases)
    world.pass_time(20 * BEAT)
    assert world.tables.leases == before, "leases move although nothing has changed"


def test_processes_have_equal_shares_and_a_new_one_receives_its_own() -> None:
    world = shared_by(3)
    assert world.followed() == [6, 7, 7]
    world.start()
    world.pass_time(4 * BEAT)
    assert world.followed() == [5, 5, 5, 5]


def test_the_sources_of_a_process_that_is_killed_are_followed_within_ten_seconds() -> None:
    world = shared_by(3)
    del world.processes[0]
    world.pass_time(10)
    assert world.followed() == [10, 10]


def test_the_sources_of_a_process_that_ends_are_followed_at_once() -> None:
    world = shared_by(2)
    world.processes.pop().share.leave()
    world.pass_time(BEAT)
    assert world.followed() == [20]


def test_a_process_that_cannot_renew_stops_before_others_begin() -> None:
    world = shared_by(2)
    world.processes[0].access.is_away = True
    world.pass_time(HOLD)
    assert world.processes[0].followed() == set()
    assert len(world.processes[1].followed()) == 10
    world.pass_time(10 - HOLD)
    assert len(world.processes[1].followed()) == 20


def test_a_renewal_counts_from_its_beginning() -> None:
    world = shared_by(1)
    (process,) = world.processes
    process.access = Access(world.tables, lambda: world.wait(HOLD / 2))
    process.share._table = process.access
    process.beat(world.tables.now)
    world.pass_time(0)
    assert process.share.seconds_left <= HOLD / 2


def test_leases_stay_where_they_are_if_the_database_was_away_for_all() -> None:
    world = shared_by(3)
    before = dict(world.tables.leases)
    for each in world.processes:
        each.access.is_away = True
    world.pass_time(3 * LEASE)
    assert world.followed() == [0, 0, 0]
    for each in world.processes:
        each.access.is_away = False
    world.pass_time(2 * BEAT)
    assert world.tables.leases == before
    assert world.followed() == [6, 7, 7]


def test_a_source_that_only_one_process_lists_is_followed_by_that_one() -> None:
    world = World(1, calm=True)
    few = world.start(frozenset({"s0", "s1"}))
    world.pass_time(BEAT)
    all_ = world.start()
    world.pass_time(20 * BEAT)
    assert few.followed() | all_.followed() == SOURCES
    few.share.set_listed({"s1", "s2"})
    world.pass_time(20 * BEAT)
    assert few.followed() <= {"s1", "s2"}
    assert few.followed() | all_.followed() == SOURCES


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_process_without_a_share_takes_only_what_nobody_follows(is_followed: bool) -> None:
    world = World(1, calm=True)
    if is_followed:
        world.start(frozenset({"s0"}))
        world.pass_time(BEAT)
    once = FleetShare(Access(world.tables), shares=False, clock=lambda: world.tables.now)
    once.set_listed({"s0", "s1"})
    once.beat()
    assert once.held.keys() == ({"s1"} if is_followed else {"s0", "s1"})
    assert once.owner_of("s0") == "process 1"
    world.pass_time(10 * BEAT)
    if is_followed:
        assert world.processes[0].followed() == {"s0"}
