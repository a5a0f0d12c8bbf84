"""Which lists show that the clock of a Source has gone back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rsnotify.format.coverage import Change, Coverage, Frontier, change_key
from rsnotify.format.model import ChangeType, Resource
from rsnotify.sync.clock_regression import ClockRegressionDetector
from rsnotify.sync.pace import Pace
from tests.core.source import at

PACE = Pace(stale=100, repair=10)


def change(seconds: int, name: str = "a") -> Change:
    resource = Resource(name, datetime=at(seconds))
    return Change(name, ChangeType.UPDATED, at(seconds), resource)


def covering(from_: int, *changes: Change, until: int | None = None) -> Coverage:
    """Return an open list, or with `until` a closed one."""
    end = changes[-1].at if until is None else at(until)
    return Coverage(at(from_), end, closed=until is not None, ordered=True, changes=changes)


def known(seconds: int, *names: str) -> Frontier:
    """Return what the lists confirmed, and which resources changed at that very instant."""
    return Frontier.at(at(seconds), [change_key(change(seconds, name)) for name in names])


@pytest.fixture
def detector() -> ClockRegressionDetector:
    return ClockRegressionDetector(PACE)


def test_a_list_that_goes_on_proves_nothing(detector: ClockRegressionDetector) -> None:
    assert not detector.check_open(covering(0, change(5), change(6)), known(5, "a"), 0)
    assert not detector.is_behind
    assert not detector.has_gone_back(1_000)


@pytest.mark.parametrize(("until", "proven"), [(4, False), (5, True), (6, True)])
def test_a_closed_list_shows_a_loss_only_if_it_reaches_what_is_confirmed(
    detector: ClockRegressionDetector, until: int, proven: bool
) -> None:
    detector.check_closed(covering(1, until=until), known(5, "a"), has_lost=False)
    assert detector.is_behind is proven
    assert not detector.has_gone_back(0), "first the open list is read"
    detector.check_open(covering(4, change(5)), known(5, "a"), 0)
    assert detector.has_gone_back(0) is proven


def test_everything_since_the_earliest_loss_counts(detector: ClockRegressionDetector) -> None:
    for from_ in (4, 2, 3):
        detector.check_closed(covering(from_, until=9), known(5), has_lost=True)
    assert detector.begins == at(2)
    assert not detector.check_open(covering(4, change(6)), known(5), 0)
    assert (detector.begins, detector.ends) == (at(2), at(6))
    detector.reset(0)
    assert not detector.is_behind
    assert detector.begins == at(4)
    detector.check_closed(replace(covering(4, until=9), from_=None), known(5), has_lost=True)
    assert detector.begins is not None
    assert detector.begins.year == 1


@pytest.mark.parametrize(
    ("listed", "lost"),
    [
        (covering(1, change(5, "b")), True),
        (covering(1, change(5, "a")), False),
        (covering(1, change(5, "b"), change(6, "a")), False),  # a later one stands for it
        (covering(1, change(4, "a"), change(5, "b")), True),
        (covering(5, change(6, "b")), False),  # it begins later
        (replace(covering(1, change(5, "b")), ordered=False), False),
        (replace(covering(1, change(5, "b")), from_=None), False),
    ],
)
def test_an_open_list_that_lacks_what_was_seen_at_its_instant_has_lost_it(
    detector: ClockRegressionDetector, listed: Coverage, lost: bool
) -> None:
    assert detector.check_open(listed, known(5, "a"), 0) is lost
    assert detector.has_gone_back(0) is lost


def test_a_list_that_stays_behind_is_an_old_copy_for_a_while_only(
    detector: ClockRegressionDetector,
) -> None:
    frontier = known(5, "a")
    detector.check_open(covering(0, change(5)), frontier, 0)
    old = covering(0, change(4))
    assert not detector.check_open(old, frontier, 7), "it has nothing that the last one had not"
    assert detector.is_behind
    detector.check_open(old, frontier, 90)
    assert not detector.has_gone_back(7 + PACE.stale - 0.1)
    assert detector.has_gone_back(7 + PACE.stale)
    detector.check_open(covering(0, change(5)), frontier, 91)
    assert not detector.is_behind
    assert not detector.has_gone_back(1_000)


def test_a_first_list_sent_before_what_is_confirmed_proves_it_at_once() -> None:
    frontier = known(500, "a")
    for sent, proven in ((None, True), (400, True), (439, True), (440, False), (600, False)):
        detector = ClockRegressionDetector(PACE)
        first = replace(covering(0, change(4)), sent=None if sent is None else at(sent))
        assert detector.check_open(first, frontier, 0)
        assert detector.has_gone_back(0) is proven
        assert not detector.check_open(first, frontier, 0), "the same list has nothing new"


def test_a_list_with_more_entries_than_any_before_counts_as_new(
    detector: ClockRegressionDetector,
) -> None:
    frontier = known(9, "a")
    detector.check_open(covering(0, change(3), change(9)), frontier, 0)
    assert not detector.check_open(covering(0, change(3), change(4)), frontier, 0)
    assert detector.check_open(covering(0, change(3), change(4), change(5)), frontier, 0)
    assert detector.check_open(covering(1, change(4)), frontier, 0)  # a later list


def test_a_list_whose_entries_are_out_of_order_shows_that_a_date_was_wrong(
    detector: ClockRegressionDetector,
) -> None:
    frontier = known(9, "a")
    detector.check_open(covering(0, change(9)), frontier, 0)
    wrong = replace(change(4), resource=replace(change(4).resource, datetime=at(9)))
    assert detector.check_open(covering(0, wrong, change(5)), frontier, 0)
    assert detector.has_gone_back(0)


def test_comparisons_of_everything_become_rarer_up_to_a_limit(
    detector: ClockRegressionDetector,
) -> None:
    lossy, now, waits = covering(0, change(5, "b")), 0, []
    for _ in range(8):
        detector.check_open(lossy, known(5, "a"), now)
        assert detector.has_gone_back(now)
        detector.reset(now)
        detector.check_open(lossy, known(5, "a"), now)
        waits.append(next(wait for wait in range(0, 999, 10) if detector.has_gone_back(now + wait)))
        now += waits[-1]
    assert waits == [10, 20, 40, 80, 160, 320, 640, 640]


def test_of_two_lists_that_end_alike_the_second_is_new_if_its_last_entry_differs(
    detector: ClockRegressionDetector,
) -> None:
    frontier = known(9, "a")
    for name in "abc":
        assert detector.check_open(covering(0, change(3), change(4, name)), frontier, 0)
        assert not detector.check_open(covering(0, change(3), change(4, name)), frontier, 0)


def test_lists_that_go_on_before_a_resource_list_show_that_its_time_was_wrong(
    detector: ClockRegressionDetector,
) -> None:
    frontier = known(500)  # from a Resource List, and no change was seen at it
    assert not detector.check_open(covering(0, change(4)), frontier, 0)
    assert detector.check_open(covering(0, change(4), change(5)), frontier, 7)
    assert not detector.has_gone_back(7 + PACE.stale - 0.1)
    assert detector.has_gone_back(7 + PACE.stale)
    quiet = replace(covering(0, change(4), change(5), change(6)), sent=at(600))
    assert not detector.check_open(quiet, frontier, 8), "the Resource List may well be later"
    assert not detector.has_gone_back(7 + PACE.stale)


def test_a_list_that_begins_after_the_last_one_goes_on(detector: ClockRegressionDetector) -> None:
    assert not detector.check_open(covering(0, change(5)), known(5), 0)
    baselined = known(500)
    assert not detector.check_open(covering(5, change(6)), baselined, 0)
    detector.reset(0)
    assert not detector.check_open(covering(0, change(5)), known(5), 0)
    assert detector.check_open(covering(6, change(7)), baselined, 0)
