"""A resource answers 410 or 404 for a moment, or for long, though every list has it.

A deployment, a proxy without its backend, a disk that is mounted late. RFC 9110 §15.5.11 means 410
to be for good, and servers do not always mean it. Only a list of the Source says that a resource
was deleted; an answer is a reason to look, not a fact of its own.
"""

from __future__ import annotations

import pytest

from tests.wild.running import (
    Copy,
    follow_once,
    following,
    pace,
    run_honest,
    run_right,
    until_right,
)
from tests.wild.source import Answer, WildSource

STATUS = pytest.mark.parametrize("status", [410, 404])


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.begin("a", "b", "c")


def fail(source: WildSource, name: str, status: int, times: int) -> None:
    answer = source.answers[f"/set/{name}"]
    source.put(name, *[Answer(status=status)] * times, answer)


@STATUS
@pytest.mark.parametrize("times", [1, 4])
async def test_an_update_arrives_all_the_same(
    source: WildSource, copy: Copy, status: int, times: int
) -> None:
    async with following(source, copy, pace=pace(compare=0.5)) as subscriber:
        await until_right(subscriber, copy, source)
        source.list_changes(source.update("a", 60))
        fail(source, "a", status, times)
        await until_right(subscriber, copy, source)


@STATUS
async def test_a_first_copy_that_meets_it_is_completed(
    source: WildSource, copy: Copy, status: int
) -> None:
    fail(source, "a", status, 2)
    async with following(source, copy, pace=pace(compare=0.5)) as subscriber:
        await until_right(subscriber, copy, source)


@STATUS
@pytest.mark.parametrize("times", [1, 3, 40])
async def test_runs_that_meet_it_are_honest_and_the_last_one_is_right(
    source: WildSource, copy: Copy, status: int, times: int
) -> None:
    await follow_once(source, copy)
    source.list_changes(source.update("a", 60))
    fail(source, "a", status, times)
    await run_honest(source, copy)
    source.file("a", b"changed", 60)
    await run_right(source, copy)


@STATUS
async def test_what_is_missing_for_long_and_comes_back_is_held_again(
    source: WildSource, copy: Copy, status: int
) -> None:
    async with following(source, copy, pace=pace(compare=0.5)) as subscriber:
        await until_right(subscriber, copy, source)
        source.list_changes(source.update("a", 60))
        fail(source, "a", status, 25)
        await until_right(subscriber, copy, source)
        assert len(source.requests("a")) >= 26


@STATUS
async def test_what_a_list_deletes_afterwards_is_gone(
    source: WildSource, copy: Copy, status: int
) -> None:
    await follow_once(source, copy)
    first = source.update("a", 60)
    source.list_changes(first)
    source.put("a", Answer(status=status))
    await run_honest(source, copy)
    source.list_changes(first, source.delete("a", 70))
    await run_right(source, copy)
