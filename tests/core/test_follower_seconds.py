"""Sources whose datetimes are in whole seconds: a second may not be over when it is read."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rsnotify.format.offer import Offer
from tests.core.histories import play
from tests.core.world import EVERYTHING, Destination, Source
from tests.examples_count import examples

#: It keeps no closed lists.
OFFER = Offer(resource_list=EVERYTHING.resource_list, change_list=EVERYTHING.change_list)
SECOND = timedelta(seconds=1)
STEPS = st.one_of(
    st.tuples(st.just("change"), st.sampled_from("abc"), st.booleans(), st.booleans()),
    st.tuples(st.just("poll")),
    st.tuples(st.just("publish"), st.just("rotate")),
    st.tuples(st.just("publish"), st.just("list_resources")),
    st.tuples(st.just("work"), st.integers(1, 6)),
    st.tuples(st.just("crash")),
)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(STEPS, max_size=40),
    per_list=st.integers(1, 3),
    index=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_no_change_is_lost_of_a_second_read_before_its_end_and_rotated_away(
    steps: list[tuple], per_list: int, index: bool, seed: int
) -> None:
    source = Source(SECOND, per_list, kept=0, index=index)
    destination = Destination(source, Random(seed), OFFER)
    for step in steps:
        play(step, source, destination, [])
    source.finish(OFFER)
    destination.settle()
    destination.poll()
    assert destination.content == source.state


def rotated_away(later: timedelta) -> tuple[Source, Destination]:
    """Read a list some time after its last change, and make another change."""
    source = Source(SECOND, per_list=1, kept=0)
    destination = Destination(source, Random(1), OFFER)
    source.change("a")
    source.read_later = later
    destination.settle()
    source.change("b", same_instant=later < SECOND)
    source.change("c")
    source.rotate(2 if later < SECOND else 1)
    destination.fetches.clear()
    return source, destination


def test_t_waits_if_a_second_was_read_before_its_end_and_no_list_has_the_rest() -> None:
    source, destination = rotated_away(timedelta())
    for _ in range(20):
        destination.tick()
        destination.work()
    assert EVERYTHING.resource_list in destination.fetches
    assert not destination.follower.level
    source.finish(OFFER)
    destination.settle()
    assert destination.content == source.state


def test_a_list_read_after_its_last_second_costs_no_comparison() -> None:
    source, destination = rotated_away(2 * SECOND)
    source.closed.clear()
    source.open_from = source.history[0].at
    destination.poll()
    assert EVERYTHING.resource_list not in destination.fetches
    assert destination.content == source.state
