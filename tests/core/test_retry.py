"""How long to wait before something is retried."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.sync import retry as alternatives_module
from rsnotify.sync.retry import Alternatives, Retry, parse_retry_after


@given(st.integers(1, 1000), st.integers())
def test_the_wait_doubles_up_to_the_maximum_and_half_is_random(failures: int, seed: int) -> None:
    step = min(60.0, 0.5 * 2.0 ** min(failures - 1, 64))
    assert step / 2 <= Retry(first=0.5, most=60).delay(failures, Random(seed)) <= step


@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_the_wait_is_between_half_and_all_of_a_step_that_doubles(
    chance: float, share: float
) -> None:
    class Chance(Random):
        def random(self) -> float:
            return chance

    waits = [Retry(first=1, most=20).delay(failures, Chance()) for failures in range(1, 8)]
    assert waits == [share * step for step in (1, 2, 4, 8, 16, 20, 20)]


def test_a_longer_retry_after_is_respected_up_to_a_limit() -> None:
    retry = Retry(first=1, most=2)
    assert retry.delay(1, Random(1), at_least=7) == 7
    assert retry.delay(1, Random(1), at_least=0.1) >= 0.5
    assert retry.delay(1, Random(1), at_least=10**9) == 3600


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("9" * 5000, 999_999.0),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
        ("Thu, 01 Jan 2026 02:01:00 +0200", 60.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("", None),
        ("-1", None),
        ("soon", None),
        ("Thu, 99 Jan 2026 00:01:00 GMT", None),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999999999", None),
        ("Mon, 01 Jan 99999999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 0001 00:00:00 +0200", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, wait: float | None):
    assert parse_retry_after(header, NOW) == wait


# The order of equal services: those that failed come last, the latest at the end.


NAMES = st.sampled_from("abcdef")


@given(st.lists(NAMES), st.lists(NAMES, unique=True))
def test_the_least_recently_failed_comes_first(failures: list[str], offered: list[str]) -> None:
    alternatives: Alternatives[str] = Alternatives()
    for name in failures:
        alternatives.failed(name)
    last = {name: number for number, name in enumerate(failures)}
    order = alternatives.order(offered)
    assert sorted(order) == sorted(offered)
    well = [name for name in offered if name not in last]
    assert order[: len(well)] == well
    assert order[len(well) :] == sorted(set(offered) & set(last), key=last.__getitem__)


def test_only_so_many_failures_are_remembered() -> None:
    alternatives: Alternatives[int] = Alternatives()
    for number in range(alternatives_module._MAX_FAILED + 1):
        alternatives.failed(number)
    assert alternatives.order([2, 1, 0]) == [0, 1, 2]
