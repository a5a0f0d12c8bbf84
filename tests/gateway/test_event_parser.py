from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import TooLarge
from rsnotify_gateway.adapters.event_streams import (
    EventMapping,
    EventParser,
    ServerEvent,
    read_event,
)

MAPPING = EventMapping("/uri", "/at", "/kind", ("gone",), {"/wiki": "one"})
STREAM = (
    "\ufeffid: 1\nevent: message\ndata: one\n\n"
    ": a comment\r\n\r\n"
    "retry: 2500\rdata:two\rdata: lines\r\r"
    "id: 7\n\n"
    "data: ünder\n\ndata: not complete\n"
).encode()
EVENTS = [ServerEvent("1", "one"), ServerEvent("1", "two\nlines"), ServerEvent("7", "ünder")]


@given(st.lists(st.integers(0, len(STREAM))))
def test_a_stream_has_the_same_events_however_it_is_divided(cuts: list[int]) -> None:
    parser = EventParser("")
    ends = sorted({*cuts, len(STREAM)})
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        found += parser.feed(STREAM[start:end])
    assert found == EVENTS
    assert (parser.last_id, parser.retry) == ("7", 2.5)


def test_an_event_of_any_size_is_not_kept() -> None:
    parser = EventParser("")
    line = b"data: " + b"x" * 1_000_000 + b"\n"
    assert parser.feed(line * 3) == []
    with pytest.raises(TooLarge):
        parser.feed(line)


@pytest.mark.parametrize(
    ("at", "when"),
    [
        ('"2026-11-02T10:00:00Z"', datetime(2026, 11, 2, 10, tzinfo=UTC)),
        ("1793613600", datetime(2026, 11, 2, 10, tzinfo=UTC)),
        ("1793613600000", datetime(2026, 11, 2, 10, tzinfo=UTC)),
    ],
)
def test_a_datetime_may_be_a_text_or_a_number(at: str, when: datetime) -> None:
    found = read_event(f'{{"uri": "https://a/", "at": {at}, "wiki": "one"}}', MAPPING)
    assert (found.uri, found.when, found.deleted) == ("https://a/", when, False)


def test_an_event_that_does_not_count_states_its_datetime_only() -> None:
    found = read_event('{"uri": "https://a/", "at": 1793613600, "wiki": "two"}', MAPPING)
    assert found.uri is None


@pytest.mark.parametrize(
    "data",
    [
        "no JSON",
        "1",
        "[]",
        '{"uri": "https://a/", "wiki": "one"}',
        '{"at": 1e300, "wiki": "one"}',
        '{"at": 1793613600, "uri": 3, "wiki": "one"}',
        '{"at": "yesterday"}',
        '{"at": true}',
    ],
)
def test_an_event_that_states_no_change_is_none(data: str) -> None:
    assert read_event(data, MAPPING) is None
