"""Capacity for requests, shared fairly among hosts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from rsnotify_hub.websub.request_scheduler import Capacity, FairQueue


class Item(Struct, frozen=True):
    host: str
    number: int


ITEMS = st.lists(st.sampled_from("abcd"), max_size=40).map(
    lambda hosts: [Item(host, number) for number, host in enumerate(hosts)]
)


def drained(queue: FairQueue[Item]) -> list[Item]:
    found = []
    while (item := queue.pop()) is not None:
        queue.start(item, 0.0)
        found.append(item)
    return found


@given(items=ITEMS, count=st.integers(1, 10), per_host=st.integers(1, 5), seed=st.randoms())
def test_every_item_runs_once_and_never_more_than_the_capacity(
    items: list[Item], count: int, per_host: int, seed: object
):
    queue: FairQueue[Item] = FairQueue(Capacity(count, per_host))
    for item in items:
        queue.add(item)
    served: list[Item] = []
    while queue.waiting():
        served += drained(queue)
        running = queue.running()
        assert 0 < len(running) <= count
        assert max(Counter(item.host for item in running).values()) <= per_host
        queue.remove(seed.choice(running))  # type: ignore[attr-defined]
    assert sorted(served, key=lambda item: item.number) == items


@given(items=ITEMS)
def test_hosts_are_served_round_robin_and_each_in_its_own_order(items: list[Item]):
    queue: FairQueue[Item] = FairQueue(Capacity(100, per_host=100))
    for item in items:
        queue.add(item)
    rounds: Counter[str] = Counter()
    last: dict[str, int] = {}
    for item in drained(queue):
        rounds[item.host] += 1
        assert last.get(item.host, -1) < item.number
        last[item.host] = item.number
        behind = [host for host in "abcd" if rounds[host] < rounds[item.host] - 1]
        left = [each for each in items if each.host in behind and each.number > last[each.host]]
        assert not left, "an item was skipped"


def test_an_item_that_is_removed_while_it_waits_does_not_run():
    queue: FairQueue[Item] = FairQueue(Capacity(1, 1))
    items = [Item("a", 0), Item("a", 1), Item("b", 2)]
    for item in items:
        queue.add(item)
    queue.remove(items[0])
    queue.remove(items[2])
    assert drained(queue) == [items[1]]
    assert queue.waiting() == 0


def test_only_an_item_that_runs_long_while_another_waits_is_blocking():
    queue: FairQueue[Item] = FairQueue(Capacity(3, per_host=2))
    early, late, other = Item("a", 0), Item("a", 1), Item("b", 2)
    for item, now in ((early, 1.0), (late, 5.0), (other, 1.0)):
        queue.start(item, now)
    assert list(queue.blocking(before=2.0)) == []
    queue.add(Item("c", 3))
    assert list(queue.blocking(before=2.0)) == [early]  # `late` started before `other`
    assert list(queue.blocking(before=1.0)) == [early]
    queue.remove(other)
    assert list(queue.blocking(before=9.0)) == []
    queue.add(Item("a", 4))
    assert list(queue.blocking(before=9.0)) == [early, late]
