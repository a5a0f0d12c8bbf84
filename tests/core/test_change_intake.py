"""What a follower remembers of the documents that it read."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.format.coverage import Change, Coverage, change_key
from rsnotify.format.datetimes import LATEST, Instant
from rsnotify.format.model import ChangeType, Resource
from rsnotify.sync import change_intake
from rsnotify.sync.actions import DocumentKind, Fetch, TakeBacklog
from rsnotify.sync.change_intake import ChangeIntake
from rsnotify.sync.pace import Pace
from rsnotify.sync.progress import Progress
from rsnotify.sync.sync_state import SyncState
from tests.core.source import EPOCH, at

DEFAULT = Pace()


def test_the_last_packages_that_were_read_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_intake, "_MAX_PACKAGES", 2)
    state = SyncState(Progress(EPOCH, EPOCH), Pace(hold=10), Random(1))
    intake = ChangeIntake(state)
    for name in "abac":
        package = Resource(f"http://a.example/{name}.zip")
        fetch = Fetch(package.uri, DocumentKind.CHANGE_DUMP, package)
        coverage = Coverage(EPOCH, EPOCH, closed=True, ordered=True, changes=())
        intake.add(fetch, coverage, 0.0, is_open=False, more=False, again=False)
    assert list(intake.packages) == ["http://a.example/a.zip", "http://a.example/c.zip"]


LIST = Fetch("http://a.example/list.xml", DocumentKind.CHANGE_LIST)
PACKAGE = Fetch("http://a.example/1.zip", DocumentKind.CHANGE_DUMP, Resource("http://a/1.zip"))


def change(entry: str, package: str | None = None, **stated: Any) -> Change:
    """Return an entry like `a1`: the name of a resource, and when it changed."""
    when = at(int(entry[1:]))
    resource = Resource(entry[0], datetime=when, **stated)
    return Change(entry[0], ChangeType.UPDATED, when, resource, package)


def covering(
    entries: str, *, from_: int = 0, until: int | None = None, package: str | None = None
) -> Coverage:
    """Return an open list, or with `until` a closed one."""
    changes = tuple(change(entry, package) for entry in entries.split())
    end = changes[-1].at if until is None else at(until)
    return Coverage(at(from_), end, closed=until is not None, ordered=True, changes=changes)


class Copy:
    """What was added, for a copy whose lists were confirmed up to second 5."""

    def __init__(self, pace: Pace = DEFAULT) -> None:
        self.state = SyncState(Progress(at(5), at(5)), pace, Random(1))
        self.intake = ChangeIntake(self.state)

    def read(
        self,
        coverage: Coverage,
        fetch: Fetch = LIST,
        *,
        now: float = 0,
        is_open: bool = True,
        more: bool = False,
        again: bool = False,
    ) -> list[Change]:
        self.intake.add(fetch, coverage, now, is_open=is_open, more=more, again=again)
        changes = self.state.pending.dispatch(99, now=now)
        for one in changes:
            self.state.pending.applied(one)
        return changes


def kept(changes: list[Change]) -> list[str]:
    return [f"{one.uri}{(one.at - EPOCH).seconds} {one.check.value}" for one in changes]


def test_all_entries_of_the_first_list_are_compared_and_then_only_new_ones_are_used() -> None:
    copy = Copy()
    assert kept(copy.read(covering("a3 b6"))) == ["a3 compare", "b6 compare"]
    assert kept(copy.read(covering("a3 b6"))) == []
    assert kept(copy.read(covering("a3 b6 c6 d7"))) == ["c6 date", "d7 date"]


def test_an_older_version_of_the_list_is_compared_again_unless_it_was_one_of_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_intake, "_MAX_VERSIONS", 2)
    copy = Copy()
    x, y, z = (
        replace(covering("a3 b6"), changes=(change("a3", hash=f"md5:{number}"), change("b6")))
        for number in range(3)
    )
    assert [len(copy.read(one)) for one in (x, y, x, y, z, x)] == [2, 2, 0, 0, 2, 2]


def test_only_the_last_resource_lists_that_were_compared_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_intake, "_MAX_VERSIONS", 2)
    copy = Copy()
    copy.intake.compared.extend([b"one", b"two", b"three"])
    assert list(copy.intake.compared) == [b"two", b"three"]


@pytest.mark.parametrize(("first", "expected"), [("a4", "a0 fetch"), ("a3", "a0 compare")])
def test_a_list_may_be_in_either_order_if_its_entries_are_dated_after_their_answer(
    first: str, expected: str
) -> None:
    """All entries then count as of the beginning of the list."""
    updated = [change(entry, change=ChangeType.UPDATED) for entry in (first, "a3")]
    both = tuple(replace(one, at=at(0)) for one in updated)
    assert kept(Copy().read(replace(covering("b6"), changes=both))) == [expected]


@pytest.mark.parametrize("newest_first", [False, True])
def test_an_entry_appended_with_an_old_datetime_is_fetched_after_a_comparison_too(
    newest_first: bool,
) -> None:
    copy = Copy()
    before, after = covering("a3 b6"), replace(covering("a3 b6 c4"), ordered=False)
    if newest_first:
        before, after = (replace(one, changes=one.changes[::-1]) for one in (before, after))
    copy.read(before)
    copy.intake.end_baseline(at(8), at(8), 0, deletes=False)
    assert sorted(kept(copy.read(after))) == ["a3 compare", "b6 compare", "c4 fetch"]


def test_a_list_whose_datetimes_contradict_each_other_is_compared_each_time_it_changes() -> None:
    copy = Copy()
    lists = (covering("a3 b6"), covering("a3 b6"), covering("a3 b6 c7"))
    read = [copy.read(replace(one, contradictory=True)) for one in lists]
    assert list(map(len, read)) == [2, 0, 3]


def test_of_several_changes_of_a_resource_one_dated_before_its_list_makes_it_be_fetched() -> None:
    assert kept(Copy().read(covering("a1 b6 a7", from_=2))) == ["a7 fetch", "b6 compare"]


@pytest.mark.parametrize(
    ("seconds", "stated", "expected"),
    [
        (4, {}, "c4 fetch"),
        (4, {"hash": "md5:1"}, "c4 compare"),
        (4, {"change": ChangeType.DELETED}, "c4 compare"),
        (6, {}, "c6 compare"),
        (6, {"datetime": None, "lastmod": at(6)}, "c6 fetch"),
        (7, {"datetime": None, "lastmod": at(7)}, "c7 compare"),
    ],
)
def test_an_entry_appended_with_an_old_datetime_is_fetched_once_if_it_has_no_hash(
    seconds: int, stated: dict[str, Any], expected: str
) -> None:
    kind = stated.get("change", ChangeType.UPDATED)
    resource = Resource("c", **{"datetime": at(seconds), **stated})
    appended = Change("c", kind, at(seconds), resource)
    copy, read = Copy(), replace(covering("a3 b6"), ordered=False)
    copy.read(read)
    found = []
    for more in ((appended,), (appended, change("d5")), (appended, change("d5"), change("e9"))):
        longer = replace(read, changes=read.changes + more, until=max(at(6), more[-1].at))
        found.append(kept(copy.read(longer)))
    assert expected in found[0]
    fetched = [[one for one in each if "fetch" in one] for each in found]
    assert fetched == [[expected] if "fetch" in expected else [], ["d5 fetch"], []]
    replaced = replace(read, changes=(change("x3"), *read.changes[1:], change("f4")))
    assert "f4 compare" in kept(copy.read(replaced)), "nothing shows that it was appended"


@pytest.mark.parametrize(
    ("until", "is_open", "expected"),
    [(8, False, ["a3 compare", "c4 fetch", "b5 compare"]), (5, False, []), (8, True, [])],
)
def test_an_entry_without_a_datetime_and_a_hash_is_fetched_when_its_closed_list_is_read_first(
    until: int, is_open: bool, expected: list[str]
) -> None:
    undated = Change("c", ChangeType.UPDATED, at(4), Resource("c"))
    changes = (change("a3"), undated, change("b5"))
    coverage = replace(covering("", until=until), changes=changes)
    copy = Copy()
    copy.read(coverage if is_open else covering("b5", from_=4))
    assert kept(copy.read(coverage, is_open=is_open)) == expected


@pytest.mark.parametrize("inserted", [True, False])
def test_after_a_closed_list_that_has_changed_those_that_follow_are_compared_as_well(
    inserted: bool,
) -> None:
    copy = Copy()
    copy.read(covering("a3 b6"))
    copy.read(covering("d9", from_=8))
    old = covering("a3 c4 b6" if inserted else "a3 b6", until=8)
    again = kept(copy.read(old, is_open=False, again=True))
    assert again == (["a3 compare", "c4 compare", "b6 compare"] if inserted else [])
    later = kept(copy.read(covering("d9 e10", from_=8), again=True))
    assert later == (["d9 compare", "e10 compare"] if inserted else ["e10 date"])
    copy.intake.record_closed([], has_reread=True, has_skipped=False)
    assert kept(copy.read(covering("d9 e10 f11", from_=8), again=True)) == ["f11 date"]


def test_lists_that_were_closed_before_the_open_one_began_are_known() -> None:
    copy = Copy()
    copy.read(covering("b6", from_=4))
    closed = [Resource(f"{one}", from_=at(one), until=at(one + 4)) for one in (-1, 4)]
    copy.intake.record_closed([], has_reread=False, has_skipped=True)
    assert copy.intake.closed.changed(closed) == [], "nothing is known"
    copy.intake.record_closed([], has_reread=False, has_skipped=False)
    assert copy.intake.closed.changed(closed) == closed[1:]
    assert copy.state.frontiers.closed.through == at(4)


def test_the_archive_is_due_again_only_once_another_period_has_begun() -> None:
    copy = Copy()
    copy.read(covering("b6", from_=4))
    assert copy.intake.closed.is_archive_due, "as the run begins"
    copy.intake.record_closed([], has_reread=False, has_skipped=False)
    copy.read(covering("b6 c7", from_=4))
    assert not copy.intake.closed.is_archive_due
    copy.read(covering("d9", from_=8))
    assert copy.intake.closed.is_archive_due


def test_an_unavailable_resource_is_retried_once_its_entry_is_corrected() -> None:
    copy = Copy()
    copy.read(covering("a3 b6"))
    copy.state.pending.watch(change("a3"), due=999)
    assert kept(copy.read(covering("a3 b6"))) == []
    coverage = replace(covering("a3 b6"), changes=(change("a3", length=7), change("b6")))
    for more, expected in ((True, []), (False, ["a3 compare"])):  # a later list may delete it
        copy.intake.add(LIST, coverage, 0, is_open=True, more=more, again=False)
        assert copy.state.pending.low_water() == LATEST, "T has passed it"
        assert kept(copy.state.pending.dispatch(9, now=0)) == expected


def test_an_entry_is_not_compared_with_a_later_change_that_push_has_just_announced() -> None:
    for entries, expected in (
        ("a3 b6", "a3 date"),
        ("a3 b8", "a3 fetch"),
        ("b6 a7", "a7 compare"),
        ("b6 a8", "a8 compare"),
    ):
        copy = Copy()
        copy.state.unconfirmed.add([change("a7")], now=0)
        assert expected in kept(copy.read(covering(entries)))


def test_t_waits_for_the_first_of_several_changes_of_a_resource_in_one_list() -> None:
    copy = Copy()
    copy.intake.add(LIST, covering("a6 b7 a9"), 0, is_open=True, more=False, again=False)
    assert copy.state.pending.low_water() == at(6)


def test_if_the_part_that_was_read_has_changed_all_entries_are_compared() -> None:
    copy = Copy()
    copy.read(covering("a3 b6"))
    inserted = kept(copy.read(covering("a3 c4 b6 d7")))
    assert inserted == ["a3 compare", "c4 compare", "b6 compare", "d7 compare"]
    assert kept(copy.read(covering("a3 c4 b6 d7 e8"))) == ["e8 date"], "once"


def test_of_a_list_closed_since_only_new_entries_are_used_unless_its_beginning_changed() -> None:
    closed = Fetch("http://a.example/closed-1.xml", DocumentKind.CHANGE_LIST_ARCHIVE)
    for entries, until, expected in (
        ("a3 b6 c7", 8, ["c7 date"]),
        ("a3 d4 b6 c7", 8, ["a3 compare", "d4 compare", "b6 compare", "c7 compare"]),
        ("a3 d4 b6", 6, ["a3 compare", "d4 compare", "b6 compare"]),
    ):
        copy = Copy()
        copy.read(covering("a3 b6"))
        assert kept(copy.read(covering(entries, until=until), closed, is_open=False)) == expected
        later = covering("f9", from_=until, until=9)
        assert kept(copy.read(later, closed, is_open=False)) == ["f9 date"]


def test_a_closed_list_is_compared_if_coarse_datetimes_may_be_after_what_is_confirmed() -> None:
    closed = Fetch("http://a.example/closed-1.xml", DocumentKind.CHANGE_LIST_ARCHIVE)
    coarse = at(0).replace(fold=1)
    entry = Resource("a", datetime=coarse, change=ChangeType.UPDATED)
    listed = Change("a", ChangeType.UPDATED, at(0), entry)
    coverage = Coverage(at(-9), at(8), closed=True, ordered=True, changes=(listed,))
    assert kept(Copy().read(coverage, closed, is_open=False)) == ["a0 compare"]
    exact = replace(listed, resource=replace(entry, datetime=at(0)))
    assert kept(Copy().read(replace(coverage, changes=(exact,)), closed, is_open=False)) == []


def test_content_of_a_package_that_is_out_of_order_is_fetched_instead() -> None:
    copy = Copy()
    copy.read(covering("a6"))
    read = copy.read(covering("b4 c6 d7", until=7, package=PACKAGE.uri), PACKAGE, is_open=False)
    assert [(one.uri, one.package is None) for one in read] == [
        ("b", True),
        ("c", False),
        ("d", False),
    ]


def test_changes_wait_for_the_lists_that_follow_but_not_those_of_packages() -> None:
    copy = Copy(Pace(parked=2))
    assert copy.read(covering("a6 b7"), more=True) == []
    assert copy.read(covering("a6 b7 c8"), more=True) == []
    copy.state.pending.release()
    assert len(copy.state.pending.dispatch(9, now=0)) == 2, "two wait in memory"
    assert len(copy.state.pending.backlog) == 1
    package = covering("d9", from_=8, until=9, package=PACKAGE.uri)
    assert kept(Copy().read(package, PACKAGE, is_open=False, more=True)) == ["d9 date"]


def test_only_what_is_later_than_all_before_is_news() -> None:
    copy = Copy()
    copy.read(covering("a3"))
    assert not copy.intake.has_news
    copy.read(covering("a3 b6"))
    assert copy.intake.has_news
    copy.intake.has_news = False
    copy.read(covering("a3 b6"))
    assert not copy.intake.has_news


def test_a_closed_list_whose_until_moves_proves_only_what_it_lists() -> None:
    copy = Copy()
    copy.read(covering("a6", until=7))
    copy.read(covering("a6", until=7))
    assert copy.state.frontiers.confirmed == at(7), "it stays the same"
    copy = Copy()
    copy.read(covering("a6", until=7))
    copy.read(covering("a6 b8", until=10))
    assert copy.state.frontiers.confirmed == at(8)
    assert copy.state.frontiers.frontier.joint < at(8), "more may be dated with it"
    other = replace(LIST, uri="http://a.example/other.xml")
    copy.read(covering("b8 c11", until=12), other)
    assert copy.state.frontiers.confirmed == at(12)
    copy = Copy()
    copy.read(covering("a6", until=7))
    copy.read(covering("", until=10))
    assert copy.intake.clock.is_behind, "it has lost its entry"


def test_an_entry_later_than_a_change_that_was_pushed_long_ago_is_compared() -> None:
    for requested, expected in ((10, "a7 date"), (10.1, "a7 compare")):
        copy = Copy(Pace(poll=10))
        copy.read(covering("b5"))
        copy.state.unconfirmed.add([change("a9")], now=0)
        copy.intake.requested = requested
        assert kept(copy.read(covering("b5 a7"))) == [expected]


def test_t_waits_for_a_pushed_change_that_the_lists_lack() -> None:
    copy = Copy()
    copy.read(covering("b5"))
    copy.state.unconfirmed.add([change("a7")], now=0)
    copy.intake.add(LIST, covering("b5 c9"), 0, is_open=True, more=False, again=False)
    assert copy.state.pending.low_water() == at(7)
    assert kept(copy.state.pending.dispatch(9, now=0)) == ["c9 date", "a9 fetch"]


@pytest.mark.parametrize(
    ("sent", "expected"), [(None, "a5 fetch"), (at(8), "a8 fetch"), (at(99), "a9 fetch")]
)
def test_a_pushed_change_that_no_list_confirms_is_verified_as_of_when_the_lists_were_sent(
    sent: Instant | None, expected: str
) -> None:
    copy = Copy()
    copy.state.unconfirmed.add([change("a9")], now=0)
    copy.intake.end(1e9, sent)
    assert kept(copy.state.pending.dispatch(9, now=0)) == [expected]


@pytest.mark.parametrize(("sent", "has_gone_back"), [(None, True), (at(9_999), False)])
def test_a_dump_that_ends_early_shows_that_the_clock_went_back_unless_it_was_sent_later(
    sent: Instant | None, has_gone_back: bool
) -> None:
    seen = (change_key(change("a5")),)
    intake = ChangeIntake(SyncState(Progress(at(5), at(5), seen), DEFAULT, Random(1)))
    intake.check_dump(at(4), 0, sent)
    assert intake.clock.has_gone_back(0) is has_gone_back


@pytest.mark.parametrize("deletes", [True, False])
def test_closed_lists_of_before_may_differ_only_from_a_comparison_that_deletes(
    deletes: bool,
) -> None:
    copy = Copy()
    copy.intake.end_baseline(at(8), at(8), 0, deletes=deletes)
    assert copy.intake.closed.known.compared == (at(8) if deletes else None)


def test_a_whole_set_settles_what_was_pushed_before_it_and_joins_what_is_held() -> None:
    copy = Copy()
    copy.state.unconfirmed.add([change("a6"), change("b9"), change("d7")], now=0)
    copy.state.pending.add(change("d7"))
    copy.state.frontiers.push(covering("c9", from_=8, until=9))
    copy.intake.end_baseline(at(8), at(8), 0, deletes=False)
    assert copy.state.frontiers.known == at(9)
    assert len(copy.state.unconfirmed) == 2, "b9, and c9"
    assert kept(copy.state.pending.dispatch(9, now=0)) == ["d8 fetch", "c9 date"]


def test_a_pushed_deletion_that_is_not_applied_yet_is_verified_after_a_comparison() -> None:
    """The copy still had the resource when it was compared, as the whole set does."""
    copy = Copy()
    pushed = replace(change("a6"), change=ChangeType.DELETED)
    copy.state.unconfirmed.add([pushed], now=0)
    copy.state.pending.announce(pushed, at_once=True)
    copy.intake.end_baseline(at(8), at(8), 0, deletes=False)
    assert kept(copy.state.pending.dispatch(99, now=0)) == ["a8 fetch"]


def test_a_whole_set_shows_whether_a_resource_exists_whose_deletion_was_pushed() -> None:
    copy = Copy(Pace(parked=1))
    pushed = replace(change("a6"), change=ChangeType.DELETED)
    copy.state.unconfirmed.add([pushed], now=0)
    listed = Change("a", ChangeType.UPDATED, at(8), Resource("a"))
    for one in (listed, change("b8"), change("c8")):
        copy.state.pending.announce(one, parked=True)
    assert copy.state.pending.backlog
    copy.intake.end_baseline(at(8), at(8), 0, deletes=False)
    copy.state.pending.release()
    (fetched,) = copy.state.pending.dispatch(1, now=0)
    assert (fetched.uri, fetched.change) == ("a", ChangeType.UPDATED)


def test_what_is_held_does_not_wait_for_the_parked_changes_of_other_resources() -> None:
    copy = Copy(Pace(parked=1))
    copy.state.frontiers.push(covering("c9", from_=8, until=9))
    copy.read(covering("a6 b8"), more=True)
    copy.state.pending.use_backlog(9)
    takes = [action for action in copy.state.actions if isinstance(action, TakeBacklog)]
    assert [take.uris for take in takes if take.uris] == [("c",)]


@pytest.mark.parametrize(
    ("lacking", "fetch", "is_open"),
    [
        (covering("b8", from_=5, until=9, package=PACKAGE.uri), PACKAGE, False),
        (covering("b9", until=10), LIST, False),
        (covering("b9"), LIST, True),
    ],
    ids=["a package", "the list, now closed", "the list"],
)
def test_if_a_document_lacks_what_the_open_list_had_the_clock_went_back(
    lacking: Coverage, fetch: Fetch, is_open: bool
) -> None:
    copy = Copy()
    copy.read(covering("a6 b8"))
    found = kept(copy.read(lacking, fetch, is_open=is_open))
    assert found == [f"b{8 if fetch is PACKAGE else 9} compare"]
    assert copy.intake.clock.is_behind
    assert copy.state.frontiers.lost_since == lacking.from_
