"""A resource is deleted and created again, and the new entry has the old file's `lastmod` only.

ResourceSync 1.0 dates entries by `lastmod`, which for files that are moved or copied with their
times (`mv`, `cp -p`, `rsync -t`) is much older than the change (core §12.1 wants the datetime of
the change). Such an entry looks older than all that was read before.
"""

from __future__ import annotations

import pytest

from tests.wild.documents import seconds
from tests.wild.running import (
    Copy,
    audited,
    follow_once,
    following,
    run_honest,
    run_right,
    until_right,
)
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.begin("a", "b", "c")


def deleted(source: WildSource) -> str:
    return source.delete("b", 60)


def created_again(source: WildSource, content: bytes = b"b, again") -> str:
    old = source.t(-5000)
    source.file("b", content, old)
    return source.changed("b", "created", lastmod=seconds(old))


@pytest.mark.parametrize("order", ["by event", "by date"])
@pytest.mark.parametrize("content", [b"b", b"b, again"], ids=["the same", "other"])
async def test_it_comes_back_in_the_next_run(
    source: WildSource, copy: Copy, order: str, content: bytes
) -> None:
    first = deleted(source)
    source.list_changes(first)
    await run_honest(source, copy)
    second = created_again(source, content)
    told = (first, second) if order == "by event" else (second, first)
    source.list_changes(*told)
    await run_right(source, copy)


@pytest.mark.parametrize("order", ["by event", "by date"])
async def test_it_is_there_in_a_first_copy(source: WildSource, copy: Copy, order: str) -> None:
    first = deleted(source)
    second = created_again(source)
    source.list_resources()
    told = (first, second) if order == "by event" else (second, first)
    source.list_changes(*told)
    await run_right(source, copy)


async def test_it_comes_back_while_following(source: WildSource, copy: Copy) -> None:
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        first = deleted(source)
        source.list_changes(first)
        await until_right(subscriber, copy, source)
        source.list_changes(first, created_again(source))
        await until_right(subscriber, copy, source)


async def test_it_comes_back_where_each_list_has_only_what_is_new(
    source: WildSource, copy: Copy
) -> None:
    await follow_once(source, copy)
    source.list_changes(deleted(source), until=100)
    await run_honest(source, copy)
    source.list_changes(created_again(source), from_=100, until=200)
    await run_right(source, copy)


async def test_a_new_file_with_an_old_date_is_not_passed_over(
    source: WildSource, copy: Copy
) -> None:
    await follow_once(source, copy)
    source.file("d", b"moved here", -7000)
    source.list_changes(source.changed("d", "created", lastmod=seconds(source.t(-7000))))
    await run_right(source, copy)


async def test_audit_is_not_misled(source: WildSource, folder) -> None:
    first = deleted(source)
    source.list_changes(first)
    await follow_once(source, folder)
    source.list_changes(first, created_again(source))
    outcome = await audited(source, folder)
    assert outcome.code in (1, 2), outcome
