from __future__ import annotations

from random import Random

from rsnotify_gateway.config import PollPace

PACE = PollPace(least=10, most=100)


def test_an_origin_that_changes_is_checked_more_often_within_limits() -> None:
    interval = 100.0
    seen = [interval := PACE.next(interval, changed=True) for _ in range(5)]
    assert seen == [50, 25, 12.5, 10, 10]


def test_a_quiet_origin_is_checked_less_often_within_limits() -> None:
    interval = 10.0
    seen = [interval := PACE.next(interval, changed=False) for _ in range(7)]
    assert seen[:2] == [15, 22.5]
    assert seen[-1] == 100


def test_failures_are_followed_by_growing_waits_and_retry_after() -> None:
    waits = [PACE.after_failure(failures, Random(1), None) for failures in (1, 3, 20)]
    assert waits == sorted(waits)
    assert waits[-1] <= 100
    assert PACE.after_failure(1, Random(1), 1_800.0) == 1_800
    assert PACE.after_failure(1, Random(1), 1e9) == 3_600
