"""When documents are read next, and which ones after failures."""

from __future__ import annotations

from random import Random

import pytest

from rsnotify.errors import MalformedDocument, RsnotifyError, TooLarge, Unavailable
from rsnotify.format.model import Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import DocumentKind, Fetch
from rsnotify.sync.catch_up import FailurePolicy
from rsnotify.sync.pace import Pace
from rsnotify.sync.poll_schedule import DocumentsToRead, PollInterval, PollSchedule
from rsnotify.sync.pull import Pull
from rsnotify.sync.retry import Retry

PACE = Pace(poll=16, poll_with_push=100, baseline_after=3, retry=Retry(1, 1))
LIST = Fetch("http://a.example/list.xml", DocumentKind.CHANGE_LIST)
PACKAGE = Fetch("http://a.example/1.zip", DocumentKind.CHANGE_DUMP, Resource("1"))
BROKEN = MalformedDocument("cut", source=LIST.uri)
LARGE = TooLarge("it is larger than 50 MB", source=LIST.uri)
UNREACHABLE = Unavailable(LIST.uri, "out of reach")
BUSY = Unavailable(LIST.uri, "busy", retry_after=7)


def schedule() -> PollSchedule:
    return PollSchedule(PACE, Random(1))


def test_polls_come_an_eighth_sooner_after_news_and_then_twice_as_late_each_time() -> None:
    interval = PollInterval(16)
    news = (False, True, False, False, True, *[False] * 5)
    assert [interval.next(news=one) for one in news] == [16, 2, 4, 8, 2, 4, 8, 16, 16, 16]


def test_the_earliest_of_several_times_counts_and_only_polls_are_routine() -> None:
    plan = schedule()
    plan.poll_later(0, news=False, push_is_enough=False)
    assert plan.due == 16
    assert plan.begin()
    assert plan.due is None
    plan.catch_up_by(9)
    plan.catch_up_by(5)
    plan.catch_up_by(7)
    assert plan.due == 5
    assert not plan.begin()
    assert plan.begin()


@pytest.mark.parametrize(
    ("works", "enough", "due"), [(True, True, 101), (True, False, 17), (False, True, 17)]
)
def test_polls_are_rare_only_while_push_works_and_is_enough(
    works: bool, enough: bool, due: float
) -> None:
    plan = schedule()
    plan.push_works = works
    plan.poll_later(1, news=False, push_is_enough=enough)
    assert plan.due == due


def test_nothing_is_read_before_the_time_that_the_server_asked_for() -> None:
    plan = schedule()
    plan.back_off(10, 1, retry_after=30, least=0)
    assert plan.due == 40
    plan.catch_up_by(11)
    assert plan.due == 40
    plan.documents_changed(DocumentsToRead(lists=True, offer=True), 12, listeners=0)
    assert (plan.due, plan.offer_due) == (40, 40)


def test_a_longer_wait_after_a_failure_is_no_reason_to_ignore_news() -> None:
    plan = schedule()
    plan.back_off(10, 1, retry_after=None, least=30)
    assert plan.due == 40
    plan.catch_up_by(11)
    assert plan.due == 11


def test_the_longer_of_two_least_waits_counts() -> None:
    plan = schedule()
    for retry_after, least in ((30, 20), (20, 30)):
        plan.back_off(10, 1, retry_after, least)
        assert plan.due == 40


def test_after_a_notice_what_has_changed_is_read_within_an_eighth_of_the_interval() -> None:
    seen = set()
    for seed in range(20):
        plan = PollSchedule(PACE, Random(seed))
        plan.documents_changed(DocumentsToRead(lists=True, offer=False), 10, listeners=0)
        assert plan.due is not None
        assert 10 <= plan.due <= 12
        assert plan.offer_due is None
        seen.add(plan.due)
        assert plan.begin(), "a notice is no reason to believe that something is missing"
    assert len(seen) == 20, "not all subscribers come at once"
    plan = schedule()
    plan.documents_changed(DocumentsToRead(lists=False, offer=True), 10, listeners=0)
    assert plan.due is None
    assert plan.offer_due is not None
    assert not plan.is_offer_due(plan.offer_due - 0.001)
    assert plan.is_offer_due(plan.offer_due)
    assert not plan.is_offer_due(99)


def test_with_many_subscribers_a_notice_is_followed_over_a_longer_time() -> None:
    latest = 0.0
    for seed in range(50):
        plan = PollSchedule(PACE, Random(seed))
        plan.documents_changed(DocumentsToRead(lists=True, offer=False), 10, listeners=2_000)
        assert plan.due is not None
        latest = max(latest, plan.due)
    assert 18 < latest <= 20


def test_lists_that_lag_are_read_again_in_a_moment() -> None:
    plan = schedule()
    plan.retry_soon(10, 1)
    assert plan.due is not None
    assert 10.5 <= plan.due <= 11
    assert not plan.begin()


def test_after_push_is_lost_the_lists_come_soon_and_the_offer_within_an_interval() -> None:
    plan = schedule()
    plan.push_lost(10)
    assert (plan.due, plan.offer_due) == (None, None), "it did not work before"
    plan.push_works = True
    plan.push_lost(10)
    assert not plan.push_works
    assert plan.due is not None
    assert 10 <= plan.due <= 12
    assert plan.offer_due is not None
    assert 18 <= plan.offer_due <= 26


def first() -> Pull:
    return Pull(Offer(change_list=LIST.uri))


def other() -> Pull:
    pull = first()
    pull.current = PACKAGE
    return pull


@pytest.mark.parametrize(
    ("fetch", "error", "pull", "failures", "expected"),
    [
        (LIST, BROKEN, first(), 0, False),
        (LIST, BROKEN, first(), 1, False),
        (LIST, BROKEN, first(), 2, True),
        (LIST, LARGE, first(), 0, True),
        (LIST, BROKEN, other(), 0, True),
        (LIST, BROKEN, None, 0, False),
        (LIST, BROKEN, None, 2, True),
        (PACKAGE, BROKEN, None, 0, True),
        (PACKAGE, BROKEN, first(), 0, True),
        (PACKAGE, UNREACHABLE, None, 0, False),
        (LIST, UNREACHABLE, None, 2, True),
        (LIST, UNREACHABLE, other(), 2, True),
        (LIST, UNREACHABLE, first(), 2, False),
        (LIST, BUSY, other(), 2, False),
    ],
)
def test_other_documents_are_tried_if_this_one_will_not_improve_soon(
    fetch: Fetch, error: RsnotifyError, pull: Pull | None, failures: int, expected: bool
) -> None:
    policy = FailurePolicy(PACE)
    for _ in range(failures):
        policy.record(error, 0.0)
    assert policy.is_lasting(fetch, error, pull) is expected


@pytest.mark.parametrize(
    ("error", "expected"), [(BROKEN, [3, 6, 12, 24]), (LARGE, [1, 3, 6, 12, 24]), (UNREACHABLE, [])]
)
def test_a_list_that_stays_broken_costs_a_baseline_after_each_doubling_of_failures(
    error: RsnotifyError, expected: list[int]
) -> None:
    policy = FailurePolicy(PACE)
    found = []
    for number in range(1, 30):
        policy.record(error, 0.0)
        if policy.needs_baseline():
            found.append(number)
    assert found == expected
    policy.reset()
    assert (policy.count, policy.error) == (0, None)


def test_only_large_documents_have_to_wait_and_each_time_twice_as_long() -> None:
    policy = FailurePolicy(PACE)
    policy.record(BROKEN, 0.0)
    assert policy.least_delay(is_dump=False) == 0
    assert policy.least_delay(is_dump=True) == 32
    policy.record(LARGE, 0.0)
    assert policy.least_delay(is_dump=False) == 64
    policy.count = 99
    assert policy.least_delay(is_dump=True) == 16 * 2**16


def test_the_offer_is_read_at_the_earliest_of_several_times() -> None:
    plan = schedule()
    plan.documents_changed(DocumentsToRead(offer=True), 5, 0)
    first = plan.offer_due
    plan.documents_changed(DocumentsToRead(offer=True), 50, 0)
    assert first is not None
    assert plan.offer_due == first


def test_a_notice_allows_two_reads_at_most() -> None:
    plan = schedule()
    while plan.may_begin(0):
        plan.begin()
    plan.documents_changed(DocumentsToRead(lists=True), 0, listeners=0)
    reads = 0
    while plan.may_begin(0):
        plan.begin()
        reads += 1
    assert reads == 2
