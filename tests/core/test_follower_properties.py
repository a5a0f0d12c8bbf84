"""Any losses, duplicates and reorderings end in the same copy."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.datetimes import MICROSECOND
from rsnotify.format.model import Document
from rsnotify.sync.actions import Fetch
from tests.core.histories import play
from tests.core.world import OFFER, PATIENT, Destination, Source
from tests.examples_count import examples

NAMES = st.sampled_from("abcde")
PULLED = (
    st.tuples(st.just("change"), NAMES, st.booleans(), st.booleans()),
    st.tuples(st.just("publish"), st.sampled_from(["rotate", "pack", "archive"])),
    st.tuples(st.just("publish"), st.sampled_from(["list_resources", "dump_resources"])),
    st.tuples(st.just("work"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.sampled_from([0.05, 0.3, 2.0])),
    st.tuples(st.just("poll")),
    st.tuples(st.just("crash")),
)
PUSHED = (
    st.tuples(st.just("emit"), st.integers(1, 4)),
    st.tuples(st.just("deliver"), st.integers(0, 5)),
    st.tuples(st.just("double"), st.integers(0, 5)),
    st.tuples(st.just("lose"), st.integers(0, 5)),
)
STEPS = st.one_of(*PULLED, *PUSHED)
HISTORIES = st.lists(STEPS, max_size=60)
HISTORIES_WITHOUT_PUSH = st.lists(st.one_of(*PULLED), max_size=40)
SOURCES = st.builds(
    Source,
    granularity=st.sampled_from([MICROSECOND, timedelta(seconds=1)]),
    per_list=st.integers(1, 5),
    kept=st.sampled_from([0, 1, 3, 100]),
    index=st.booleans(),
    nested=st.booleans(),
    terse=st.booleans(),
)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(SOURCES, HISTORIES, st.sampled_from([0.0, 0.3]), st.integers(0, 2**16))
def test_any_history_under_any_faults_ends_in_the_state_of_the_source(
    source: Source, steps: list[tuple], broken: float, seed: int
) -> None:
    destination = Destination(source, Random(seed), OFFER, PATIENT)
    destination.broken = broken
    wire: list[Document] = []
    for step in steps:
        play(step, source, destination, wire)
    destination.broken = 0.0
    # At a later instant, as a Source that keeps little of the past must.
    source.finish(OFFER)
    for fragment in wire:
        destination.push(fragment)
    destination.settle()
    destination.poll()  # changes from push are confirmed
    assert destination.steps_back == 0
    assert destination.content == source.state


@settings(max_examples=examples(100))
@given(steps=HISTORIES_WITHOUT_PUSH, seed=st.integers(0, 2**16))
def test_without_any_push_polling_alone_ends_in_the_state_of_the_source(
    steps: list[tuple], seed: int
) -> None:
    source = Source()
    destination = Destination(source, Random(seed))
    for step in steps:
        play(step, source, destination, [])
    destination.poll()
    assert destination.content == source.state


@pytest.mark.parametrize("lie", ["skips", "reaches beyond"])
def test_the_next_poll_corrects_a_hub_that_sends_a_false_from(lie: str) -> None:
    source = Source()
    source.list_resources()
    destination = Destination(source, Random(1))
    destination.settle()
    destination.lied_to = True
    for name in "abc":
        source.change(name)
    if lie == "skips":
        source.emitted = 2  # a and b are withheld, and `from` hides it
        fragment = source.fragment(1)
        source_from = destination.follower.known
    else:
        source.emitted = 3
        source.clock += timedelta(days=1)
        fragment = source.fragment(1)
        source_from = source.clock
    destination.push(
        Document(fragment.capability, fragment.resources, from_=source_from, until=source.clock)
    )
    for _ in range(20):
        destination.tick()
        while destination.pending:
            destination.step()
    assert destination.content == source.state


def test_withheld_changes_are_read_again_after_a_crash_before_they_are_applied() -> None:
    source = Source()
    source.list_resources()
    destination = Destination(source, Random(1))
    destination.settle()
    destination.lied_to = True
    for name in "abc":
        source.change(name)
    source.emitted = 2  # a and b are withheld, and `from` hides it
    fragment = replace(source.fragment(1), from_=destination.follower.known)
    destination.push(fragment)
    destination.work()
    destination.tick()
    while destination.pending:  # documents come, contents do not
        destination.broken = 0.0 if isinstance(destination.pending[0], Fetch) else 1.0
        destination.step()
    source.change("c", deleted=True)
    destination.push(source.fragment(1))
    destination.step()
    assert destination.follower.pending == 2
    assert destination.progress is not None
    assert destination.progress.through == fragment.until
    destination.broken = 0.0
    destination.restart()
    destination.settle()
    assert destination.content == source.state
