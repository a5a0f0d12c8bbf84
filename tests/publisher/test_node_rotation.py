"""Which node of a hub is tried next, and when: decided without clocks and connections."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.sync.retry import Retry
from rsnotify_publisher.push.hub_push import NodeRotation

RETRY = Retry(first=0.1, most=30.0)
#: A failure: whether the node had accepted something, its Retry-After, whether all would fail so.
FAILURES = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, 0.0, 5.0, 100.0]), st.booleans()), max_size=60
)


def rotation(*nodes: str) -> NodeRotation:
    return NodeRotation(nodes, RETRY, Random(1))


def test_the_next_node_is_tried_at_once_and_the_first_again_after_the_backoff():
    nodes = rotation("a", "b", "c")
    assert (nodes.failed(0.0, progressed=False), nodes.current) == (0.0, "b")
    assert (nodes.failed(0.0, progressed=False), nodes.current) == (0.0, "c")
    assert 0.05 <= nodes.failed(0.0, progressed=False) <= 0.1
    assert nodes.current == "a"


def test_a_node_that_had_worked_gives_way_to_one_that_failed_long_ago():
    nodes = rotation("a", "b")
    nodes.failed(0.0, progressed=False)
    assert (nodes.failed(3600.0, progressed=True), nodes.current) == (0.0, "a")


def test_a_node_that_requested_to_wait_is_left_out_until_then():
    nodes = rotation("a", "b")
    assert (nodes.failed(0.0, progressed=False, retry_after=60.0), nodes.current) == (0.0, "b")
    wait = nodes.failed(10.0, progressed=True)
    assert 0.05 <= wait <= 0.1
    assert nodes.current == "b"
    assert (nodes.failed(61.0, progressed=True), nodes.current) == (0.0, "a")


def test_what_every_node_would_refuse_is_not_asked_of_the_next_one_at_once():
    nodes = rotation("a", "b")
    assert nodes.failed(0.0, progressed=False, retry_after=7.0, everywhere=True) == 7.0
    assert nodes.current == "b"


@given(FAILURES)
def test_one_node_alone_is_tried_after_a_backoff_that_doubles(
    failures: list[tuple[bool, float, bool]],
):
    nodes, expected, row, now = rotation("a"), Random(1), 0, 0.0
    for progressed, retry_after, everywhere in failures:
        row = 1 if progressed else row + 1
        wait = nodes.failed(
            now, progressed=progressed, retry_after=retry_after, everywhere=everywhere
        )
        assert wait == pytest.approx(RETRY.delay(row, expected, at_least=retry_after))
        now += wait


@given(FAILURES, st.integers(2, 5))
def test_no_node_is_tried_twice_without_a_wait_nor_before_it_may_be(
    failures: list[tuple[bool, float, bool]], count: int
):
    names = [str(number) for number in range(count)]
    nodes, now = rotation(*names), 0.0
    allowed = dict.fromkeys(names, 0.0)
    tried: set[str] = set()
    for progressed, retry_after, everywhere in failures:
        node = nodes.current
        assert now >= allowed[node] - 1e-6
        tried = {node} if progressed else tried | {node}
        for each in names if everywhere else [node]:
            allowed[each] = now + retry_after
        could = {name for name in names if name not in tried and allowed[name] <= now}
        wait = nodes.failed(
            now, progressed=progressed, retry_after=retry_after, everywhere=everywhere
        )
        if wait:
            assert everywhere or not could, "a node that could be tried was not"
            tried = set()
        else:
            assert nodes.current in could
        now += wait


@given(st.integers(2, 5), st.data())
def test_a_living_node_is_reached_before_the_first_wait(count: int, data: st.DataObject):
    names = [str(number) for number in range(count)]
    living = data.draw(st.sampled_from(names))
    nodes, waits = rotation(*names), 0.0
    while nodes.current != living:
        waits += nodes.failed(0.0, progressed=False)
    assert waits == 0.0
