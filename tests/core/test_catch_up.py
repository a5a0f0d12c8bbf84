"""When documents are read, and what is concluded, document by document."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, NotFound, Unavailable
from rsnotify.format.coverage import EARLIEST, Change, CheckMethod
from rsnotify.format.datetimes import Instant, postponed
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import (
    Action,
    Apply,
    Compare,
    Discover,
    DocumentKind,
    Fetch,
    FindUnlisted,
    ForgetDatetimes,
    LogNote,
)
from rsnotify.sync.closed_lists import ClosedLists, KnownLists
from rsnotify.sync.frontiers import LONGEST_LEAP
from rsnotify.sync.progress import Progress
from tests.core.source import EPOCH, at
from tests.core.wire import Wire
from tests.core.world import PACE

BEGUN = Progress(EPOCH, EPOCH)
LISTS = Offer(change_list="changes")
ARCHIVED = Offer(change_list="changes", change_list_archive="archive")
ALL = Offer(change_list="changes", resource_list="resources")


def changes(from_: float, *seconds: float) -> Document:
    listed = (
        Resource(f"{second}", change=ChangeType.UPDATED, datetime=at(second)) for second in seconds
    )
    return Document(Capability.CHANGE_LIST, tuple(listed), from_=at(from_))


def answer(wire: Wire, document: Document, sent: Instant | None = None) -> list[Action]:
    (fetch,) = [action for action in wire.actions if isinstance(action, Fetch)]
    wire.actions = wire.follower.fetched(fetch, document, wire.now, sent)
    return wire.actions


def resource_list(seconds: float, *names: str, index: bool = False) -> Document:
    resources = tuple(map(Resource, names))
    return Document(Capability.RESOURCE_LIST, resources, at=at(seconds), index=index)


def archive(*members: Resource) -> Document:
    return Document(Capability.CHANGE_LIST_ARCHIVE, members)


def forgotten(actions: list[Action]) -> list[Instant]:
    return [action.after for action in actions if isinstance(action, ForgetDatetimes)]


def applied(actions: list[Action]) -> list[Change]:
    return [one for action in actions if isinstance(action, Apply) for one in action.changes]


def test_the_first_pull_shows_which_stored_datetimes_are_later_than_any_can_be() -> None:
    wire = Wire(LISTS, BEGUN)
    assert forgotten(answer(wire, changes(0), sent=at(7))) == [postponed(at(7), LONGEST_LEAP)]
    wire.wait()
    assert forgotten(answer(wire, changes(0), sent=at(9))) == []


def test_datetimes_are_compared_with_the_latest_instant_that_is_known() -> None:
    known = Wire(LISTS, BEGUN)
    assert forgotten(answer(known, changes(0))) == [postponed(EPOCH, LONGEST_LEAP)]


def test_without_a_t_datetimes_later_than_the_whole_set_are_forgotten() -> None:
    # The clock of the Source may have gone back since an interrupted first copy.
    listed = Wire(ALL)
    answer(listed, resource_list(3, "part", index=True), sent=at(1))
    assert forgotten(answer(listed, resource_list(3))) == [at(1)]
    ahead = Wire(ALL)
    assert forgotten(answer(ahead, resource_list(9), sent=at(5))) == [at(5)]


def test_a_baseline_shows_once_which_stored_datetimes_are_later_than_any_can_be() -> None:
    wire, part = Wire(ALL), resource_list(3)
    assert forgotten(answer(wire, resource_list(3, "one", "two", "three", index=True))) == []
    assert forgotten(answer(wire, part)) == [], "the time of the Source is not known"
    wire.actions = wire.follower.differing([], wire.now)
    assert forgotten(answer(wire, part, sent=at(9))) == [at(3)]
    wire.actions = wire.follower.differing([], wire.now)
    assert forgotten(answer(wire, part, sent=at(9))) == []


def test_an_announced_change_is_searched_for_a_limited_number_of_times() -> None:
    wire = Wire(LISTS, BEGUN)
    announced = Document(
        Capability.CHANGE_NOTIFICATION, changes(5, 6).resources, from_=at(5), until=at(6)
    )
    for _ in range(2):
        wire.follower.fragment(announced, wire.now)
        reads = 0
        while not any(isinstance(action, LogNote) for action in wire.actions):
            if wire.requested():
                reads += 1
                answer(wire, changes(0))
            else:
                wire.wait()
        assert reads == PACE.lag_tries + 1
        wire.actions.clear()


def test_a_dump_that_has_nothing_new_is_not_read_again_at_once() -> None:
    offer = Offer(capability_list="all", change_list="changes", resource_dump="dump")
    wire = Wire(offer, BEGUN, compare=0.0)
    reads = []
    for _ in range(4):
        reads += wire.requested()
        is_dump = reads[-1] is DocumentKind.RESOURCE_DUMP
        answer(wire, Document(Capability.RESOURCE_DUMP, at=at(-1)) if is_dump else changes(0))
        if not wire.requested():
            assert wire.follower.level
            wire.wait()
    assert reads == [DocumentKind.RESOURCE_DUMP, DocumentKind.CHANGE_LIST] * 2


def test_a_source_that_offers_nothing_is_read_again_after_the_longest_backoff() -> None:
    wire = Wire(Offer(), BEGUN)
    assert wire.requested() == []
    assert wire.follower.wakeup == PACE.retry.most


@pytest.mark.parametrize("has_gap", [True, False])
def test_a_new_resource_list_is_read_at_once_if_it_may_close_a_gap(has_gap: bool) -> None:
    wire = Wire(LISTS, BEGUN)
    answer(wire, changes(5 if has_gap else 0, 6))
    if has_gap:
        answer(wire, changes(5, 6))  # it is skipped
    assert wire.requested() == []
    wire.follower.push_up(wire.now)
    wire.wait()
    answer(wire, changes(5 if has_gap else 0, 6))
    wakeup = wire.follower.wakeup or 0.0
    assert (wakeup <= wire.now + PACE.poll) is has_gap, "push cannot close it"
    wire.follower.offered(LISTS, wire.now)
    assert wire.follower.wakeup == wakeup, "it is the same offer"
    wire.follower.offered(ALL, wire.now)
    assert (wire.follower.wakeup == wakeup) is not has_gap
    wire.actions = wire.follower.tick(wire.now)
    assert wire.requested() == [DocumentKind.RESOURCE_LIST] * has_gap


def test_a_gap_is_reported_with_what_the_source_should_add_to_its_documents() -> None:
    wire = Wire(LISTS, BEGUN)
    members = (Resource("one"), Resource("two"))
    answer(wire, Document(Capability.CHANGE_LIST, members, index=True, from_=at(5)))
    assert [doubt for doubt in wire.follower.doubts if "changes should state the from" in doubt]


def test_a_dump_that_was_offered_before_is_not_tried_again_during_a_baseline() -> None:
    offer = Offer(resource_list="resources", resource_dump="dump")
    wire = Wire(offer)
    while wire.requested() == [DocumentKind.RESOURCE_DUMP]:
        wire.answer(NotFound("dump", "rotated away"))
        if not wire.requested():
            wire.wait()
    answer(wire, resource_list(3, "one", "two", index=True))
    listed = resource_list(3, *map(str, range(3 * PACE.in_flight)))
    answer(wire, listed)
    wire.follower.offered(offer, wire.now)
    wire.actions = wire.follower.differing(listed.resources, wire.now)
    assert wire.requested() == [DocumentKind.RESOURCE_LIST]


def test_a_first_copy_may_consist_of_all_changes_since_the_beginning_of_the_calendar() -> None:
    wire = Wire(LISTS)
    answer(wire, replace(changes(0, 6), from_=EARLIEST))
    assert [change.uri for change in applied(wire.actions)] == ["6"]


@pytest.mark.parametrize("from_", [at(5), None])
def test_a_first_copy_goes_on_after_a_restart_if_the_first_change_of_all_had_failed(
    from_: Instant | None,
) -> None:
    wire, listed = Wire(LISTS), replace(changes(5, 5, 6), from_=from_)
    answer(wire, listed)
    answer(wire, listed)  # read again, as nothing joins the beginning of the calendar
    first, second = applied(wire.actions)
    wire.follower.failed(first, Unavailable("5", "no answer"), wire.now)
    wire.follower.applied([second], wire.now)
    restarted = Wire(LISTS, wire.follower.progress)
    answer(restarted, listed)
    assert [change.uri for change in applied(restarted.actions)] == ["5", "6"]
    assert restarted.follower.state.frontiers.uncovered_gap is None


@pytest.mark.parametrize(
    ("until", "sent", "closed"),
    [
        (at(6), None, True),
        (at(6), at(6), True),
        (at(6), at(1), False),  # it cannot have all changes up to then
        (None, None, False),
    ],
)
def test_the_successor_of_a_closed_list_is_discovered(
    until: Instant | None, sent: Instant | None, closed: bool
) -> None:
    wire = Wire(LISTS, BEGUN)
    assert (Discover() in answer(wire, replace(changes(0, 6), until=until), sent)) is closed


def test_an_archive_that_can_only_show_that_a_list_has_changed_may_be_out_of_reach() -> None:
    wire = Wire(ARCHIVED, BEGUN)
    answer(wire, changes(0))
    assert wire.requested() == [DocumentKind.CHANGE_LIST_ARCHIVE]
    wire.answer(Unavailable("archive", "busy"))
    assert wire.follower.level


def test_no_successor_is_discovered_while_the_change_list_itself_is_broken() -> None:
    wire = Wire(ARCHIVED, BEGUN)
    for _ in range(PACE.baseline_after):
        wire.answer(ContentMismatch("changes", "it is truncated"))
        while not wire.requested():
            wire.wait()
    answer(wire, archive(Resource("closed", from_=EPOCH)))
    assert Discover() not in answer(wire, replace(changes(0, 6), until=at(6)))
    assert wire.follower.failures.count == PACE.baseline_after


def test_a_resource_is_fetched_once_however_many_lists_name_it() -> None:
    wire = Wire(ARCHIVED, BEGUN)
    assert applied(answer(wire, changes(9))) == []
    answer(wire, archive(Resource("closed", from_=EPOCH, until=at(9))))
    assert applied(answer(wire, replace(changes(0, 6), until=at(9)))) == [], "more may follow"
    last = Resource("6", change=ChangeType.UPDATED, datetime=at(10))
    following = applied(answer(wire, replace(changes(9), resources=(last,))))
    assert [(change.uri, change.at) for change in following] == [("6", at(10))]


def test_a_package_of_changes_is_no_routine() -> None:
    wire = Wire(Offer(change_dump="dump"), BEGUN)
    dump = Document(Capability.CHANGE_DUMP, from_=EPOCH)
    answer(wire, dump)
    assert wire.follower.level
    wire.wait()
    assert wire.follower.level
    answer(wire, replace(dump, resources=(Resource("package", from_=EPOCH, until=at(6)),)))
    assert wire.requested()
    assert not wire.follower.level


def test_a_document_that_fails_twice_for_the_same_reason_is_one_warning() -> None:
    wire = Wire(LISTS, BEGUN)
    answer(wire, changes(0, 0))
    wire.actions = wire.follower.applied([], wire.now)
    levels, warnings = [], []
    for reason in ("busy", "busy", "broken"):
        while not wire.requested():
            wire.wait()
        wire.answer(Unavailable("changes", reason))
        levels.append(wire.follower.level)
        warnings += [note.warning for note in wire.actions if isinstance(note, LogNote)]
    assert warnings == [True, False, True]
    assert levels == [False, False, False]


def test_a_comparison_that_fails_is_reported_and_the_change_list_is_read_instead() -> None:
    wire = Wire(ALL, BEGUN, compare=0.0)
    assert wire.requested() == [DocumentKind.RESOURCE_LIST]
    wire.answer(Unavailable("resources", "busy"))
    assert wire.requested() == [DocumentKind.CHANGE_LIST]
    (warning,) = [
        one for one in wire.actions if isinstance(one, LogNote) and "compared" in one.text
    ]
    assert warning.text == "the copy could not be compared with the whole set: resources: busy"
    assert warning.warning
    answer(wire, changes(0))
    assert wire.follower.level


def test_what_the_copy_has_lost_lacks_a_comparison_until_one_succeeds() -> None:
    wire = Wire(ALL, BEGUN)
    answer(wire, changes(0))
    follower = wire.follower
    assert follower.state.settled
    wire.wait()
    wire.actions += follower.compare_lost(wire.now)
    answer(wire, changes(0))
    assert not follower.state.settled, "only this pull has ended"
    for is_possible in (False, True):
        wire.actions = follower.compare_lost(wire.now)
        assert follower.catch_up.is_comparing
        assert not follower.state.settled
        while not wire.requested():
            wire.wait()
        assert wire.requested() == [DocumentKind.RESOURCE_LIST]
        if is_possible:
            answer(wire, resource_list(3))
            wire.actions = follower.differing([], wire.now)
            wire.actions = follower.unlisted([], wire.now)
        else:
            wire.answer(Unavailable("resources", "busy"))
        assert follower.catch_up.lacks_comparison is not is_possible
        answer(wire, changes(0))
        assert follower.state.settled
        assert not follower.catch_up.is_comparing


def test_without_a_resource_list_the_copy_is_compared_with_the_next_change_list() -> None:
    wire = Wire(LISTS, Progress(at(9), at(9)))
    compared = []
    for has_lost in (False, False, True):
        if has_lost:
            wire.actions = wire.follower.compare_lost(wire.now)
            assert not wire.follower.catch_up.is_comparing
        while not wire.requested():
            wire.wait()
        found = applied(answer(wire, changes(0, 1)))
        compared.append([one.uri for one in found if one.check is CheckMethod.COMPARE])
        for one in found:
            wire.actions = wire.follower.applied([one], wire.now)
    assert compared == [["1"], [], ["1"]]


@pytest.mark.parametrize("until", [at(7), None], ids=["closed", "open"])
def test_all_entries_of_the_first_change_list_are_compared_whether_it_is_closed_or_open(
    until: Instant | None,
) -> None:
    wire = Wire(LISTS, Progress(at(5), at(5)))
    listed = applied(answer(wire, replace(changes(0, 3, 6), until=until)))
    assert [(one.uri, one.check) for one in listed] == [
        ("3", CheckMethod.COMPARE),
        ("6", CheckMethod.COMPARE),
    ]


def test_an_entry_inserted_into_a_closed_list_leaves_a_doubt_until_it_is_applied() -> None:
    closed = ClosedLists(KnownLists())
    before = Resource("closed", from_=EPOCH, until=at(4), length=1)
    closed.record([before], None, has_reread=False, has_skipped=False)
    wire = Wire(ARCHIVED, Progress(at(5), at(5), closed=closed.known))
    answer(wire, changes(4))
    levels = []
    for document in (
        archive(replace(before, length=2)),
        replace(changes(0, 3), until=at(4)),
        changes(4),
    ):
        answer(wire, document)
        levels.append(wire.follower.level)
    wire.actions = wire.follower.applied(applied(wire.actions), wire.now)
    assert ([*levels, wire.follower.level], wire.requested()) == ([False, False, False, True], [])


def test_entries_of_a_reread_closed_list_are_not_applied_before_the_later_lists_are_read() -> None:
    closed = ClosedLists(KnownLists())
    before = [Resource(f"{n}", from_=at(n), until=at(n + 2), length=1) for n in (0, 2)]
    closed.record(before, None, has_reread=False, has_skipped=False)
    wire = Wire(ARCHIVED, Progress(at(5), at(5), closed=closed.known))
    changed = archive(replace(before[0], length=2), before[1])
    answer(wire, changes(4))
    answer(wire, changed)
    answer(wire, replace(changes(0, 1), until=at(2)))
    wire.answer(Unavailable("2", "busy"))
    assert applied(wire.actions) == []
    while not wire.requested():
        wire.wait()
    for document in (
        changes(4),
        changed,
        replace(changes(0, 1), until=at(2)),
        replace(changes(2, 3), until=at(4)),
        changes(4),
    ):
        answer(wire, document)
    assert [change.uri for change in applied(wire.actions)] == ["1", "3"]


def test_an_answer_to_an_earlier_request_is_not_used() -> None:
    wire = Wire(LISTS, BEGUN)
    (fetch,) = [action for action in wire.actions if isinstance(action, Fetch)]
    answer(wire, changes(0))
    assert wire.follower.fetched(fetch, changes(0, 1), wire.now) == []
    assert wire.follower.fetch_failed(fetch, Unavailable("changes", "busy"), wire.now) == []
    assert wire.follower.level


def test_the_change_list_is_read_after_a_fragment_without_a_beginning() -> None:
    wire = Wire(LISTS, BEGUN)
    answer(wire, changes(0))
    pushed = replace(changes(0, 5), capability=Capability.CHANGE_NOTIFICATION, from_=None)
    wire.actions = wire.follower.fragment(pushed, wire.now)
    assert [change.uri for change in applied(wire.actions)] == ["5"]
    assert wire.follower.wakeup == wire.now + PACE.gap_grace


@pytest.mark.parametrize("offer", [LISTS, ALL])
def test_an_empty_change_list_without_datetimes_proves_nothing_and_hides_nothing(
    offer: Offer,
) -> None:
    wire = Wire(offer, BEGUN)
    for _ in range(2):
        answer(wire, Document(Capability.CHANGE_LIST))
        assert wire.follower.level
        assert wire.follower.known == EPOCH
        wire.wait()
    (change,) = applied(answer(wire, changes(0, 5)))
    assert change.uri == "5"


def test_after_an_old_copy_of_the_change_list_the_current_one_corrects_its_entries() -> None:
    old, later = changes(0, 1), changes(0, 5)
    deletion = Resource("1", change=ChangeType.DELETED, datetime=at(3))
    new = replace(old, resources=(*old.resources, deletion, *later.resources))
    wire = Wire(LISTS, BEGUN)
    found = []
    for document in (new, new, old, new, old, new):
        while not wire.requested():
            wire.wait()
        entries = applied(answer(wire, document))
        found.append([change.change for change in entries if change.uri == "1"])
        wire.actions = wire.follower.applied(entries, wire.now)
    deleted, updated = [ChangeType.DELETED], [ChangeType.UPDATED]
    assert found == [deleted, [], updated, deleted, [], []]


def test_a_comparison_that_an_outage_of_the_store_has_delayed_is_repeated() -> None:
    wire = Wire(Offer(resource_list="resources"), Progress(at(3), at(3)))
    levels = []
    for has_failed in (True, False):
        answer(wire, resource_list(5))
        wire.actions = wire.follower.differing([], wire.now)
        wire.now += 200.0
        if has_failed:
            wire.follower.resumed(wire.now)
        wire.actions = wire.follower.unlisted([], wire.now)
        levels.append(wire.follower.level)
        while not wire.requested():
            wire.wait()
    assert levels == [False, True]


def poll(wire: Wire, listed: Document, whole: Document, sent: Instant) -> bool:
    """Answer all requests of the next poll, and return whether the copy is level then."""
    while not wire.requested():
        wire.wait()
    while wire.actions:
        follower, actions = wire.follower, wire.actions
        if kinds := wire.requested():
            answer(wire, whole if kinds == [DocumentKind.RESOURCE_LIST] else listed, sent)
        elif any(isinstance(action, Compare) for action in actions):
            wire.actions = follower.differing([], wire.now)
        elif any(isinstance(action, FindUnlisted) for action in actions):
            wire.actions = follower.unlisted([], wire.now)
        else:
            wire.actions = follower.applied(applied(actions), wire.now) if applied(actions) else []
    return wire.follower.level


def test_a_change_list_without_from_that_loses_its_entries_leaves_a_gap_even_in_later_runs() -> (
    None
):
    listed, emptied = replace(changes(0, 3), from_=None), Document(Capability.CHANGE_LIST)
    wire = Wire(ALL, Progress(at(3), at(3)))
    assert poll(wire, listed, resource_list(2), sent=at(4))
    for _ in range(2):
        assert not poll(wire, emptied, resource_list(5), sent=at(6))
        assert not poll(wire, emptied, resource_list(5), sent=at(7))
        wire = Wire(ALL, wire.follower.progress)
    assert not poll(wire, emptied, resource_list(7), sent=at(8))
    assert poll(wire, emptied, resource_list(8), sent=at(9))
    assert poll(wire, emptied, resource_list(8), sent=at(10))
    assert poll(Wire(ALL, wire.follower.progress), emptied, resource_list(8), sent=at(11))
