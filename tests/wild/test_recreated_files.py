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
    assert_honest,
    audited,
    follow_once,
    following,
    until_right,
)
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.offer()
    for name in ("a", "b", "c"):
        source.file(name, name.encode(), source.t(-1000))
    source.list_resources(at=source.t(10))
    source.list_changes(from_=source.t(5))


def deleted(source: WildSource) -> str:
    source.remove("b")
    return source.changed("b", "deleted", source.t(60))


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
    source.list_changes(first, from_=source.t(5))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    second = created_again(source, content)
    told = (first, second) if order == "by event" else (second, first)
    source.list_changes(*told, from_=source.t(5))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


@pytest.mark.parametrize("order", ["by event", "by date"])
async def test_it_is_there_in_a_first_copy(source: WildSource, copy: Copy, order: str) -> None:
    first = deleted(source)
    second = created_again(source)
    source.list_resources(at=source.t(10))
    told = (first, second) if order == "by event" else (second, first)
    source.list_changes(*told, from_=source.t(5))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_it_comes_back_while_following(source: WildSource, copy: Copy) -> None:
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        first = deleted(source)
        source.list_changes(first, from_=source.t(5))
        await until_right(subscriber, copy, source)
        source.list_changes(first, created_again(source), from_=source.t(5))
        await until_right(subscriber, copy, source)


async def test_it_comes_back_where_each_list_has_only_what_is_new(
    source: WildSource, copy: Copy
) -> None:
    await follow_once(source, copy)
    source.list_changes(deleted(source), from_=source.t(5), until=source.t(100))
    assert_honest(copy, source, await follow_once(source, copy))
    source.list_changes(created_again(source), from_=source.t(100), until=source.t(200))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_a_new_file_with_an_old_date_is_not_passed_over(
    source: WildSource, copy: Copy
) -> None:
    await follow_once(source, copy)
    source.file("d", b"moved here", source.t(-7000))
    source.list_changes(
        source.changed("d", "created", lastmod=seconds(source.t(-7000))), from_=source.t(5)
    )
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_audit_is_not_misled(source: WildSource, folder) -> None:
    first = deleted(source)
    source.list_changes(first, from_=source.t(5))
    await follow_once(source, folder)
    source.list_changes(first, created_again(source), from_=source.t(5))
    outcome = await audited(source, folder)
    assert outcome.code in (1, 2), outcome
