"""What a Destination owes, and in which order it is handed out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify.sync.pending_changes import PendingChanges
from rsnotify.sync.retry import Retry

START = datetime(2026, 1, 1, tzinfo=UTC)


def change(name: str, seconds: int) -> Change:
    at = START + timedelta(seconds=seconds)
    return Change(name, ChangeType.UPDATED, at, Resource(name))


def worklist() -> PendingChanges:
    return PendingChanges(Retry(first=1, most=8), Random(1))


def test_a_resource_is_owed_once_however_often_it_changed() -> None:
    work = worklist()
    for seconds in range(5):
        work.add(change("a", seconds))
    assert work.take(10, now=0) == [change("a", 4)]


def test_t_must_not_pass_the_first_of_several_changes_of_a_resource() -> None:
    work = worklist()
    work.add(change("a", 1))
    work.add(change("b", 2))
    work.add(change("a", 9))
    assert work.low_water() == START + timedelta(seconds=1)
    (first, second) = work.take(10, now=0)
    work.applied(first)
    assert work.low_water() == START + timedelta(seconds=2)
    work.applied(second)
    assert work.low_water() is None
    assert len(work) == 0


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=12),
    st.integers(0, 12),
    st.sets(st.sampled_from("abcd")),
)
def test_it_is_known_before_where_t_will_be_once_changes_are_applied(
    changes: list[tuple[str, int]], out: int, done: set[str]
) -> None:
    work = worklist()
    for name, seconds in changes[:out]:
        work.add(change(name, seconds))
    applied = [one for one in work.take(10, now=0) if one.uri in done]
    for name, seconds in changes[out:]:
        work.add(change(name, seconds))
    before = work.low_water()
    foreseen = work.low_water_after(applied)
    assert work.low_water() == before
    for one in applied:
        work.applied(one)
    assert work.low_water() == foreseen


def test_what_changes_again_while_it_is_out_is_handed_out_again() -> None:
    work = worklist()
    work.add(change("a", 1))
    (taken,) = work.take(10, now=0)
    work.add(change("a", 2))
    assert work.take(10, now=0) == []
    work.applied(taken)
    assert work.low_water() == START + timedelta(seconds=1)
    assert work.take(10, now=0) == [change("a", 2)]


def test_no_more_are_out_than_the_limit() -> None:
    work = worklist()
    for name in "abcd":
        work.add(change(name, 1))
    out = work.take(3, now=0)
    assert len(out) == 3
    assert work.take(3, now=0) == []
    work.applied(out[0])
    assert len(work.take(3, now=0)) == 1


def test_a_failure_waits_longer_each_time_and_holds_up_nothing_else() -> None:
    work = worklist()
    work.add(change("a", 1))
    work.add(change("b", 2))
    (a, b) = work.take(10, now=0)
    assert work.failed(a, now=0) == 1
    work.applied(b)
    due = work.wakeup()
    assert due is not None
    assert 0.5 <= due <= 1
    assert work.take(10, now=0.4) == []
    (again,) = work.take(10, now=1)
    assert work.failed(again, now=1) == 2
    assert 1 <= (work.wakeup() or 0) - 1 <= 2
    assert work.failing() == [a]
    assert (len(work), work.untried) == (1, 0)


def test_a_server_that_asks_to_wait_is_not_asked_before() -> None:
    work = worklist()
    work.add(change("a", 1))
    (a,) = work.take(10, now=0)
    work.failed(a, now=0, at_least=30)
    assert work.take(10, now=29) == []
    assert work.take(10, now=30) == [a]


def test_a_new_change_need_not_wait_out_the_failure_of_the_old_one() -> None:
    work = worklist()
    work.add(change("a", 1))
    (a,) = work.take(10, now=0)
    work.failed(a, now=0)
    work.add(change("a", 2))
    assert work.untried == 1
    assert work.take(10, now=0) == [change("a", 2)]


def test_an_older_change_does_not_supersede_a_newer_one_but_counts_for_t() -> None:
    work = worklist()
    work.add(change("a", 5))
    work.add(change("a", 3))
    assert work.take(10, now=0) == [change("a", 5)]
    assert work.low_water() == START + timedelta(seconds=3)


def test_a_change_may_wait_for_its_time_and_a_later_one_does_not_put_it_off() -> None:
    work = worklist()
    work.add(change("a", 1), due=5.0)
    work.add(change("a", 2), due=9.0)
    assert work.wakeup() == 5.0
    assert work.take(10, now=4.9) == []
    assert work.take(10, now=5.0) == [change("a", 2)]


def test_what_will_be_told_anew_is_owed_no_more_unless_it_is_out() -> None:
    work = worklist()
    for name in "abc":
        work.add(change(name, 1))
    (out,) = work.take(1, now=0.0)
    work.forget()
    assert len(work) == 1
    work.add(change("b", 1))
    work.applied(out)
    assert [one.uri for one in work.take(9, now=0.0)] == ["b"]


def test_what_failed_is_forgotten_with_its_failures() -> None:
    work = worklist()
    work.add(change("a", 1))
    work.failed(work.take(1, now=0.0)[0], 0.0)
    work.forget()
    work.add(change("a", 2))
    assert work.untried == 1
    assert [one.at for one in work.take(9, now=9.0)] == [change("a", 2).at]
    assert work.take(9, now=99.0) == [], "and it is handed out once"


def test_what_only_waits_for_its_time_is_no_trouble() -> None:
    work = worklist()
    assert not work.waits
    work.add(change("a", 1), due=5.0)
    work.add(change("b", 2))
    assert work.waits
    (b,) = work.take(10, now=0)
    assert work.waits
    work.applied(b)
    (a,) = work.take(10, now=5)
    assert not work.waits
    work.failed(a, now=6)
    assert not work.waits


def listed(name: str, seconds: int, hash: str) -> Change:
    """Return what a Resource List says."""
    return replace(change(name, seconds), resource=Resource(name, hash=hash))


def compared(name: str, seconds: int, hash: str | None) -> Change:
    """Return what a list of changes says that is compared; without a hash, a deletion."""
    kind = ChangeType.DELETED if hash is None else ChangeType.UPDATED
    at = START + timedelta(seconds=seconds)
    resource = Resource(name, change=kind, hash=hash)
    return Change(name, kind, at, resource, check=CheckMethod.COMPARE)


@pytest.mark.parametrize("hash", ["md5:2", None], ids=["other content", "a deletion"])
def test_where_two_lists_contradict_each_other_the_resource_is_fetched(hash: str | None) -> None:
    work = worklist()
    work.add(listed("a", 100, "md5:1"))
    work.add(compared("a", 50, hash))
    (one,) = work.take(10, now=0)
    assert one.check is CheckMethod.FETCH
    assert one.resource.hash is None
    assert (one.change is ChangeType.DELETED) == (hash is None)


def test_what_one_list_lacks_and_another_has_need_not_be_there() -> None:
    work = worklist()
    work.add(Change("a", ChangeType.DELETED, START + timedelta(seconds=100), Resource("a")))
    work.add(compared("a", 50, "md5:1"))
    (one,) = work.take(10, now=0)
    assert one.check is CheckMethod.FETCH
    assert one.change is ChangeType.DELETED


def test_where_an_older_entry_says_the_same_nothing_changes() -> None:
    work = worklist()
    work.add(listed("a", 100, "md5:1"))
    work.add(compared("a", 50, "md5:1"))
    assert work.take(10, now=0) == [listed("a", 100, "md5:1")]


def test_what_push_announced_later_is_no_contradiction() -> None:
    work = worklist()
    work.add(replace(compared("a", 100, "md5:1"), check=CheckMethod.DATE))
    work.add(compared("a", 50, "md5:2"))
    (one,) = work.take(10, now=0)
    assert one.check is CheckMethod.DATE


@pytest.mark.parametrize("missing", [True, False])
def test_what_was_not_there_and_a_later_whole_set_lacks_is_owed_no_longer(missing: bool) -> None:
    work = worklist()
    work.add(replace(change("a", 1), resource=Resource("a", change=ChangeType.UPDATED)))
    (one,) = work.take(10, now=0)
    work.failed(one, 0, missing=missing)
    work.drop_unlisted(START + timedelta(seconds=50), set())
    assert len(work) == (0 if missing else 1)


@pytest.mark.parametrize("listed", [True, False])
def test_what_is_being_fetched_again_is_not_settled_by_a_whole_set_that_lacks_it(
    listed: bool,
) -> None:
    work = worklist()
    work.watch(replace(change("a", 1), check=CheckMethod.FETCH), due=0)
    work.take(10, now=0)
    assert work.drop_unlisted(START + timedelta(seconds=50), {"a"} if listed else set()) is listed
    assert len(work) == 1


def test_what_is_being_removed_as_missing_is_not_settled_by_a_whole_set_that_lacks_it() -> None:
    work = worklist()
    work.add(change("a", 1))
    (one,) = work.take(10, now=0)
    work.failed(one, 0, missing=True)
    work.add(replace(one, change=ChangeType.DELETED), missing=one)
    work.take(10, now=0)
    assert not work.drop_unlisted(START + timedelta(seconds=50), set())
