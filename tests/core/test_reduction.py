"""How a list of changes is reduced to the final change of each resource."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.model import ChangeType, Resource
from rsnotify.sync.reduction import reduce_changes

NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)
CREATED, UPDATED, DELETED = ChangeType.CREATED, ChangeType.UPDATED, ChangeType.DELETED


def change(
    name: str, kind: ChangeType, hours: float, *, dated: bool = True, hash: str | None = None
) -> Change:
    """Make a change; without `dated` its only datetime is a `lastmod`."""
    at = NINE + timedelta(hours=hours)
    resource = Resource(name, change=kind, hash=hash, **{"datetime" if dated else "lastmod": at})
    return Change(name, kind, at, resource)


def test_the_last_entry_counts_in_a_list_in_chronological_order() -> None:
    entries = [change("a", CREATED, 0), change("b", CREATED, 1), change("a", DELETED, 2)]
    reduced = reduce_changes(entries, ordered=True)
    assert {uri: one.change for uri, one in reduced.latest.items()} == {"a": DELETED, "b": CREATED}
    assert {one.check for one in reduced.latest.values()} == {CheckMethod.DATE}
    assert reduced.since["a"] == NINE


def test_entries_that_are_dated_by_their_order_are_fetched_if_they_state_the_reverse() -> None:
    """The clock of the Source went back, or the list begins with the newest entry."""
    newest = [change("a", UPDATED, 2, hash="md5:2"), change("b", UPDATED, 2, hash="md5:1")]
    oldest = [change("a", CREATED, 0, hash="md5:1"), change("b", CREATED, 0, hash="md5:1")]
    dated = [replace(one, at=newest[0].at) for one in oldest]
    assert reduce_changes([*newest, *dated], ordered=True).ambiguous == {"a"}
    assert not reduce_changes([*oldest, *newest], ordered=True).ambiguous


@pytest.mark.parametrize(("others", "dated"), [(9, False), (0, True)])
def test_the_first_entry_counts_in_a_list_that_begins_with_the_newest(
    others: int, dated: bool
) -> None:
    entries = [change("a", UPDATED, 20, dated=dated), change("a", CREATED, 0, dated=dated)]
    entries[1:1] = [change(f"b{n}", UPDATED, 19 - n, dated=dated) for n in range(others)]
    reduced = reduce_changes(entries, ordered=False)
    assert reduced.latest["a"].change is UPDATED
    assert reduced.latest["a"].check is CheckMethod.COMPARE
    assert not reduced.ambiguous


def test_a_short_list_of_modification_times_may_be_in_reverse_order_by_accident() -> None:
    entries = [change("a", UPDATED, 20, dated=False), change("a", UPDATED, 0, dated=False)]
    entries[1:1] = [change(f"b{n}", UPDATED, 19 - n // 2, dated=False) for n in range(16)]
    assert reduce_changes(entries, ordered=False).ambiguous == {"a"}


def test_a_restored_file_with_its_old_lastmod_is_ambiguous() -> None:
    entries = [
        change("b", CREATED, 0),
        change("a", DELETED, 2),
        change("a", CREATED, 1, dated=False),
    ]
    entries[1] = replace(entries[1], resource=replace(entries[1].resource, hash="md5:1", length=7))
    reduced = reduce_changes(entries, ordered=False)
    assert reduced.ambiguous == {"a"}
    assert reduced.latest["a"] == replace(change("a", DELETED, 2), check=CheckMethod.FETCH)


def test_a_list_that_only_begins_with_the_newest_entry_has_no_order() -> None:
    entries = [
        change("a", DELETED, 3),
        change("a", CREATED, 1, dated=False),
        change("b", CREATED, 2),
    ]
    assert reduce_changes(entries, ordered=False).ambiguous == {"a"}


def test_two_equal_entries_of_one_datetime_contradict_nothing() -> None:
    entries = [
        change("b", CREATED, 5),
        change("a", CREATED, 2, hash="md5:1"),
        change("a", UPDATED, 2, hash="md5:1"),
        change("c", CREATED, 1, hash="md5:1"),
        change("c", UPDATED, 1, hash="md5:2"),
    ]
    reduced = reduce_changes(entries, ordered=False)
    assert reduced.ambiguous == {"c"}
    assert reduced.latest["a"].change is CREATED, "the newest entry comes first"
    unordered = [change("d", CREATED, 3), *entries]
    assert reduce_changes(unordered, ordered=False).latest["a"].change is UPDATED


def test_a_later_change_settles_what_was_ambiguous_before() -> None:
    entries = [
        change("a", DELETED, 2),
        change("a", CREATED, 1, dated=False),
        change("a", UPDATED, 3),
    ]
    reduced = reduce_changes(entries, ordered=False)
    assert not reduced.ambiguous
    assert reduced.latest["a"].change is UPDATED


def test_two_different_entries_of_one_datetime_are_ambiguous_if_the_list_has_no_order() -> None:
    entries = [change("b", CREATED, 5), change("a", DELETED, 2), change("a", UPDATED, 2)]
    assert reduce_changes(entries, ordered=False).ambiguous == {"a"}
    assert not reduce_changes(sorted(entries, key=lambda one: one.at), ordered=True).ambiguous
    rising = [change("c", UPDATED, 1), change("a", DELETED, 2), change("a", UPDATED, 2), entries[0]]
    reduced = reduce_changes([*rising, change("c", UPDATED, 0)], ordered=False)
    assert reduced.ambiguous == {"a"}
    assert reduced.latest["a"].resource.change is DELETED, "it need not be there"
    equal = [change("a", UPDATED, 2, dated=False), change("b", CREATED, 5)]
    assert not reduce_changes([equal[0], *equal], ordered=False).ambiguous


@pytest.mark.parametrize(("hash", "expected"), [("md5:1", set()), ("md5:2", {"a"})])
def test_different_entries_are_ambiguous_if_a_coarse_datetime_hides_their_order(
    hash: str, expected: set[str]
) -> None:
    exact = change("a", UPDATED, 0, hash="md5:1")
    day = NINE.replace(hour=0, fold=1)
    resource = replace(exact.resource, datetime=day, hash=hash)
    coarse = replace(exact, at=day, resource=resource)
    for entries in ([coarse, exact], [exact, coarse]):
        assert reduce_changes(entries, ordered=True).ambiguous == expected


def test_datetimes_that_may_be_wrong_are_compared_also_in_an_ordered_list() -> None:
    reduced = reduce_changes([change("a", UPDATED, 0)], ordered=True, compare=True)
    assert reduced.latest["a"].check is CheckMethod.COMPARE


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(ChangeType)), max_size=20),
    st.randoms(),
)
def test_any_order_of_unique_datetimes_gives_the_same_state(steps: list, random) -> None:  # type: ignore[no-untyped-def]
    entries = [change(name, kind, hours) for hours, (name, kind) in enumerate(steps)]
    expected = {uri: one.at for uri, one in reduce_changes(entries, ordered=True).latest.items()}
    random.shuffle(entries)
    reduced = reduce_changes(entries, ordered=False)
    assert {uri: one.at for uri, one in reduced.latest.items()} == expected
    assert not reduced.ambiguous


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("place", [0, 1], ids=["first", "last"])
def test_an_entry_dated_before_its_list_is_ambiguous(ordered: bool, place: int) -> None:
    entries = [change("a", DELETED, 2), change("b", CREATED, 3)]
    entries.insert(2 * place, change("a", CREATED, -50, dated=False, hash="md5:1"))
    reduced = reduce_changes(entries, ordered=ordered, compare=True, from_=NINE)
    assert reduced.ambiguous == {"a"}
    assert reduced.latest["a"].check is CheckMethod.FETCH
    assert reduced.latest["a"].change is DELETED, "it need not be there"
    assert reduced.latest["a"].resource.hash is None
    deletions = [change("a", DELETED, hours) for hours in (-50, 2)]
    reduced = reduce_changes(deletions, ordered=ordered, compare=True, from_=NINE)
    assert reduced.latest["a"].resource.uri == "a"


def test_an_entry_dated_at_the_beginning_of_its_list_is_reliable() -> None:
    entries = [change("a", CREATED, 0), change("a", UPDATED, 1)]
    assert not reduce_changes(entries, ordered=True, compare=True, from_=NINE).ambiguous


def test_an_ambiguous_resource_may_have_the_content_of_either_entry() -> None:
    entries = [
        change("b", CREATED, 0),
        change("a", UPDATED, 2, hash="md5:2"),
        change("a", UPDATED, 1, dated=False, hash="md5:1"),
    ]
    latest = reduce_changes(entries, ordered=False).latest["a"]
    assert latest.check is CheckMethod.FETCH
    assert latest.change is UPDATED
    assert latest.resource.hash is None


@pytest.mark.parametrize("kinds", [(CREATED, DELETED), (DELETED, CREATED), (DELETED, UPDATED)])
def test_a_resource_that_is_deleted_in_one_spelling_and_not_in_another_is_ambiguous(
    kinds: tuple[ChangeType, ChangeType],
) -> None:
    changes = [change("a", kind, hours) for hours, kind in enumerate(kinds)]
    spelled = [
        replace(one, resource=replace(one.resource, uri=f"spelling {number}"))
        for number, one in enumerate(changes)
    ]
    assert not reduce_changes(changes, ordered=True).ambiguous
    reduced = reduce_changes(spelled, ordered=True)
    assert reduced.ambiguous == reduced.respelled == {"a"}
    updated = [replace(one, change=UPDATED) for one in spelled]
    assert not reduce_changes(updated, ordered=True).ambiguous
    latest = reduced.latest["a"]
    assert (latest.change, latest.check) == (DELETED, CheckMethod.FETCH)
    assert latest.resource.uri == f"spelling {1 - kinds.index(DELETED)}"
