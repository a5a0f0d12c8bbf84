"""One stream over four transports, lost and regained in any order, gives the same copy as one."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rsnotify.format.datetimes import MICROSECOND
from tests.core.mixed import CHANGES, HISTORIES, NUMBERS, Joining, Mixed, play_both, through
from tests.core.world import PATIENT, Destination, Source

SOURCES = st.one_of(
    st.builds(
        Source,
        per_list=st.integers(1, 5),
        kept=st.sampled_from([0, 1, 3, 100]),
        index=st.booleans(),
    ),
    # All lists are kept: else changes of a second that was still running may be lost unnoticed.
    st.builds(
        Source,
        granularity=st.just(timedelta(seconds=1)),
        per_list=st.integers(1, 5),
        index=st.booleans(),
    ),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    source=SOURCES,
    steps=HISTORIES,
    order=st.lists(NUMBERS, max_size=20),
    broken=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**16),
)
def test_any_interleaving_of_four_transports_gives_the_same_copy_as_one(
    source: Source, steps: list[tuple], order: list[int], broken: float, seed: int
) -> None:
    single = Destination(source, Random(seed))
    mixed = Mixed(source, Destination(source, Random(seed), pace=PATIENT))
    destination = mixed.destination
    destination.broken = broken
    # Changes of a second that was still running when it was read are found by the next poll.
    destination.lied_to = source.granularity > MICROSECOND
    play_both(mixed, single, steps, order)
    assert destination.content == single.content == source.state
    assert through(destination) == through(single)


@settings(max_examples=100)
@given(
    emitted=st.lists(st.lists(CHANGES, max_size=2), min_size=1, max_size=10),
    granularity=st.sampled_from([MICROSECOND, timedelta(seconds=1)]),
    random=st.randoms(use_true_random=False),
)
def test_parts_of_a_stream_from_several_transports_are_enough_without_lists(
    emitted: list[list[tuple]], granularity: timedelta, random: Random
) -> None:
    source = Source(granularity)
    destination = Destination(source, random)
    destination.settle()
    read = len(destination.fetches)
    fragments = []
    for changes in emitted:
        for name, deleted in changes:
            source.change(name, deleted)
        fragments.append(source.fragment(4))
    source.clock += granularity
    fragments += [source.fragment(len(source.history) + 1), source.fragment(1)]
    received = [one for one in fragments for _ in range(random.randint(1, len(Joining)))]
    random.shuffle(received)
    for fragment in received:
        destination.push(fragment)
        for _ in range(random.randrange(3)):
            destination.step()
    destination.work()
    assert destination.content == source.state
    assert through(destination) == fragments[-1].until
    assert len(destination.fetches) == read
