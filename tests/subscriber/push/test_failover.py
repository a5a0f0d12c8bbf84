from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify_subscriber.push.endpoint_failover import (
    CONNECT_GRACE,
    HOLD_TIME,
    MAX_HOLD_TIME,
    MAX_LAG,
    SILENCE_LIMIT,
    EndpointFailover,
)
from tests.subscriber.push.world import World

#: More than any wait between two tries, and for what is tried then to have held.
LONG = 17.0 + HOLD_TIME


def test_only_the_best_endpoint_is_opened_and_the_next_as_soon_as_one_fails() -> None:
    assert World().run(1000) == "a"
    world = World(can="c")
    world.run()
    assert world.up == {"c"}


def test_the_next_endpoint_is_opened_after_a_moment_without_an_answer() -> None:
    world = World(can="b")
    world.silent = {"a"}
    assert world.run(CONNECT_GRACE - 0.01) == "a"
    assert world.run(0.02) == "ab"
    assert world.run(1000) == "ab"  # it may answer yet


def test_a_late_answer_is_used_and_the_worse_endpoint_is_closed() -> None:
    world = World(can="b")
    world.silent = {"a"}
    world.run(CONNECT_GRACE + 1)
    world.can.add("a")
    assert world.run() == "ab"
    assert world.run(HOLD_TIME + 0.01) == "a"


def test_an_endpoint_that_has_held_gets_a_moment_to_return() -> None:
    world = World()
    world.run(HOLD_TIME + 1)
    world.lose("a")
    assert world.run() == ""
    assert world.run(1) == "a"
    assert world.tries == {"a": 2}


def test_the_next_endpoint_is_opened_if_a_lost_one_does_not_return() -> None:
    world = World()
    world.run(HOLD_TIME + 1)
    world.can.discard("a")
    world.run(0.3)
    assert world.up == {"b"}


def test_an_endpoint_that_asks_for_a_delay_is_not_waited_for() -> None:
    world = World()
    world.run(HOLD_TIME + 1)
    world.wish = 60.0
    world.lose("a")
    assert world.run() == "b"
    assert world.run(59) == "b"
    assert world.run(1 + HOLD_TIME) == "a"


@pytest.mark.parametrize(
    ("places", "telling"),
    [({}, "abc"), ({"a": "hub", "b": "hub", "c": "another"}, "")],
    ids=["hubs that deliver", "endpoints of one hub"],
)
def test_a_better_endpoint_that_returns_replaces_the_worse_once_it_has_held(
    places: dict[str, str], telling: str
) -> None:
    world = World(can="bc")
    world.places, world.telling = places, set(telling)
    assert world.run(100) == "b"
    world.can.add("a")
    while world.run(0.1) != "ab":
        pass
    assert world.run(HOLD_TIME - 0.2) == "ab"
    assert world.run(1.3 if telling else 0.3) == "a"


@pytest.mark.parametrize("places", [{}, {"a": "hub", "b": "hub"}], ids=["hubs", "one hub"])
def test_an_endpoint_that_returns_and_receives_nothing_does_not_close_one_that_does(
    places: dict[str, str],
) -> None:
    world = World(can="b")
    world.places, world.telling = places, {"b"}
    world.run(100)
    world.can.add("a")
    assert world.run(1000) == "ab"
    world.telling.add("a")
    assert world.run(1.5) == "a"


def test_an_endpoint_that_returns_closes_others_in_the_end_if_none_receives_anything() -> None:
    world = World(can="b")
    world.telling = set()
    world.run(100)
    world.can.add("a")
    while world.run(1) != "ab":
        pass
    assert world.run(SILENCE_LIMIT - 2) == "ab"
    assert world.run(2) == "a"


def test_an_endpoint_that_received_more_is_closed_when_it_is_silent_too() -> None:
    world = World(can="b")
    world.telling = {"b"}
    world.run(100)
    world.can.add("a")
    while world.run(1) != "ab":
        pass
    assert world.run(HOLD_TIME + 2 * SILENCE_LIMIT) == "ab"
    world.telling = set()
    assert world.run(SILENCE_LIMIT - 1) == "ab"
    assert world.run(2) == "a"


def test_a_better_endpoint_that_receives_the_same_a_little_later_closes_the_first() -> None:
    failover = EndpointFailover("ab", Random(0))
    failover.tick(0.0)
    failover.tick(CONNECT_GRACE)
    failover.up("b", 3.0)
    failover.up("a", 4.0)
    failover.received("b", 9.0)
    assert failover.tick(9.1) == ["a", "b"]
    failover.received("a", 9.0 + MAX_LAG)
    failover.received("b", 9.0 + 2 * MAX_LAG)
    assert failover.tick(20.0) == ["a"]


def test_a_mute_endpoint_counts_as_lost_until_it_receives_something() -> None:
    world = World()
    world.telling = {"b"}
    world.run(100)
    world.failover.mute("a")
    assert world.run() == "ab"
    assert world.run(1000) == "ab"
    world.telling.add("a")
    assert world.run(1.5) == "a"


def test_an_endpoint_that_comes_and_goes_does_not_close_the_next_each_time() -> None:
    world = World()
    world.run(HOLD_TIME + 1)
    for _ in range(100):
        world.can.discard("a")
        world.run(1)
        world.can.add("a")
        world.run(HOLD_TIME + 2)
        assert world.up
    assert world.tries["b"] < 10


def test_losses_are_forgiven_once_an_endpoint_stays_up() -> None:
    world = World()
    for _ in range(20):
        world.run(1)
        world.lose("a")
    assert "b" in world.run(LONG)
    assert world.run(MAX_HOLD_TIME) == "a"
    world.run(20 * MAX_HOLD_TIME)
    world.can.discard("a")
    assert world.run(1) == "b"
    world.can.add("a")
    assert world.run(LONG) == "a"


def test_an_endpoint_that_fails_is_retried_less_and_less_often() -> None:
    world = World(can="b")
    world.run(3600)
    assert 3600 / 15 <= world.tries["a"] <= 3600 / 7 + 20
    assert world.tries["b"] == 1


def test_failures_long_ago_do_not_count() -> None:
    world = World(can="c")
    world.run(100)
    world.can.add("a")
    assert world.run(1000) == "a"
    world.silent = {"b"}
    world.can.discard("a")
    assert world.run(CONNECT_GRACE) == "b"
    assert world.run(0.3) == "bc"


def test_several_endpoints_are_up_at_once_if_requested() -> None:
    world = World(most=2)
    assert world.run(100) == "ab"
    world.can.discard("a")
    world.run(1)
    assert world.up == {"b", "c"}
    world.can.add("a")
    assert world.run(LONG) == "ab"


def test_other_endpoints_do_not_affect_those_that_stay() -> None:
    world = World()
    world.run(HOLD_TIME + 1)
    world.failover.set_endpoints("dab")
    world.can.add("d")
    world.telling.add("d")
    assert world.run() == "da"
    assert world.run(HOLD_TIME + 1) == "d"
    assert world.tries["a"] == 1


def test_without_endpoints_nothing_is_due() -> None:
    failover = EndpointFailover[str]((), Random())
    assert failover.tick(0.0) == []
    assert failover.due(0.0) is None


EVENTS = st.lists(
    st.tuples(st.sets(st.sampled_from("abcd")), st.sets(st.sampled_from("abcd")), st.floats(0, 40)),
    max_size=15,
)


@given(EVENTS, st.integers(1, 4))
def test_in_the_end_only_the_best_reachable_endpoints_are_up(
    events: list[tuple[set[str], set[str], float]], most: int
) -> None:
    world = World("abcd", can="abcd", most=most)
    for can, silent, seconds in events:
        world.can, world.silent = can, silent
        world.run(seconds)
    world.silent = set()
    world.run(LONG + MAX_HOLD_TIME)
    best = sorted(world.can)[:most]
    assert sorted(world.up) == best
    if len(best) == most:
        assert set(world.open) <= set("abcd"[: "abcd".index(best[-1]) + 1])


@given(EVENTS, st.integers(1, 4))
def test_an_endpoint_is_up_whenever_one_is_reachable_for_long_enough(
    events: list[tuple[set[str], set[str], float]], most: int
) -> None:
    world = World("abcd", can="abcd", most=most)
    for can, world.silent, seconds in events:
        world.can = can
        world.run(seconds + LONG)
        assert bool(world.up) == bool(can)


@pytest.mark.parametrize("most", [1, 2])
def test_an_endpoint_that_stays_up_is_never_closed_for_a_worse_one(most: int) -> None:
    world = World(can="bc", most=most)
    for seconds in range(200):
        world.can ^= {"c"} if seconds % 3 else {"a"}
        world.run(0.7)
        assert "b" in world.up or "a" in world.up
