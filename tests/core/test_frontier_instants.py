"""What is known at an instant whose unit of time may not be over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from rsnotify.format.coverage import Change, Coverage, Frontier, change_key, is_ahead
from rsnotify.format.datetimes import (
    LATEST,
    dates_from_list_order,
    end_of_unit,
    is_undecided,
    parse_datetime,
    postponed,
)
from rsnotify.format.model import ChangeType, Resource

NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)
STEP = timedelta(microseconds=1)


def at(seconds: float) -> datetime:
    return NINE + timedelta(seconds=seconds)


def change(name: str, seconds: float, hash: str | None = None) -> Change:
    resource = Resource(name, datetime=at(seconds), hash=hash)
    return Change(name, ChangeType.UPDATED, at(seconds), resource)


def covering(*changes: Change, closed: bool = False, sent: float | None = None) -> Coverage:
    time = None if sent is None else at(sent)
    return Coverage(at(0), changes[-1].at, closed, True, changes, time)


@pytest.mark.parametrize(
    ("instant", "end"),
    [
        (at(0.5), at(0.5) + STEP),
        (at(0), at(1)),
        (datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)),
        (datetime(2026, 1, 1, 0, 1, 0, tzinfo=UTC), datetime(2026, 1, 1, 0, 1, 1, tzinfo=UTC)),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        (LATEST, LATEST),
    ],
)
def test_a_datetime_stands_for_its_second_or_day_unless_it_has_a_fraction(
    instant: datetime, end: datetime
) -> None:
    assert end_of_unit(instant) == end


@pytest.mark.parametrize(
    ("written", "end"),
    [
        ("2026-01-01T09:00Z", "2026-01-01T09:01"),
        ("2026-01-02", "2026-01-03"),
        ("2026-02", "2026-03"),
        ("2026-12", "2027"),
        ("2026", "2027"),
        ("9999", "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_a_datetime_without_seconds_stands_for_the_longest_unit_that_begins_with_it(
    written: str, end: str
) -> None:
    assert end_of_unit(parse_datetime(written)) == parse_datetime(end)


@pytest.mark.parametrize(
    ("one", "other", "undecided"),
    [
        ("2026-06-11", "2026-06-11T10:15:00Z", True),
        ("2026-06-11", "2026-06-10T20:00:00Z", True),  # it may be of another time zone
        ("2026-06-11", "2026-06-12T13:00:00Z", False),
        ("2026-06-11T10:15Z", "2026-06-11T10:15:59Z", True),
        ("2026-06-11T10:15Z", "2026-06-11T10:16:00Z", False),
        ("2026-06-11T10:15:00Z", "2026-06-11T10:15:00.5Z", False),
        ("2026-06", "2026-06-11", True),
        ("2026", "2026-06", True),
        ("2026-06-11", "2026-06-12", False),
        ("2026-06-11", "2026-06-11", False),
    ],
)
def test_a_coarse_datetime_leaves_open_what_is_later_within_it(
    one: str, other: str, undecided: bool
) -> None:
    instants = parse_datetime(one), parse_datetime(other)
    assert is_undecided(*instants) is is_undecided(*instants[::-1]) is undecided


def test_no_instant_is_later_than_the_calendar() -> None:
    day = timedelta(days=1)
    assert postponed(LATEST - 2 * day, day) == LATEST - day
    assert postponed(LATEST - day, day) == LATEST
    assert postponed(LATEST - day + STEP, day) == LATEST


def test_datetimes_in_the_future_become_those_of_the_entries_that_follow() -> None:
    minute = 60
    times = [at(0), at(minute + 1), at(2), at(minute)]
    assert dates_from_list_order(times[:3], sent=at(0)) == [at(0), at(2), at(2)]
    assert dates_from_list_order(times[2:], sent=at(0)) == times[2:], "clocks may differ"
    assert dates_from_list_order([at(0), at(61)], sent=at(0)) == [at(0), at(61)]
    assert dates_from_list_order([at(2), at(1)], sent=at(9)) is None, "it was never sorted"
    assert dates_from_list_order([at(1), at(1)], sent=at(9)) == [at(1), at(1)]
    assert dates_from_list_order([at(1)], sent=None) is None


@pytest.mark.parametrize(
    ("last", "closed", "sent", "running"),
    [
        (5, False, None, True),
        (5, False, 6.9, True),
        (5, False, 7, False),
        (5, True, None, False),
        (5.5, False, None, False),
    ],
)
def test_more_changes_may_follow_until_the_last_second_is_surely_over(
    last: float, closed: bool, sent: float | None, running: bool
) -> None:
    assert covering(change("a", last), closed=closed, sent=sent).running is running


def test_a_list_that_only_begins_at_an_instant_proves_that_it_is_over() -> None:
    assert not replace(covering(change("a", 5)), until=at(6)).running
    assert not replace(covering(change("a", 5)), until=None).running


@pytest.mark.parametrize(("stated", "ahead"), [(5, False), (6, False), (6.1, True)])
def test_a_document_may_state_the_end_of_the_second_in_which_it_was_sent(
    stated: float, ahead: bool
) -> None:
    assert is_ahead(at(stated), at(5)) is ahead
    assert not is_ahead(at(stated), None)


def test_a_document_has_to_begin_before_a_second_that_may_not_be_over() -> None:
    assert Frontier.at(at(5)).joint == at(5)
    assert Frontier.at(at(5), [("a", "updated", "")]).joint == at(5) - STEP
    assert Frontier.at(at(5.5), [("a", "updated", "")]).joint == at(5.5)
    frontier = Frontier.at(at(0))
    frontier.learn(covering(change("a", 5)))
    assert (frontier.joint, frontier.running) == (at(5) - STEP, True)
    frontier.learn(covering(change("a", 5), sent=60))
    assert (frontier.joint, frontier.running) == (at(5) - STEP, False)
    frontier.learn(covering(change("a", 5)))
    assert not frontier.running, "an older copy of the list does not make it run again"
    frontier.learn(covering(change("a", 5), closed=True))
    assert frontier.joint == at(5)
    frontier.learn(covering(change("a", 5)))
    assert frontier.joint == at(5), "what is over stays over"


def test_of_equal_changes_of_one_instant_as_many_are_new_as_were_not_seen() -> None:
    frontier = Frontier.at(at(0))
    one, other = change("a", 5, "md5:1"), change("a", 5, "md5:2")
    assert frontier.learn(covering(one, one)) == [one, one]
    assert frontier.learn(covering(one, other, one, one)) == [other, one]
    assert frontier.seen == {change_key(one): 3, change_key(other): 1}
    assert frontier.learn(covering(one)) == []
    assert frontier.seen == {change_key(one): 3, change_key(other): 1}
    assert frontier.fresh(covering(change("a", 4), one, change("b", 6))) == [change("b", 6)]
    assert frontier.seen[change_key(one)] == 3, "`fresh` learns nothing"


def test_a_frontier_does_not_learn_from_a_list_that_proves_nothing() -> None:
    frontier = Frontier.at(at(5))
    coverage = replace(covering(change("a", 6)), until=None)
    assert frontier.learn(coverage) == [change("a", 6)]
    assert frontier == Frontier.at(at(5))
