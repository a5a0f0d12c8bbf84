"""Places for requests, shared out fairly among hosts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from rsnotify_hub.websub.delivery.fair_queue import Capacity, FairQueue


class Guest(Struct, frozen=True):
    host: str
    number: int


GUESTS = st.lists(st.sampled_from("abcd"), max_size=40).map(
    lambda hosts: [Guest(host, number) for number, host in enumerate(hosts)]
)


def drained(lane: FairQueue[Guest], now: float = 0.0) -> list[Guest]:
    found = []
    while (guest := lane.next()) is not None:
        lane.enter(guest, now)
        found.append(guest)
    return found


@given(guests=GUESTS, count=st.integers(1, 10), per_host=st.integers(1, 5), seed=st.randoms())
def test_everybody_gets_a_place_once_and_never_too_many_have_one(
    guests: list[Guest], count: int, per_host: int, seed: object
):
    lane: FairQueue[Guest] = FairQueue(Capacity(count, per_host))
    for guest in guests:
        lane.wait(guest)
    served: list[Guest] = []
    while lane.waiting():
        served += drained(lane)
        inside = lane.inside()
        assert 0 < len(inside) <= count
        assert max(Counter(guest.host for guest in inside).values()) <= per_host
        lane.leave(seed.choice(inside))  # type: ignore[attr-defined]
    assert sorted(served, key=lambda guest: guest.number) == guests


@given(guests=GUESTS)
def test_hosts_are_served_in_turn_and_each_in_its_own_order(guests: list[Guest]):
    lane: FairQueue[Guest] = FairQueue(Capacity(100, per_host=100))
    for guest in guests:
        lane.wait(guest)
    rounds: Counter[str] = Counter()
    last: dict[str, int] = {}
    for guest in drained(lane):
        rounds[guest.host] += 1
        assert last.get(guest.host, -1) < guest.number
        last[guest.host] = guest.number
        behind = [host for host in "abcd" if rounds[host] < rounds[guest.host] - 1]
        left = [each for each in guests if each.host in behind and each.number > last[each.host]]
        assert not left, "somebody was passed over"


def test_one_that_leaves_while_it_waits_is_not_served():
    lane: FairQueue[Guest] = FairQueue(Capacity(1, 1))
    guests = [Guest("a", 0), Guest("a", 1), Guest("b", 2)]
    for guest in guests:
        lane.wait(guest)
    lane.leave(guests[0])
    lane.leave(guests[2])
    assert drained(lane) == [guests[1]]
    assert lane.waiting() == 0


def test_only_what_was_long_inside_and_is_waited_for_is_in_the_way():
    lane: FairQueue[Guest] = FairQueue(Capacity(3, per_host=2))
    early, late, other = Guest("a", 0), Guest("a", 1), Guest("b", 2)
    for guest, now in ((early, 1.0), (late, 5.0), (other, 1.0)):
        lane.enter(guest, now)
    assert list(lane.in_the_way(before=2.0)) == []
    lane.wait(Guest("c", 3))
    assert list(lane.in_the_way(before=2.0)) == [early]  # `late` went in before `other`
    lane.leave(other)
    assert list(lane.in_the_way(before=9.0)) == []
    lane.wait(Guest("a", 4))
    assert list(lane.in_the_way(before=9.0)) == [early, late]
