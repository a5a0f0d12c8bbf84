"""A Change List has entries that are dated before its own `from`.

Against core §12.1, by which it has what happened after `from`. A clock was set, `from` is the time
of the last export, or the entry has the date of the file that was added. Dates do not tell then
what is new: an entry outside of its list's interval says so for the whole list.
"""

from __future__ import annotations

import pytest

from tests.wild.documents import days, seconds
from tests.wild.running import Copy, audited, follow_once, following, run_right, until_right
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.offer()
    for name in ("a", "b", "c"):
        source.file(name, name.encode(), -100_000)
    source.list_resources(at=1000)
    source.list_changes(from_=500)


@pytest.mark.parametrize("before", [1, 60, 90_000])
async def test_they_are_applied_where_the_first_copy_finds_them(
    source: WildSource, copy: Copy, before: float
) -> None:
    source.file("d", b"d")
    source.remove("b")
    source.list_changes(
        source.changed("d", "created", 500 - before),
        source.changed("b", "deleted", 1100),
        from_=500,
    )
    await run_right(source, copy)


@pytest.mark.parametrize("before", [1, 60, 90_000])
async def test_they_are_applied_where_they_appear_later(
    source: WildSource, copy: Copy, before: float
) -> None:
    await follow_once(source, copy)
    source.file("d", b"d")
    source.list_changes(source.changed("d", "created", 500 - before), from_=500)
    await run_right(source, copy)


async def test_they_are_applied_in_a_new_list_while_following(
    source: WildSource, copy: Copy
) -> None:
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        source.file("a", b"changed")
        source.list_changes(source.changed("a", "updated", 400), from_=1500)
        source.list_resources(at=1500)
        await until_right(subscriber, copy, source)


async def test_entries_dated_by_the_day_lie_before_the_from_of_their_list(
    source: WildSource, copy: Copy
) -> None:
    await follow_once(source, copy)
    for content in (b"changed", b"changed again"):
        source.file("a", content)
        today = days(source.t(0))
        source.list_changes(
            source.changed("a", "updated", lastmod=today), from_=seconds(source.t(500))
        )
        await run_right(source, copy)


async def test_audit_takes_them_into_account(source: WildSource, folder) -> None:
    await follow_once(source, folder)
    source.file("d", b"d")
    source.list_changes(source.changed("d", "created", 440), from_=500)
    outcome = await audited(source, folder)
    assert outcome.code in (1, 2), outcome
