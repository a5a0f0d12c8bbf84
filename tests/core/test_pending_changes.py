"""Which changes are pending, and in which order they are dispatched."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import ChangeType, Link, Resource
from rsnotify.sync.actions import ActionList, BacklogExtent, StoreBacklog, TakeBacklog
from rsnotify.sync.pending_changes import UNWAITED, PendingChanges
from rsnotify.sync.retry import Retry
from rsnotify.sync.unconfirmed_changes import verification
from tests.core.source import EPOCH, at


def change(name: str, seconds: int) -> Change:
    at = EPOCH + timedelta(seconds=seconds)
    return Change(name, ChangeType.UPDATED, at, Resource(name, lastmod=at))


def pending_of(*changes: Change) -> PendingChanges:
    pending = PendingChanges(Retry(first=1, most=8), Random(1), ActionList(), most_parked=20)
    for one in changes:
        pending.add(one)
    return pending


def dispatched(*changes: Change) -> tuple[PendingChanges, list[Change]]:
    pending = pending_of(*changes)
    return pending, pending.dispatch(10, now=0)


def test_a_resource_is_pending_once_however_often_it_changed() -> None:
    pending = pending_of()
    assert all(pending.add(change("a", seconds)) for seconds in (0, 1, 1, 4)), "none was tried"
    assert pending.dispatch(10, now=0) == [change("a", 4)]


def test_t_must_not_pass_the_first_of_several_changes_of_a_resource() -> None:
    pending = pending_of(change("a", 1), change("b", 2), change("a", 9))
    assert pending.low_water() == at(1)
    (first, second) = pending.dispatch(10, now=0)
    pending.applied(first)
    assert pending.low_water() == at(2)
    pending.applied(second)
    assert pending.low_water() is None
    assert len(pending) == 0


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=12),
    st.integers(0, 12),
    st.sets(st.sampled_from("abcd")),
)
def test_the_low_water_mark_after_changes_are_applied_is_known_before(
    changes: list[tuple[str, int]], out: int, done: set[str]
) -> None:
    pending, taken = dispatched(*(change(*one) for one in changes[:out]))
    applied = [one for one in taken if one.uri in done]
    for one in changes[out:]:
        pending.add(change(*one))
    before = pending.low_water()
    foreseen = pending.low_water_after(applied)
    assert pending.low_water() == before
    for one in applied:
        pending.applied(one)
    assert pending.low_water() == foreseen


def test_a_resource_that_changes_while_in_flight_is_dispatched_again() -> None:
    pending, (taken,) = dispatched(change("a", 1))
    pending.add(change("a", 2))
    assert pending.dispatch(10, now=0) == []
    assert not pending.applied(taken)
    assert pending.low_water() == at(1)
    assert pending.dispatch(10, now=0) == [change("a", 2)]


@pytest.mark.parametrize("order", ["listed, pushed, verified", "pushed, listed, verified",
                                   "pushed, verified, listed"])  # fmt: skip
@pytest.mark.parametrize("kind", [ChangeType.UPDATED, ChangeType.DELETED])
def test_a_resource_that_a_list_announces_stays_announced_while_a_pushed_change_is_verified(
    kind: ChangeType, order: str
) -> None:
    listed, pushed = change("a", 3), replace(change("a", 4), change=kind, pushed=True)
    verified = verification(pushed, at(5))
    pending = pending_of()
    for step in order.split(", "):
        one = {"listed": listed, "pushed": pushed, "verified": verified}[step]
        pending.announce(one)
    (taken,) = pending.dispatch(10, now=0)
    assert taken.change is taken.resource.change is ChangeType.UPDATED
    assert (taken.check, taken.pushed) == (CheckMethod.FETCH, False)
    pending.failed(taken, now=0)
    pending.give_up("a", watch=True)
    pending.drop_unlisted(at(2), set())
    assert pending.passed == (taken,), "a list of before the announcement counts"


@pytest.mark.parametrize(
    ("listed", "pushed"),
    [
        (
            Change("a", ChangeType.DELETED, at(3), Resource("a")),
            verification(change("a", 4), at(5)),
        ),
        (
            change("a", 3),
            replace(change("a", 4), resource=Resource("a", change=ChangeType.UPDATED)),
        ),
    ],
    ids=["a listed deletion", "a pushed change without a datetime"],
)
def test_what_only_push_announces_does_not_count_as_listed(listed: Change, pushed: Change) -> None:
    pushed = replace(pushed, pushed=True)
    assert dispatched(listed, pushed)[1] == [pushed]


def test_the_hash_in_a_whole_set_verifies_what_push_announced_before_it() -> None:
    pushed = replace(change("a", 4), pushed=True)
    entry = Resource("a", lastmod=at(4), hash=f"sha-256:{'0' * 64}")
    listed = Change("a", ChangeType.UPDATED, at(5), entry)
    _, taken = dispatched(pushed, listed, verification(pushed, at(5)))
    assert taken == [listed]


def test_a_resource_that_only_push_announced_is_dropped_if_its_verification_fails() -> None:
    pending = pending_of()
    pushed = replace(change("a", 4), pushed=True)
    pending.announce(pushed)
    pending.announce(verification(pushed, at(5)))
    (taken,) = pending.dispatch(10, now=0)
    pending.failed(taken, now=0)
    pending.give_up("a", watch=True)
    pending.drop_unlisted(at(2), set())
    assert [one.change for one in pending.dispatch(10, now=0)] == [ChangeType.DELETED]


def test_no_more_changes_are_in_flight_than_the_limit() -> None:
    pending = pending_of(*(change(name, 1) for name in "abcd"))
    out = pending.dispatch(3, now=0)
    assert len(out) == 3
    assert pending.dispatch(3, now=0) == []
    pending.applied(out[0])
    assert len(pending.dispatch(3, now=0)) == 1


def test_a_failure_is_retried_later_each_time_and_holds_up_nothing_else() -> None:
    pending, (a, b) = dispatched(change("a", 1), change("b", 2))
    assert pending.failed(a, now=0) == 1
    pending.applied(b)
    due = pending.wakeup()
    assert due is not None
    assert 0.5 <= due < 1
    assert pending.dispatch(10, now=0.4) == []
    assert pending.low_water() == at(1), "T passes what was not applied"
    (again,) = pending.dispatch(10, now=1)
    assert pending.failed(again, now=1) == 2
    assert 1 <= (pending.wakeup() or 0) - 1 <= 2
    assert pending.failing() == [a]
    assert (len(pending), pending.untried) == (1, 0)


@pytest.mark.parametrize(
    ("at_least", "newer", "now"),
    [(30, None, 30), (30, 20, 20), (0, 0, 0)],
    ids=["Retry-After", "a new change that is due later", "a new change at once"],
)
def test_a_failed_change_waits_for_retry_after_and_a_new_one_only_for_its_own_time(
    at_least: float, newer: float | None, now: float
) -> None:
    pending, (a,) = dispatched(change("a", 1))
    pending.failed(a, now=0, at_least=at_least)
    if newer is not None:
        pending.add(change("a", 2), due=newer)
        assert pending.untried == 1
    assert pending.dispatch(10, now=now - 1) == []
    assert pending.dispatch(10, now=now) == [a if newer is None else change("a", 2)]


def test_the_backoff_of_an_old_change_does_not_advance_a_later_one() -> None:
    pending, (a,) = dispatched(change("a", 1))
    pending.failed(a, now=0)
    pending.add(replace(a, change=ChangeType.DELETED), missing=a)
    assert not pending.is_deferred
    (removal,) = pending.dispatch(10, now=0)
    pending.applied(removal)
    pending.watch(replace(a, check=CheckMethod.FETCH), due=99)
    assert pending.dispatch(10, now=98) == []
    assert len(pending.dispatch(10, now=99)) == 1


def test_each_resource_that_has_failed_counts_once_until_it_changes_again() -> None:
    pending = pending_of(*(change(name, seconds) for name in "ab" for seconds in (1, 2)))
    assert pending.untried == 2
    for one in pending.dispatch(10, now=0):
        pending.failed(one, now=0)
        assert pending.missing_since(one) is None
    assert pending.untried == 0
    pending.add(change("a", 3))
    assert pending.untried == 1
    for _ in range(2):
        for one in pending.dispatch(10, now=99):
            pending.applied(one)
        assert pending.untried == 0
        pending.add(change("c", 4))
        assert pending.untried == 1


def test_a_resource_in_flight_that_has_failed_counts_after_the_others_are_dropped() -> None:
    pending, (a,) = dispatched(change("a", 1))
    pending.failed(a, now=0)
    pending.dispatch(1, now=1)
    pending.drop_waiting()
    assert (len(pending), pending.untried) == (1, 0)


def test_an_answer_to_a_change_that_is_not_pending_changes_nothing() -> None:
    pending = pending_of()
    assert pending.applied(change("a", 1))
    assert pending.failed(change("a", 1), now=0) == 0
    assert (len(pending), pending.in_flight) == (0, 0)


def test_an_older_change_does_not_supersede_a_newer_one_but_counts_for_t() -> None:
    pending, taken = dispatched(change("a", 5), change("a", 3))
    assert taken == [change("a", 5)]
    assert pending.low_water() == at(3)


def test_a_later_change_does_not_postpone_a_change_that_has_a_due_time() -> None:
    pending = pending_of()
    pending.add(change("a", 1), due=5.0)
    pending.add(change("a", 2), due=9.0)
    assert pending.wakeup() == 5.0
    assert pending.dispatch(10, now=4.9) == []
    assert pending.dispatch(10, now=5.0) == [change("a", 2)]


def test_dropping_waiting_changes_keeps_those_in_flight() -> None:
    pending = pending_of(*(change(name, 1) for name in "abc"))
    (out,) = pending.dispatch(1, now=0.0)
    pending.drop_waiting()
    assert (len(pending), pending.untried) == (1, 1)
    pending.add(change("b", 1))
    pending.applied(out)
    assert [one.uri for one in pending.dispatch(9, now=0.0)] == ["b"]


def test_dropping_waiting_changes_clears_their_failures() -> None:
    pending, (a,) = dispatched(change("a", 1))
    pending.failed(a, 0.0)
    pending.drop_waiting()
    pending.add(change("a", 2))
    assert pending.untried == 1
    assert [one.at for one in pending.dispatch(9, now=9.0)] == [change("a", 2).at]
    assert pending.dispatch(9, now=99.0) == [], "and it is dispatched once"


def test_a_change_that_only_waits_until_it_is_due_is_deferred() -> None:
    pending = pending_of()
    assert not pending.is_deferred
    pending.add(change("a", 1), due=5.0)
    pending.add(change("b", 2))
    assert pending.is_deferred
    (b,) = pending.dispatch(10, now=0)
    assert pending.is_deferred
    pending.applied(b)
    (a,) = pending.dispatch(10, now=5)
    assert not pending.is_deferred
    pending.failed(a, now=6)
    assert not pending.is_deferred


def listed(name: str, seconds: int, hash: str) -> Change:
    return replace(change(name, seconds), resource=Resource(name, hash=hash))


def compared(name: str, seconds: int, hash: str | None) -> Change:
    """Return an entry of a list that is compared; without a hash, a deletion."""
    kind = ChangeType.DELETED if hash is None else ChangeType.UPDATED
    resource = Resource(name, change=kind, datetime=at(seconds), hash=hash)
    return Change(name, kind, at(seconds), resource, check=CheckMethod.COMPARE)


@pytest.mark.parametrize(
    ("hash", "kind"),
    [("md5:2", ChangeType.UPDATED), (None, ChangeType.UPDATED), (None, ChangeType.DELETED)],
    ids=["other content", "perhaps other content", "a deletion"],
)
def test_if_two_lists_contradict_each_other_the_resource_is_fetched(
    hash: str | None, kind: ChangeType
) -> None:
    change = replace(compared("a", 50, hash), change=kind, package="http://a.example/1.zip")
    entry = Resource("a", change=kind)
    _, (one,) = dispatched(
        listed("a", 100, "md5:1"), replace(change, resource=replace(entry, hash=hash, length=7))
    )
    assert one == Change("a", kind, at(100), entry, check=CheckMethod.FETCH), (
        "whatever either list says of the content"
    )


def test_while_two_contradictory_lists_are_compared_a_deletion_between_them_is_not_applied() -> (
    None
):
    deletion = replace(compared("a", 60, None), resource=Resource("a", change=ChangeType.DELETED))
    announced = replace(compared("a", 50, "md5:2"), change=ChangeType.CREATED)
    _, (one,) = dispatched(listed("a", 100, "md5:1"), announced, deletion)
    assert one.check is CheckMethod.FETCH


def test_a_resource_that_only_one_of_two_lists_has_may_be_missing() -> None:
    missing = Change("a", ChangeType.DELETED, at(100), Resource("a"))
    _, (one,) = dispatched(missing, compared("a", 50, "md5:1"))
    assert one.check is CheckMethod.FETCH
    assert one.change is one.resource.change is ChangeType.DELETED


@pytest.mark.parametrize(
    ("later", "hash"),
    [
        (listed("a", 100, "md5:1"), "md5:1"),
        (replace(compared("a", 100, "md5:1"), check=CheckMethod.DATE), "md5:2"),
        (Change("a", ChangeType.DELETED, at(100), Resource("a")), None),
    ],
    ids=[
        "an equal entry of a list",
        "another one of a change that was pushed later",
        "a deletion of a resource that the list lacks",
    ],
)
def test_an_older_entry_that_contradicts_no_list_changes_nothing(
    later: Change, hash: str | None
) -> None:
    assert dispatched(later, compared("a", 50, hash))[1] == [later]


def test_a_change_of_the_same_time_as_a_resource_list_supersedes_its_entry() -> None:
    change = compared("a", 50, "md5:2")
    assert dispatched(listed("a", 50, "md5:1"), change)[1] == [change]


@pytest.mark.parametrize("missing", [True, False])
def test_a_missing_resource_that_a_later_whole_set_lacks_is_dropped(missing: bool) -> None:
    entry = Resource("a", change=ChangeType.UPDATED)
    pending, (one,) = dispatched(replace(change("a", 1), resource=entry))
    pending.failed(one, 0, missing=missing)
    pending.drop_unlisted(at(50), set())
    assert len(pending) == (0 if missing else 1)


@pytest.mark.parametrize("pushed", [False, True])
def test_a_failing_resource_that_a_whole_set_lacks_is_dropped_once_its_server_lacks_it(
    pushed: bool,
) -> None:
    entry = Resource("a", change=ChangeType.UPDATED, datetime=at(1))
    pending, (one,) = dispatched(replace(change("a", 1), resource=entry, pushed=pushed))
    pending.failed(one, now=0)
    pending.drop_unlisted(at(50), set())
    if pushed:
        pending.announce(verification(one, at(50)))
    (one,) = pending.dispatch(10, now=1_000)
    assert pending.failed(one, now=1_000, missing=True) == 0, "it is dropped, or deleted"


def test_a_deletion_that_fails_is_retried_at_once_when_list_and_server_lack_the_resource() -> None:
    pushed = replace(change("a", 1), change=ChangeType.DELETED)
    pending, (one,) = dispatched(verification(pushed, at(40)))
    pending.failed(one, now=0)
    pending.drop_unlisted(at(50), set())
    (one,) = pending.dispatch(10, now=1_000)
    pending.failed(one, now=1_000, missing=True)
    assert [each.change for each in pending.dispatch(10, now=1_000)] == [ChangeType.DELETED]


def test_a_whole_set_supersedes_what_documents_announced_before_a_missing_pushed_change() -> None:
    pending, (one,) = dispatched(change("a", 1), replace(change("a", 2), pushed=True))
    pending.failed(one, now=0, missing=True)
    pending.drop_unlisted(at(50), set())
    (verified,) = pending.dispatch(10, now=0)
    assert (verified.change, verified.check) == (ChangeType.DELETED, CheckMethod.FETCH)


@pytest.mark.parametrize(
    ("deleted", "kind"),
    [(2, ChangeType.UPDATED), (3, ChangeType.DELETED), (4, ChangeType.DELETED)],
)
def test_a_listed_deletion_revokes_what_an_earlier_list_announced_while_it_is_verified(
    deleted: int, kind: ChangeType
) -> None:
    pushed = replace(change("a", 5), pushed=True)
    deletion = compared("a", deleted, None)
    _, (verified,) = dispatched(verification(pushed, at(9)), change("a", 3), deletion)
    assert (verified.change, verified.check) == (kind, CheckMethod.FETCH)


@pytest.mark.parametrize(
    ("verified", "older"),
    [
        (replace(compared("a", 3, "md5:1"), at=at(9)), change("a", 4)),
        (
            replace(change("a", 3), at=at(9)),
            replace(compared("a", 4, None), check=CheckMethod.DATE),
        ),
    ],
    ids=["an update of an announced resource", "a deletion before a whole set with the resource"],
)
def test_an_older_change_that_revokes_nothing_does_not_replace_a_verification(
    verified: Change, older: Change
) -> None:
    verified = replace(verified, check=CheckMethod.FETCH)
    assert dispatched(verified, older)[1] == [verified]


@pytest.mark.parametrize("updated", [2, 4])
def test_a_listed_update_revokes_an_earlier_deletion_that_contradicts_the_whole_set(
    updated: int,
) -> None:
    """Closed lists are reread in order, after the list that is still open."""
    _, (verified,) = dispatched(
        listed("a", 50, "md5:1"), compared("a", 3, None), compared("a", updated, "md5:1")
    )
    is_later = updated > 3
    assert verified.change is (ChangeType.UPDATED if is_later else ChangeType.DELETED)
    assert (verified.at, verified.check) == (at(50), CheckMethod.FETCH)


def test_an_entry_of_the_whole_set_that_was_in_the_backlog_counts_as_listed() -> None:
    """The baseline does not know which resources are in the backlog."""
    entry = Resource("a")
    pending, (one,) = dispatched(Change("a", ChangeType.UPDATED, at(50), entry))
    pending.failed(one, now=0)
    pending.drop_unlisted(at(50), set())
    (one,) = pending.dispatch(10, now=1_000)
    assert pending.failed(one, now=1_000, missing=True) > 0


def test_content_from_a_package_is_verified_if_a_later_whole_set_lacks_its_resource() -> None:
    entry = Resource("a", change=ChangeType.UPDATED, datetime=at(1))
    pending, (one,) = dispatched(Change("a", ChangeType.UPDATED, at(1), entry, package="1.zip"))
    pending.drop_unlisted(at(50), set())
    assert pending.low_water_after([one]) == at(1), "T waits for the verification"
    assert pending.applied(one)
    assert pending.low_water() == at(1)
    found = [(verified.change, verified.check) for verified in pending.dispatch(10, now=0)]
    assert found == [(ChangeType.DELETED, CheckMethod.FETCH)]


def test_an_unavailable_resource_that_no_list_has_is_deleted_without_a_request() -> None:
    pending = pending_of()
    pending.watch(verification(change("a", 1), at(40)), due=999)
    assert pending.drop_unlisted(at(50), set())
    (deletion,) = pending.dispatch(9, now=0)
    assert (deletion.change, deletion.at) == (ChangeType.DELETED, at(50))
    assert deletion.resource.change is ChangeType.DELETED
    assert deletion.check is CheckMethod.COMPARE, "FETCH would request it from its server"


@pytest.mark.parametrize(
    ("announced", "listed", "unlisted"),
    [(1, True, False), (1, False, True), (50, False, False), (51, False, False)],
)
def test_a_whole_set_without_a_resource_does_not_settle_it_while_it_is_fetched_again(
    announced: int, listed: bool, unlisted: bool
) -> None:
    pending = pending_of()
    pending.watch(replace(change("a", announced), check=CheckMethod.FETCH), due=0)
    (one,) = pending.dispatch(10, now=0)
    assert pending.drop_unlisted(at(50), {"a"} if listed else set()) is listed
    assert len(pending) == 1
    assert pending.is_unlisted("a") is unlisted
    failures = pending.failed(one, now=0, missing=True)
    assert failures == (0 if unlisted else 1), "if no list has it, either, that is no failure"


def test_a_whole_set_without_a_resource_is_later_than_the_entry_for_which_it_is_fetched() -> None:
    entry = Resource("a", lastmod=at(1))
    pending, (one,) = dispatched(Change("a", ChangeType.UPDATED, at(1), entry))
    assert not pending.drop_unlisted(at(50), set()), "if the server has it, it has to be deleted"
    assert pending.failed(one, now=0, missing=True) == 0
    assert len(pending) == 0


def test_a_lost_resource_that_is_being_fetched_is_kept_since_the_comparison_finds_it() -> None:
    pending = pending_of()
    pending.announce(verification(change("a", 1), at(1)), since=UNWAITED)
    (one,) = pending.dispatch(10, now=0)
    assert pending.drop_unlisted(at(50), set())
    assert pending.failed(one, now=0, missing=True) == 1


@pytest.mark.parametrize("announced", [1, 51])
def test_a_whole_set_without_a_resource_does_not_settle_it_while_it_is_removed(
    announced: int,
) -> None:
    pending, (one,) = dispatched(change("a", announced))
    pending.failed(one, 0, missing=True)
    pending.add(replace(one, change=ChangeType.DELETED), missing=one)
    pending.dispatch(10, now=0)
    assert not pending.drop_unlisted(at(50), set())


@pytest.mark.parametrize(("announced", "unlisted"), [(50, True), (51, False)])
def test_a_whole_set_settles_only_what_was_announced_after_it_while_it_is_fetched(
    announced: int, unlisted: bool
) -> None:
    entry = Resource("a", change=ChangeType.UPDATED, datetime=at(announced))
    pending, _ = dispatched(replace(change("a", announced), resource=entry))
    assert pending.drop_unlisted(at(50), set()) is not unlisted
    assert pending.is_unlisted("a") is unlisted


def test_a_whole_set_does_not_count_against_a_missing_resource_that_is_verified_as_of_later() -> (
    None
):
    pending, (one,) = dispatched(verification(change("a", 1), at(51)))
    pending.failed(one, now=0, missing=True)
    pending.drop_unlisted(at(50), set())
    assert not pending.is_unlisted("a")


def test_only_what_failed_often_enough_counts_as_failing() -> None:
    pending = pending_of()
    for failures, name in enumerate("abc"):
        pending.add(change(name, 1))
        for _ in range(failures):
            (one,) = [one for one in pending.dispatch(9, now=99) if one.uri == name]
            pending.failed(one, now=0)
    assert [one.uri for one in pending.failing()] == ["b", "c"]
    assert [one.uri for one in pending.failing(2)] == ["c"]


def test_a_resource_is_missing_since_the_first_of_its_404s_in_a_row() -> None:
    pending = pending_of(change("a", 1))
    since = []
    for now, missing in ((10, True), (20, True), (30, False), (40, True), (50, True)):
        (one,) = pending.dispatch(9, now=now + 9)
        pending.failed(one, now, missing=missing)
        since.append(pending.missing_since(one))
    assert since == [10, 10, None, 40, 40]
    pending.add(change("a", 2))
    (one,) = pending.dispatch(9, now=99)
    pending.failed(one, 60, missing=True)
    assert pending.missing_since(one) == 60, "another change begins again"
    pending = pending_of()
    pending.watch(change("a", 3), due=0, removed=True)
    (one,) = pending.dispatch(9, now=0)
    pending.failed(one, 70, missing=True)
    assert pending.missing_since(one) is None, "the copy does not have it any more"


def test_a_change_that_supersedes_a_failing_one_in_flight_is_tried_at_once() -> None:
    pending, (old,) = dispatched(change("a", 1))
    for now in range(5):
        pending.failed(old, 100.0 * now)
        pending.dispatch(10, 100.0 * now + 99)
    new = change("a", 2)
    pending.add(new)
    assert pending.failed(old, 500.0) == 0
    assert pending.dispatch(10, 500.0) == [new]


@pytest.mark.parametrize(("third", "failures"), [(1_599, 3), (1_600, 1)])
def test_the_third_failure_of_superseded_changes_counts_with_those_of_the_last_ten_minutes(
    third: float, failures: int
) -> None:
    pending, counted = pending_of(change("a", 0)), []
    for seconds, now in enumerate((1_000, 1_001, third), start=1):
        (one,) = pending.dispatch(9, now)
        pending.add(change("a", seconds))
        counted.append(pending.failed(one, now))
    assert counted == [0, 0, failures]


def test_an_answer_to_a_superseded_change_is_no_failure_of_the_new_one() -> None:
    pending, (old,) = dispatched(change("a", 1))
    pending.add(change("a", 2))
    assert pending.failed(old, now=0) == 0
    assert pending.in_flight == 0
    (new,) = pending.dispatch(9, now=0)
    assert new == change("a", 2)
    assert pending.applied(new)
    assert pending.failed(new, now=0) == 0, "it is answered already"
    assert pending.in_flight == 0


@pytest.mark.parametrize(
    ("again", "failures"),
    [
        (change("a", 1), 1),
        (replace(change("a", 1), change=ChangeType.CREATED), 0),
        (replace(change("a", 1), check=CheckMethod.COMPARE), 0),
    ],
    ids=["equal", "another kind of change", "to be compared"],
)
def test_a_change_supersedes_the_one_in_flight_unless_it_is_equal(
    again: Change, failures: int
) -> None:
    pending, (taken,) = dispatched(change("a", 1))
    pending.add(again)
    assert pending.failed(taken, now=0) == failures


@pytest.mark.parametrize(
    ("new", "unlisted"),
    [
        (change("a", 60), False),
        (replace(change("a", 60), pushed=True), False),
        (replace(change("a", 60), check=CheckMethod.FETCH), False),
        (verification(replace(change("a", 60), pushed=True), at(60)), True),
    ],
    ids=["listed", "pushed", "fetched", "a pushed change is verified"],
)
def test_a_later_announcement_supersedes_that_a_whole_set_lacks_a_resource(
    new: Change, unlisted: bool
) -> None:
    pending, _ = dispatched(replace(change("a", 1), pushed=True))
    pending.drop_unlisted(at(50), set())
    pending.add(new)
    assert pending.is_unlisted("a") is unlisted


def test_a_verification_is_tried_at_once_with_the_links_of_an_entry() -> None:
    links = (Link("alternate", "http://a.example/b"),)
    pending = pending_of()
    pending.watch(FETCHED, due=9)
    pending.add(change("b", 1), due=9)
    for name in "ab":
        pending.add_links(Resource(name))
    pending.add_links(Resource("b", links=links))
    assert pending.dispatch(9, now=0) == [], "nothing new to try"
    pending.add_links(Resource("a", links=links))
    (taken,) = pending.passed
    assert taken == replace(FETCHED, resource=replace(FETCHED.resource, links=links))
    assert pending.dispatch(9, now=0) == [taken]
    pending.add_links(Resource("a"))
    assert pending.dispatch(9, now=0) == [], "it is in flight"
    pending.applied(taken)
    assert pending.dispatch(9, now=0) == [FETCHED]


def test_parked_changes_wait_for_their_release() -> None:
    pending = pending_of()
    pending.add(change("a", 1), parked=True)
    pending.add(change("b", 1), parked=True)
    assert pending.dispatch(9, now=99) == []
    pending.add(change("a", 2), parked=True)
    assert pending.dispatch(9, now=99) == [], "a later change does not release it either"
    pending.release()
    assert [one.uri for one in pending.dispatch(9, now=0)] == ["a", "b"]


def test_a_change_that_does_not_wait_makes_a_parked_one_of_its_resource_ready_once() -> None:
    pending = pending_of()
    for name in "abc":
        pending.announce(change(name, 1), parked=True)
    pending.announce(change("b", 2))
    pending.announce(change("c", 2), due=9)
    (begun,) = pending.dispatch(9, now=0)
    assert begun == change("b", 2)
    pending.failed(begun, now=0)
    pending.release()
    assert [one.uri for one in pending.dispatch(9, now=0)] == ["a"], "b waits until it is retried"
    assert [one.uri for one in pending.dispatch(9, now=9)] == ["b", "c"]


def test_changes_pass_through_the_backlog_except_those_of_what_is_parked_here() -> None:
    actions = ActionList()
    pending = PendingChanges(Retry(first=1, most=8), Random(1), actions, most_parked=1)
    pending.add(change("ready", 1))
    for name in ("parked", "in the backlog", "parked"):
        pending.announce(change(name, 1), parked=True)
    assert len(pending.backlog) == 1
    (ready,) = pending.dispatch(9, now=0)
    pending.failed(ready, now=0)
    assert not pending.announce(ready), "that was tried already"
    assert pending.announce(change("ready", 2))
    pending.release()
    assert pending.announce(change("parked", 2))
    pending.add(change("new", 1))
    pending.announce(change("new", 2))
    pending.use_backlog(9)
    takes = [action for action in actions if isinstance(action, TakeBacklog)]
    assert [take.uris for take in takes if take.uris] == [("ready", "parked", "new")]


def test_changes_that_pass_through_the_backlog_wait_until_they_are_due_if_they_need_a_get() -> None:
    actions = ActionList()
    pending = PendingChanges(Retry(first=1, most=8), Random(1), actions, most_parked=0)
    pending.announce(change("z", 1), parked=True)
    changes = [change("a", 1), compared("b", 1, None)]
    for one in changes:
        pending.announce(one, at_once=True, due=7)
    pending.use_backlog(9)
    store, take = actions
    assert isinstance(store, StoreBacklog)
    assert isinstance(take, TakeBacklog)
    pending.taken(store, BacklogExtent(3, at(1)), [])
    pending.taken(take, BacklogExtent(1, at(1)), [(one, one.at) for one in changes])
    assert [one.uri for one in pending.dispatch(9, now=6)] == ["b"]
    assert [one.uri for one in pending.dispatch(9, now=7)] == ["a"]


def test_a_change_that_fetches_supersedes_a_later_one_and_the_next_is_compared() -> None:
    fetching = replace(change("a", 5), check=CheckMethod.FETCH)
    _, (one,) = dispatched(change("a", 9), fetching, change("a", 7))
    assert (one.at, one.check) == (at(7), CheckMethod.COMPARE)


def test_a_watched_resource_does_not_hold_up_t() -> None:
    pending = pending_of(change("a", 1))
    pending.watch(replace(change("b", 0), check=CheckMethod.FETCH), due=5)
    assert [pending.is_watched(name) for name in "abc"] == [False, True, False]
    assert [one.uri for one in pending.watched] == ["b"]
    assert pending.low_water() == at(1)
    assert pending.wakeup() == 5


def test_a_watched_resource_is_retried_ever_less_often() -> None:
    pending, now, waits = pending_of(), 0.0, []
    pending.watch(change("a", 1), due=0)
    for _ in range(5):
        (one,) = pending.dispatch(9, now=now)
        pending.failed(one, now, longest=100)
        waits.append(pending.retried_at(one) - now)
        now += waits[-1]
    assert waits == [16, 32, 64, 100, 100]


def test_if_another_change_follows_one_that_t_has_passed_the_current_version_is_stored() -> None:
    pending = pending_of()
    pending.watch(change("a", 1), due=5)
    assert pending.passed == pending.watched == (change("a", 1),)
    pending.add(change("a", 9))
    assert pending.passed == (replace(change("a", 9), check=CheckMethod.FETCH),)
    assert pending.watched == ()


@pytest.mark.parametrize(
    ("since", "watch", "watched"),
    [(None, True, True), (None, False, False), (UNWAITED, True, False)],
)
def test_t_passes_what_was_given_up_unless_it_does_not_wait_for_that_anyway(
    since: Instant | None, watch: bool, watched: bool
) -> None:
    pending = pending_of()
    pending.add(change("a", 1), since)
    assert not pending.all_given_up
    pending.give_up("a", watch=watch)
    assert pending.all_given_up
    assert pending.is_watched("a") is watched


def test_a_resource_removed_because_of_a_404_is_still_announced() -> None:
    pending, (one,) = dispatched(change("a", 1))
    pending.add(compared("b", 1, None))
    assert [pending.announced(name) for name in "abc"] == [at(1), None, None]
    pending.failed(one, 0, missing=True)
    pending.add(replace(one, change=ChangeType.DELETED), missing=one)
    assert pending.announced("a") == at(1)


FETCHED = verification(change("a", 1), at(1))


@pytest.mark.parametrize(
    ("before", "then", "is_new"),
    [
        ([change("a", 1)], change("a", 1), False),
        ([change("a", 1)], change("a", 2), True),
        ([change("a", 1)], FETCHED, True),
        ([change("a", 1), FETCHED], change("a", 1), False),
        ([FETCHED], FETCHED, False),
        ([FETCHED], replace(FETCHED, resource=Resource("a", hash="md5:1")), True),
        ([FETCHED], replace(FETCHED, change=ChangeType.DELETED), True),
    ],
)
def test_only_what_was_not_tried_already_ends_the_backoff(
    before: list[Change], then: Change, is_new: bool
) -> None:
    pending, (one,) = dispatched(*before)
    pending.failed(one, now=0)
    assert pending.add(then) is is_new
    assert pending.dispatch(9, now=0) == ([then] if is_new else [])


def test_a_whole_set_drops_only_what_it_contradicts() -> None:
    old = change("a change that a list announced", 49)
    pending = pending_of(
        change("an old entry of an older set", 49),
        change("an entry as of the same time", 50),
        replace(old, resource=replace(old.resource, change=ChangeType.UPDATED)),
    )
    for name, seconds in (
        ("watched and listed", 50),
        ("watched and unlisted", 50),
        ("watched and announced later", 51),
    ):
        missing = replace(change(name, seconds), check=CheckMethod.FETCH)
        pending.watch(missing, due=999, removed=True)
    pending.add(change("a resource that the copy has lost", 49), UNWAITED)
    pushed = change("watched and announced by push only", 51)
    pending.watch(verification(pushed, pushed.at), due=999, removed=True)
    assert pending.drop_unlisted(at(50), {"watched and listed"})
    assert not pending.is_unlisted(old.uri), "it was not requested yet"
    assert {one.uri for one in pending.dispatch(9, now=9_999)} == {
        "an entry as of the same time",
        "a change that a list announced",
        "a resource that the copy has lost",
        "watched and listed",
        "watched and announced later",
    }


@pytest.mark.parametrize(
    ("hashes", "check"),
    [
        (("md5:00", "md5:11"), CheckMethod.FETCH),
        (("md5:00", None), CheckMethod.FETCH),
        (("md5:00", "md5:00"), CheckMethod.DATE),
    ],
)
def test_changes_of_which_a_coarse_datetime_hides_the_order_are_decided_by_a_request(
    hashes: tuple[str | None, str | None], check: CheckMethod
) -> None:
    changes = [
        Change("a", ChangeType.UPDATED, moment, Resource("a", datetime=moment, hash=text))
        for moment, text in zip((at(0).replace(fold=1), at(30)), hashes, strict=True)
    ]
    for order in (changes, changes[::-1]):
        _, (found,) = dispatched(*order)
        assert found.check is check


def test_t_waits_for_the_earliest_announcement_of_a_change_that_has_failed() -> None:
    a = change("a", 5)
    pending, _ = dispatched(a)
    pending.failed(a, now=0)
    for since in (at(2), at(4)):
        assert not pending.add(a, since=since), "nothing new to try"
        assert pending.low_water() == at(2)
