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
    assert_honest,
    audited,
    follow_once,
    following,
    until,
    until_right,
)
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.offer()
    for name in ("a", "b", "c"):
        source.file(name, name.encode())
    source.list_resources(at=source.t(10))
    source.list_changes(from_=source.t(5))


def early(source: WildSource) -> str:
    """Change `a` and return the entry, which is there at once."""
    source.file("a", b"a, changed", source.t(100))
    return source.changed("a", "updated", source.t(100))


async def test_an_update_that_appears_late_is_applied_in_the_next_run(
    source: WildSource, copy: Copy
) -> None:
    first = early(source)
    source.list_changes(first, from_=source.t(5))
    assert_honest(copy, source, await follow_once(source, copy))
    source.file("b", b"b, changed", source.t(90))
    source.list_changes(source.changed("b", "updated", source.t(90)), first, from_=source.t(5))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_a_deletion_and_a_creation_that_appear_late_are_applied_while_following(
    source: WildSource, copy: Copy
) -> None:
    first = early(source)
    source.list_changes(first, from_=source.t(5))
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        source.remove("b")
        source.file("d", b"d", source.t(91))
        late = [
            source.changed("b", "deleted", source.t(90)),
            source.changed("d", "created", source.t(91)),
        ]
        source.list_changes(*late, first, from_=source.t(5))
        await until_right(subscriber, copy, source)


async def test_a_late_entry_beside_a_new_one_is_applied(source: WildSource, copy: Copy) -> None:
    first = early(source)
    source.list_changes(first, from_=source.t(5))
    await follow_once(source, copy)
    source.file("b", b"b, changed", source.t(90))
    late = source.changed("b", "updated", source.t(90))
    source.file("c", b"c, changed", source.t(110))
    new = source.changed("c", "updated", source.t(110))
    source.list_changes(late, first, new, from_=source.t(5))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_a_late_entry_of_what_changed_again_since_does_not_bring_the_old_back(
    source: WildSource, copy: Copy
) -> None:
    first = early(source)
    source.list_changes(first, from_=source.t(5))
    await follow_once(source, copy)
    gone = source.changed("a", "deleted", source.t(90))
    source.list_changes(gone, first, from_=source.t(5))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_a_late_entry_without_a_hash_is_applied(source: WildSource, copy: Copy) -> None:
    first = early(source)
    source.list_changes(first, from_=source.t(5))
    await follow_once(source, copy)
    source.file("b", b"b, changed", source.t(90))
    late = source.changed("b", "updated", source.t(90), hashed=False)
    source.list_changes(late, first, from_=source.t(5))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_an_entry_that_takes_the_place_of_another_is_applied(
    source: WildSource, copy: Copy
) -> None:
    """The number of entries and the last one stay what they were.

    The list has only the latest change of `a` now.
    """
    replaced = early(source)
    source.file("a", b"a, changed again", source.t(110))
    latest = source.changed("a", "updated", source.t(110))
    last = source.changed("c", "updated", source.t(120))
    source.list_changes(replaced, latest, last, from_=source.t(5))
    await follow_once(source, copy)
    source.file("b", b"b, changed", source.t(90))
    late = source.changed("b", "updated", source.t(90))
    source.list_changes(late, latest, last, from_=source.t(5))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_a_late_entry_that_the_list_already_has_when_it_is_closed_is_applied(
    source: WildSource, copy: Copy
) -> None:
    first = early(source)
    source.list_changes(first, from_=source.t(5))
    await follow_once(source, copy)
    source.file("b", b"b, changed", source.t(90))
    late = source.changed("b", "updated", source.t(90))
    source.list_changes(late, first, from_=source.t(5), until=source.t(150))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_an_unchanged_list_costs_no_request_for_any_resource(
    source: WildSource, copy: Copy
) -> None:
    source.list_changes(early(source), from_=source.t(5))
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
    source.list_changes(first, from_=source.t(5))
    await follow_once(source, folder)
    source.file("b", b"b, changed", source.t(90))
    source.list_changes(source.changed("b", "updated", source.t(90)), first, from_=source.t(5))
    assert (await audited(source, folder)).code == 1
