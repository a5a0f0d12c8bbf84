"""Entries of Change Lists whose order or datetimes are not as core §12.1 wants them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wild.documents import days, seconds
from tests.wild.running import (
    Copy,
    Synchronize,
    audited,
    follow_once,
    following,
    run_honest,
    run_right,
    until,
)
from tests.wild.source import Source

# An entry is inserted late into an open Change List, dated before entries that were read already.
#
# A Source whose datetimes are taken when a transaction begins, and whose entries appear when it is
# committed, writes such lists: the list stays in chronological order (core §12.1), its `from` stays
# what it was, and its end need not move at all.


def early(source: Source) -> str:
    """Change `a` and return the entry, which is there at once."""
    return source.update("a", 100, b"a, changed")


def late(source: Source, **more: bool) -> str:
    return source.update("b", 90, b"b, changed", **more)


def an_update(source: Source, first: str) -> None:
    source.list_changes(late(source), first)


def a_deletion_and_a_creation(source: Source, first: str) -> None:
    source.list_changes(source.delete("b", 90), source.create("d", 91, b"d"), first)


def an_update_beside_a_new_entry(source: Source, first: str) -> None:
    source.list_changes(late(source), first, source.update("c", 110, b"c, changed"))


def an_old_deletion_of_what_changed_again_since(source: Source, first: str) -> None:
    source.list_changes(source.changed("a", "deleted", 90), first)


def an_update_without_a_hash(source: Source, first: str) -> None:
    source.list_changes(late(source, hashed=False), first)


def an_update_in_a_list_that_is_closed(source: Source, first: str) -> None:
    source.list_changes(late(source), first, until=150)


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize(
    "insert",
    [
        an_update,
        a_deletion_and_a_creation,
        an_update_beside_a_new_entry,
        an_old_deletion_of_what_changed_again_since,
        an_update_without_a_hash,
        an_update_in_a_list_that_is_closed,
    ],
)
async def test_a_late_entry_is_applied(
    source: Source, synchronize: Synchronize, insert: Callable[[Source, str], None]
):
    first = early(source)
    source.list_changes(first)
    await synchronize()
    insert(source, first)
    await synchronize()


@pytest.mark.usefixtures("begun")
async def test_an_entry_that_takes_the_place_of_another_is_applied(source: Source, copy: Copy):
    """Their number and the last one stay what they were: `a` has its latest change only."""
    replaced = early(source)
    latest = source.update("a", 110, b"a, changed again")
    last = source.changed("c", "updated", 120)
    source.list_changes(replaced, latest, last)
    await follow_once(source, copy)
    source.list_changes(late(source), latest, last)
    await run_right(source, copy)


@pytest.mark.usefixtures("begun")
async def test_an_unchanged_list_costs_no_request_for_any_resource(source: Source, copy: Copy):
    source.list_changes(early(source))
    await follow_once(source, copy)
    source.forget()
    async with following(source, copy) as subscriber:
        await until(subscriber, lambda _: len(source.requests("changelist.xml")) > 3)
    assert [one.path for one in source.log if one.path.rpartition("/")[2] in "abc"] == []
    assert source.requests("resourcelist.xml") == []


# A resource is deleted and created again, and the new entry has the old file's `lastmod` only.
#
# ResourceSync 1.0 dates entries by `lastmod`, which for files that are moved or copied with their
# times (`mv`, `cp -p`, `rsync -t`) is much older than the change (core §12.1 wants the datetime of
# the change). Such an entry looks older than all that was read before.


def deleted(source: Source) -> str:
    return source.delete("b", 60)


def created_again(source: Source, content: bytes = b"b, again") -> str:
    old = source.t(-5000)
    source.file("b", content, old)
    return source.changed("b", "created", lastmod=seconds(old))


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("order", [1, -1], ids=["by event", "by date"])
@pytest.mark.parametrize("content", [b"b", b"b, again"], ids=["the same", "other"])
async def test_it_comes_back(source: Source, synchronize: Synchronize, order: int, content: bytes):
    first = deleted(source)
    source.list_changes(first)
    await synchronize()
    source.list_changes(*(first, created_again(source, content))[::order])
    await synchronize()


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("order", [1, -1], ids=["by event", "by date"])
async def test_it_is_there_in_a_first_copy(source: Source, copy: Copy, order: int):
    entries = (deleted(source), created_again(source))
    source.list_resources()
    source.list_changes(*entries[::order])
    await run_right(source, copy)


@pytest.mark.usefixtures("begun")
async def test_it_comes_back_where_each_list_has_only_what_is_new(source: Source, copy: Copy):
    await follow_once(source, copy)
    source.list_changes(deleted(source), until=100)
    await run_honest(source, copy)
    source.list_changes(created_again(source), from_=100, until=200)
    await run_right(source, copy)


@pytest.mark.usefixtures("begun")
async def test_a_new_file_with_an_old_date_is_not_passed_over(source: Source, copy: Copy):
    await follow_once(source, copy)
    source.file("d", b"moved here", -7000)
    source.list_changes(source.changed("d", "created", lastmod=seconds(source.t(-7000))))
    await run_right(source, copy)


# A Change List has entries that are dated before its own `from`.
#
# Against core §12.1, by which it has what happened after `from`. A clock was set, `from` is the
# time of the last export, or the entry has the date of the file that was added. Dates do not tell
# then what is new: an entry outside of its list's interval says so for the whole list.


@pytest.fixture
def begun_long_ago(source: Source) -> None:
    source.offer()
    source.files("a", "b", "c")
    source.list_resources(at=1000)
    source.list_changes(from_=500)


@pytest.mark.usefixtures("begun_long_ago")
@pytest.mark.parametrize("before", [1, 60, 90_000])
async def test_they_are_applied_where_the_first_copy_finds_them(
    source: Source, copy: Copy, before: float
):
    source.file("d", b"d")
    source.remove("b")
    source.list_changes(
        source.changed("d", "created", 500 - before),
        source.changed("b", "deleted", 1100),
        from_=500,
    )
    await run_right(source, copy)


@pytest.mark.usefixtures("begun_long_ago")
@pytest.mark.parametrize("before", [1, 60, 90_000])
async def test_they_are_applied_where_they_appear_later(source: Source, copy: Copy, before: float):
    await follow_once(source, copy)
    source.file("d", b"d")
    source.list_changes(source.changed("d", "created", 500 - before), from_=500)
    await run_right(source, copy)


@pytest.mark.usefixtures("begun_long_ago")
async def test_they_are_applied_in_a_new_list(source: Source, synchronize: Synchronize):
    await synchronize()
    source.file("a", b"changed")
    source.list_changes(source.changed("a", "updated", 400), from_=1500)
    source.list_resources(at=1500)
    await synchronize()


@pytest.mark.usefixtures("begun_long_ago")
async def test_entries_dated_by_the_day_lie_before_the_from_of_their_list(
    source: Source, copy: Copy
):
    await follow_once(source, copy)
    for content in (b"changed", b"changed again"):
        source.file("a", content)
        today = days(source.t(0))
        source.list_changes(
            source.changed("a", "updated", lastmod=today), from_=seconds(source.t(500))
        )
        await run_right(source, copy)


# An open Change List has an `until` that lies in the future, and goes on before it is reached.
#
# core §12.1 gives `until` to lists that are closed. Some Sources give it the end of the day, or the
# time of the next run, and rewrite the list meanwhile.


DAY = 86_400


@pytest.fixture
def until_ahead(source: Source) -> None:
    source.offer()
    source.files("a", "b", "c")
    source.clock = source.t(20.5)
    source.list_resources()
    source.list_changes(until=DAY)


def change(source: Source, when: float, until: float = DAY) -> None:
    source.clock = source.t(when + 5.5)
    source.file("a", b"changed at %d" % when, when)
    source.told.append(source.changed("a", "updated", when))
    if "b" in source.resources:
        source.told.append(source.delete("b", when + 1))
    source.list_changes(*source.told, until=until)


@pytest.mark.usefixtures("until_ahead")
@pytest.mark.parametrize("ahead", [None, 3600], ids=["it stays", "it moves ahead each time"])
async def test_changes_before_it_are_applied(
    source: Source, synchronize: Synchronize, ahead: float | None
):
    await synchronize()
    for when in (100, 200):
        change(source, when, until=DAY if ahead is None else when + ahead)
        await synchronize()


@pytest.mark.usefixtures("until_ahead")
async def test_an_until_in_whole_seconds_a_moment_ahead_is_no_reason_to_doubt(
    source: Source, copy: Copy
):
    """It is rounded up: the list is right, and costs nothing more than another."""
    source.list_changes(until=seconds(source.t(21)))
    await run_right(source, copy)


# What an audit makes of each of them.


def a_late_entry(source: Source) -> None:
    first = early(source)
    source.list_changes(late(source), first)


def an_entry_with_an_old_date(source: Source) -> None:
    source.list_changes(deleted(source), created_again(source))


def an_entry_before_the_list(source: Source) -> None:
    source.file("d", b"d")
    source.list_changes(source.changed("d", "created", 0), from_=5)


def an_until_ahead(source: Source) -> None:
    source.clock = source.t(20.5)
    change(source, 100)


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize(
    "tell", [a_late_entry, an_entry_with_an_old_date, an_entry_before_the_list, an_until_ahead]
)
async def test_audit_does_not_call_a_copy_right_that_lacks_it(
    source: Source, folder: Path, tell: Callable[[Source], None]
):
    await follow_once(source, folder)
    tell(source)
    assert (await audited(source, folder)).code in (1, 2)
