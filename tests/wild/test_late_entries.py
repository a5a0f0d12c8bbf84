"""An entry is inserted late into an open Change List, dated before entries that were read already.

A Source whose datetimes are taken when a transaction begins, and whose entries appear when it is
committed, writes such lists: the list stays in chronological order (core §12.1), its `from` stays
what it was, and its end need not move at all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wild.running import (
    Copy,
    audited,
    follow_once,
    following,
    run_honest,
    run_right,
    until,
    until_right,
)
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.begin("a", "b", "c")


def early(source: WildSource) -> str:
    """Change `a` and return the entry, which is there at once."""
    return source.update("a", 100, b"a, changed")


async def test_an_update_that_appears_late_is_applied_in_the_next_run(
    source: WildSource, copy: Copy
) -> None:
    first = early(source)
    source.list_changes(first)
    await run_honest(source, copy)
    source.list_changes(source.update("b", 90, b"b, changed"), first)
    await run_right(source, copy)


async def test_a_deletion_and_a_creation_that_appear_late_are_applied_while_following(
    source: WildSource, copy: Copy
) -> None:
    first = early(source)
    source.list_changes(first)
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        source.remove("b")
        source.file("d", b"d", 91)
        late = [source.changed("b", "deleted", 90), source.changed("d", "created", 91)]
        source.list_changes(*late, first)
        await until_right(subscriber, copy, source)


async def test_a_late_entry_beside_a_new_one_is_applied(source: WildSource, copy: Copy) -> None:
    first = early(source)
    source.list_changes(first)
    await follow_once(source, copy)
    late = source.update("b", 90, b"b, changed")
    new = source.update("c", 110, b"c, changed")
    source.list_changes(late, first, new)
    await run_right(source, copy)


async def test_a_late_entry_of_what_changed_again_since_does_not_bring_the_old_back(
    source: WildSource, copy: Copy
) -> None:
    first = early(source)
    source.list_changes(first)
    await follow_once(source, copy)
    gone = source.changed("a", "deleted", 90)
    source.list_changes(gone, first)
    await run_right(source, copy)


async def test_a_late_entry_without_a_hash_is_applied(source: WildSource, copy: Copy) -> None:
    first = early(source)
    source.list_changes(first)
    await follow_once(source, copy)
    late = source.update("b", 90, b"b, changed", hashed=False)
    source.list_changes(late, first)
    await run_right(source, copy)


async def test_an_entry_that_takes_the_place_of_another_is_applied(
    source: WildSource, copy: Copy
) -> None:
    """The number of entries and the last one stay what they were.

    The list has only the latest change of `a` now.
    """
    replaced = early(source)
    latest = source.update("a", 110, b"a, changed again")
    last = source.changed("c", "updated", 120)
    source.list_changes(replaced, latest, last)
    await follow_once(source, copy)
    late = source.update("b", 90, b"b, changed")
    source.list_changes(late, latest, last)
    await run_right(source, copy)


async def test_a_late_entry_that_the_list_already_has_when_it_is_closed_is_applied(
    source: WildSource, copy: Copy
) -> None:
    first = early(source)
    source.list_changes(first)
    await follow_once(source, copy)
    late = source.update("b", 90, b"b, changed")
    source.list_changes(late, first, until=150)
    await run_right(source, copy)


async def test_an_unchanged_list_costs_no_request_for_any_resource(
    source: WildSource, copy: Copy
) -> None:
    source.list_changes(early(source))
    await follow_once(source, copy)
    source.forget()
    async with following(source, copy) as subscriber:
        await until(subscriber, lambda _: len(source.requests("changelist.xml")) > 3)
    assert [one.path for one in source.log if one.path.rpartition("/")[2] in "abc"] == []
    assert source.requests("resourcelist.xml") == []


async def test_audit_calls_a_copy_wrong_that_lacks_a_late_entry(
    source: WildSource, folder: Path
) -> None:
    first = early(source)
    source.list_changes(first)
    await follow_once(source, folder)
    source.list_changes(source.update("b", 90, b"b, changed"), first)
    assert (await audited(source, folder)).code == 1
