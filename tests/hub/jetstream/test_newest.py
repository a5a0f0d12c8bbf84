"""The list of topics of the index, a page at a time, however many there are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.format.datetimes import Instant, from_microseconds
from rsnotify_hub.store.interface import LogState
from rsnotify_jetstream.log_index import LogIndex
from rsnotify_jetstream.log_records import LogRecord, RecordKind
from tests.hub.storing import FOREVER


def changes(position: int, topic: str, received: int, after: int = 0) -> LogRecord:
    return LogRecord(
        position,
        RecordKind.CHANGES,
        topic,
        received=received,
        digest=position.to_bytes(16),
        after=after,
    )


def pages(index: LogIndex, limit: int) -> list[LogState]:
    found: list[LogState] = []
    after: tuple[Instant, str] | None = None
    while page := index.newest(after, limit):
        assert len(page) <= limit
        found += page
        after = page[-1].received, page[-1].topic
    return found


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 5), st.booleans())),
    st.integers(1, 9),
)
def test_pages_join_to_all_topics_the_newest_first(
    steps: Sequence[tuple[str, int, bool]], limit: int
):
    index = LogIndex(FOREVER)
    for position, (topic, received, is_reset) in enumerate(steps, 1):
        after = index.last(topic)
        if is_reset:
            index.apply(LogRecord(position, RecordKind.RESET, topic, after=after))
        else:
            index.apply(changes(position, topic, received, after))
    expected = sorted(index.states(), key=lambda state: state.topic)
    expected.sort(key=lambda state: state.received, reverse=True)
    assert pages(index, limit) == expected


@pytest.mark.parametrize("same", [1, 200])
def test_a_page_of_two_thousand_topics_takes_no_more_steps_than_of_a_hundred(same: int):
    taken = []
    for count in (100, 2_000):
        index = LogIndex(FOREVER)
        for number in range(count):
            index.apply(changes(number + 1, f"topic {number:05}", number // same))
        middle = count // 2
        for after in (None, (from_microseconds(middle // same), f"topic {middle:05}")):
            assert steps(index, after) > 0
            taken.append(steps(index, after))
    first, from_the_middle, first_of_many, from_the_middle_of_many = taken
    assert first_of_many <= first * 1.1
    assert from_the_middle_of_many <= from_the_middle * 1.1


def steps(index: LogIndex, after: tuple[Instant, str] | None) -> int:
    """Return how many calls a page of 20 topics takes."""
    count = 0

    def called(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        page = index.newest(after, 20)
    finally:
        sys.setprofile(before)
    assert len(page) == 20
    return count
