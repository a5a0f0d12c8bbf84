"""How failures are tried again."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rsnotify.retry import Retry


@given(st.integers(1, 1000), st.integers())
def test_the_wait_doubles_up_to_the_most_and_half_of_it_is_chance(failures: int, seed: int) -> None:
    step = min(60.0, 0.5 * 2.0 ** min(failures - 1, 64))
    assert step / 2 <= Retry(first=0.5, most=60).delay(failures, Random(seed)) <= step


def test_two_who_failed_together_do_not_come_back_together() -> None:
    retry = Retry()
    assert retry.delay(5, Random(1)) != retry.delay(5, Random(2))


def test_the_other_side_may_ask_for_a_longer_wait_but_not_for_any() -> None:
    retry = Retry(first=1, most=2)
    assert retry.delay(1, Random(1), at_least=7) == 7
    assert retry.delay(1, Random(1), at_least=0.1) >= 0.5
    assert retry.delay(1, Random(1), at_least=10**9) == 3600
