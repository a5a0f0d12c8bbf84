"""The order of equal services: those that failed come last, the latest at the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rsnotify.sync import retry as alternatives_module
from rsnotify.sync.retry import Alternatives

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
    for number in range(alternatives_module._MOST + 1):
        alternatives.failed(number)
    assert alternatives.order([2, 1, 0]) == [0, 1, 2]
