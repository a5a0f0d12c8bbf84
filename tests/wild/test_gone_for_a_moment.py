"""A resource answers 410 or 404 for a moment, or for long, though every list has it.

A deployment, a proxy without its backend, a disk that is mounted late. RFC 9110 §15.5.11 means 410
to be for good, and servers do not always mean it. Only a list of the Source says that a resource
was deleted; an answer is a reason to look, not a fact of its own.
"""

from __future__ import annotations

import pytest

from tests.wild.running import Copy, assert_honest, follow_once, following, pace, until_right
from tests.wild.source import Answer, WildSource

STATUS = pytest.mark.parametrize("status", [410, 404])


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.offer()
    for name in ("a", "b", "c"):
        source.file(name, name.encode(), source.t(-1000))
    source.list_resources(at=source.t(10))
    source.list_changes(from_=source.t(5))


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
        source.file("a", b"changed", source.t(60))
        source.list_changes(source.changed("a", "updated", source.t(60)), from_=source.t(5))
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
    source.file("a", b"changed", source.t(60))
    source.list_changes(source.changed("a", "updated", source.t(60)), from_=source.t(5))
    fail(source, "a", status, times)
    assert_honest(copy, source, await follow_once(source, copy))
    source.file("a", b"changed", source.t(60))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


@STATUS
async def test_what_is_missing_for_long_and_comes_back_is_held_again(
    source: WildSource, copy: Copy, status: int
) -> None:
    async with following(source, copy, pace=pace(compare=0.5)) as subscriber:
        await until_right(subscriber, copy, source)
        source.file("a", b"changed", source.t(60))
        source.list_changes(source.changed("a", "updated", source.t(60)), from_=source.t(5))
        fail(source, "a", status, 25)
        await until_right(subscriber, copy, source)
        assert len(source.requests("a")) >= 26


@STATUS
async def test_what_a_list_deletes_afterwards_is_gone(
    source: WildSource, copy: Copy, status: int
) -> None:
    await follow_once(source, copy)
    source.file("a", b"changed", source.t(60))
    first = source.changed("a", "updated", source.t(60))
    source.list_changes(first, from_=source.t(5))
    source.put("a", Answer(status=status))
    assert_honest(copy, source, await follow_once(source, copy))
    source.remove("a")
    source.list_changes(first, source.changed("a", "deleted", source.t(70)), from_=source.t(5))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome
