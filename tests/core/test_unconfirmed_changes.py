"""What becomes of changes that push announced: a list confirms them, or the resource is fetched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from rsnotify.format.coverage import EARLIEST, Change, CheckMethod, Coverage
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from rsnotify.sync.reduction import announced_at
from rsnotify.sync.unconfirmed_changes import UnconfirmedChanges, verification

CREATED, UPDATED, DELETED = ChangeType.CREATED, ChangeType.UPDATED, ChangeType.DELETED
MIRROR = Link("duplicate", "http://mirror.example/a")


def at(seconds: float) -> datetime:
    return datetime(2026, 1, 1, 1, 0, 0, 500_000, tzinfo=UTC) + timedelta(seconds=seconds)


def change(
    seconds: float,
    kind: ChangeType = UPDATED,
    hash: str | None = "md5:1",
    links: tuple[Link, ...] = (),
) -> Change:
    resource = Resource("a", change=kind, datetime=at(seconds), hash=hash, links=links)
    return Change("a", kind, at(seconds), resource)


def pushed(announced: Change, received: float = 0) -> UnconfirmedChanges:
    unconfirmed = UnconfirmedChanges(grace=2, patience=10)
    unconfirmed.add([announced], received)
    return unconfirmed


def covering(from_: float, until: float) -> Coverage:
    return Coverage(at(from_), at(until), closed=True, ordered=True, changes=())


@pytest.mark.parametrize("kind", ChangeType)
def test_a_verification_keeps_only_what_decides_whether_the_resource_is_selected(
    kind: ChangeType,
) -> None:
    collection = Link(Rel.COLLECTION, "http://a.example/all")
    announced = Resource("a", hash="md5:1", length=5, type="text/plain", links=(MIRROR, collection))
    expected = DELETED if kind is DELETED else UPDATED
    resource = Resource("a", change=expected, type="text/plain", links=(collection,))
    verified = verification(Change("a", kind, at(3), announced), at(9))
    assert verified == Change("a", expected, at(9), resource, check=CheckMethod.FETCH)
    assert announced_at(verified) == EARLIEST


@pytest.mark.parametrize(
    ("seconds", "before", "expected"),
    [(1, 0, False), (2, 0, True), (4, 0, True), (5, 0, False), (3, 3, False), (3.5, 3, True)],
)
def test_only_a_change_within_the_interval_of_a_list_that_lacks_it_is_verified(
    seconds: float, before: float, expected: bool
) -> None:
    announced = change(seconds)
    unconfirmed = pushed(announced)
    found = unconfirmed.confirm(covering(1, 5), {}, at(before))
    assert found == ([(verification(announced, at(5)), announced.at)] if expected else [])
    assert len(unconfirmed) == (0 if expected else 1)


@pytest.mark.parametrize(
    ("announced", "listed", "repeated"),
    [
        (change(3), change(3), True),
        (change(3), change(3, hash="md5:2"), False),
        (change(3, hash="md5:2"), change(4), True),
        (change(3), change(2), False),
        (change(3, DELETED), change(3, DELETED), True),
        (change(3, DELETED), change(3), False),
        (change(3), change(3, DELETED), False),
        (change(3), change(3, hash=None), True),
        (change(3, hash=None), change(3), True),
        (change(3, links=(MIRROR,)), change(3, hash=None), False),
        (change(3, links=(MIRROR,)), change(3), True),
        (change(0.25), Change("a", UPDATED, at(-0.5), Resource("a")), True),
        (change(0.5), Change("a", UPDATED, at(-0.5), Resource("a")), False),
    ],
)
def test_a_list_confirms_a_change_that_it_repeats_or_has_a_later_one_of(
    announced: Change, listed: Change, repeated: bool
) -> None:
    unconfirmed = pushed(announced)
    found = unconfirmed.confirm(covering(-9, 9), {"a": listed}, EARLIEST)
    fetched = (replace(listed, check=CheckMethod.FETCH), announced.at)
    assert found == ([] if repeated else [fetched])
    assert len(unconfirmed) == 0


def test_a_list_that_ends_with_an_entry_that_is_perhaps_the_pushed_one_decides() -> None:
    announced, listed = change(3, hash=None, links=(MIRROR,)), change(3, hash=None)
    unconfirmed = pushed(announced)
    fetched = replace(listed, check=CheckMethod.FETCH)
    found = unconfirmed.confirm(covering(-9, 3), {"a": listed}, EARLIEST)
    assert found == [(fetched, announced.at)], "the entry is lost"


def test_a_comparison_with_the_whole_set_settles_the_changes_up_to_it() -> None:
    unconfirmed = pushed(change(3))
    assert unconfirmed.remove_compared(at(2.9)) == []
    assert len(unconfirmed) == 1
    assert unconfirmed.remove_compared(at(3)) == [change(3)]
    assert len(unconfirmed) == 0


@pytest.mark.parametrize(("confirmed", "expected"), [(2.9, False), (3, False), (3.1, True)])
def test_a_change_that_the_lists_have_passed_is_verified_at_their_end(
    confirmed: float, expected: bool
) -> None:
    announced = change(3)
    found = pushed(announced).end_of_lists(at(confirmed), requested=0, now=0, sent=None)
    assert found == ([(verification(announced, at(confirmed)), announced.at)] if expected else [])


@pytest.mark.parametrize(("now", "expected"), [(17, False), (17.1, True)])
def test_a_change_that_the_lists_do_not_reach_is_verified_after_a_while(
    now: float, expected: bool
) -> None:
    found = pushed(change(3), received=7).end_of_lists(at(1), requested=7, now=now, sent=None)
    assert bool(found) is expected


@pytest.mark.parametrize(("sent", "dated"), [(None, 1), (2, 2), (9, 3)])
def test_a_verification_is_dated_like_its_change_but_not_later_than_the_time_of_the_source(
    sent: int | None, dated: int
) -> None:
    """A Resource List from before the change may lack the resource."""
    sent_at = None if sent is None else at(sent)
    found = pushed(change(3)).end_of_lists(at(1), requested=7, now=99, sent=sent_at)
    assert found == [(verification(change(3), at(dated)), at(3))]


@pytest.mark.parametrize(("requested", "expected"), [(9, 0), (9.1, 1)])
def test_a_change_is_overdue_once_a_list_requested_long_after_it_lacks_it(
    requested: float, expected: int
) -> None:
    unconfirmed = pushed(change(3), received=7)
    unconfirmed.add([replace(change(3), uri="c")], 7)
    for _ in range(2):
        unconfirmed.end_of_lists(at(1), requested, now=requested, sent=None)
        assert unconfirmed.overdue == 2 * expected
    assert unconfirmed.is_overdue("a", requested) is bool(expected)
    unconfirmed.clear()
    assert (len(unconfirmed), unconfirmed.overdue) == (0, 0)
