"""Any number of processes divide Sources, whatever fails."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsnotify_subscriber.fleet.leases import (
    LEASE_DURATION,
    RENEWAL_INTERVAL,
    RENEWAL_VALIDITY,
    FleetShare,
)
from tests.subscriber.fleet.simulated_fleet import SOURCES, Access, World


def shared_by(processes: int) -> World:
    world = World(1, calm=True)
    for _ in range(processes):
        world.start()
    world.pass_time(6 * RENEWAL_INTERVAL)
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
    world.pass_time(LEASE_DURATION + 12 * RENEWAL_INTERVAL)
    shares = world.followed()
    assert sum(shares) == len(SOURCES), shares
    assert shares[-1] - shares[0] <= 2, shares
    before = dict(world.tables.leases)
    world.pass_time(20 * RENEWAL_INTERVAL)
    assert world.tables.leases == before, "leases move although nothing has changed"


def test_processes_have_equal_shares_and_a_new_one_receives_its_own() -> None:
    world = shared_by(3)
    assert world.followed() == [6, 7, 7]
    world.start()
    world.pass_time(4 * RENEWAL_INTERVAL)
    assert world.followed() == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("leaves", "seconds"),
    [(False, 10), (True, RENEWAL_INTERVAL)],
    ids=["killed", "ended"],
)
def test_the_sources_of_a_process_that_is_killed_or_ends_are_followed_by_the_others(
    leaves: bool, seconds: float
) -> None:
    world = shared_by(3)
    gone = world.processes.pop(0)
    if leaves:
        gone.share.leave()
    world.pass_time(seconds)
    assert world.followed() == [10, 10]


def test_a_process_that_cannot_renew_stops_before_others_begin() -> None:
    world = shared_by(2)
    world.processes[0].access.is_away = True
    world.pass_time(RENEWAL_VALIDITY)
    assert world.processes[0].followed() == set()
    assert len(world.processes[1].followed()) == 10
    world.pass_time(10 - RENEWAL_VALIDITY)
    assert len(world.processes[1].followed()) == 20


def test_a_renewal_counts_from_its_beginning() -> None:
    world = shared_by(1)
    (process,) = world.processes
    process.access = Access(world.tables, lambda: world.wait(RENEWAL_VALIDITY / 2))
    process.share._table = process.access
    process.beat(world.tables.now)
    world.pass_time(0)
    assert process.share.seconds_left <= RENEWAL_VALIDITY / 2


def test_leases_stay_where_they_are_if_the_database_was_away_for_all() -> None:
    world = shared_by(3)
    before = dict(world.tables.leases)
    for each in world.processes:
        each.access.is_away = True
    world.pass_time(3 * LEASE_DURATION)
    assert world.followed() == [0, 0, 0]
    for each in world.processes:
        each.access.is_away = False
    world.pass_time(2 * RENEWAL_INTERVAL)
    assert world.tables.leases == before
    assert world.followed() == [6, 7, 7]


def test_a_source_that_only_one_process_lists_is_followed_by_that_one() -> None:
    world = World(1, calm=True)
    few = world.start(frozenset({"s0", "s1"}))
    world.pass_time(RENEWAL_INTERVAL)
    all_ = world.start()
    world.pass_time(20 * RENEWAL_INTERVAL)
    assert few.followed() | all_.followed() == SOURCES
    few.share.set_listed({"s1", "s2"})
    world.pass_time(20 * RENEWAL_INTERVAL)
    assert few.followed() <= {"s1", "s2"}
    assert few.followed() | all_.followed() == SOURCES


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_process_without_a_share_takes_only_what_nobody_follows(is_followed: bool) -> None:
    world = World(1, calm=True)
    if is_followed:
        world.start(frozenset({"s0"}))
        world.pass_time(RENEWAL_INTERVAL)
    once = FleetShare(Access(world.tables), shares=False, clock=lambda: world.tables.now)
    once.set_listed({"s0", "s1"})
    once.beat()
    assert once.held.keys() == ({"s1"} if is_followed else {"s0", "s1"})
    assert once.owner_of("s0") == "process 1"
    world.pass_time(10 * RENEWAL_INTERVAL)
    if is_followed:
        assert world.processes[0].followed() == {"s0"}
