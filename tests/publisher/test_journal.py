"""The journal: datetimes that only increase, the current set, what may be forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rsnotify.datetimes import from_microseconds
from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.model import Link, Resource
from rsnotify.vocabulary import ChangeType
from rsnotify_publisher import Record
from rsnotify_publisher.journal import Journal, Span
from tests.publisher.helpers import BASE


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path, clock: Clock) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite3", BASE, clock=clock) as made:
        yield made


def update(name: str) -> Record:
    return Record(Resource(BASE + name, change=ChangeType.UPDATED))


def record(journal: Journal, *names: str) -> list[Resource]:
    with journal.transaction():
        return journal.record([update(name) for name in names])


def datetimes(changes: list[Resource]) -> list[object]:
    return [change.datetime for change in changes]


def test_changes_of_one_moment_are_a_microsecond_apart(journal: Journal, clock: Clock) -> None:
    clock.now += 5
    changes = record(journal, "a", "b")
    assert datetimes(changes) == [from_microseconds(1_000_005), from_microseconds(1_000_006)]


def test_datetimes_increase_when_the_clock_jumps_back(journal: Journal, clock: Clock) -> None:
    clock.now = 9_000_000
    (before,) = record(journal, "a")
    clock.now = 2_000_000
    (after,) = record(journal, "a")
    assert (before.datetime, after.datetime) == (
        from_microseconds(9_000_000),
        from_microseconds(9_000_001),
    )


def test_no_change_gets_a_datetime_that_was_promised_to_be_quiet(
    journal: Journal, clock: Clock
) -> None:
    clock.now = 5_000_000
    with journal.transaction():
        assert journal.promise().promised == 5_000_000
    clock.now = 4_000_000
    (change,) = record(journal, "a")
    assert change.datetime == from_microseconds(5_000_001)


def test_a_promise_is_never_taken_back(journal: Journal, clock: Clock) -> None:
    for clock.now in (5_000_000, 4_000_000):
        with journal.transaction():
            state = journal.promise()
    assert state.promised == 5_000_000


def test_everything_told_of_a_change_is_read_back(journal: Journal) -> None:
    told = Resource(
        BASE + "a",
        change=ChangeType.CREATED,
        lastmod=from_microseconds(77),
        hash="sha-256:00ff",
        length=0,
        type="text/turtle",
        links=(Link("describes", "http://x.example/", pri=3),),
    )
    with journal.transaction():
        recorded = journal.record([Record(told)])
    assert journal.changes(0) == recorded
    assert recorded[0].links == told.links


def test_the_current_set_follows_the_changes(journal: Journal) -> None:
    record(journal, "a", "b", "a")
    with journal.transaction():
        journal.record([Record(Resource(BASE + "b", change=ChangeType.DELETED))])
    with journal.snapshot():
        (only,) = journal.resources()
    assert only.uri == BASE + "a"
    assert only.change is None
    assert only.lastmod == journal.changes(0)[2].datetime


def test_deleting_what_was_never_there_is_recorded_all_the_same(journal: Journal) -> None:
    with journal.transaction():
        journal.record([Record(Resource(BASE + "x", change=ChangeType.DELETED))])
    assert [change.change for change in journal.changes(0)] == [ChangeType.DELETED]
    assert journal.count() == 0


def test_a_snapshot_does_not_see_what_is_recorded_meanwhile(
    journal: Journal, tmp_path: Path
) -> None:
    record(journal, "a")
    with Journal(tmp_path / "journal.sqlite3", BASE) as other, other.snapshot() as state:
        record(journal, "b")
        assert [resource.uri for resource in other.resources()] == [BASE + "a"]
        assert journal.state().last_change > state.last_change


def test_nothing_of_a_failed_transaction_stays(journal: Journal) -> None:
    def fail_halfway() -> None:
        with journal.transaction():
            journal.record([update("a")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert journal.is_empty()


def test_a_baseline_makes_no_changes_and_keeps_its_own_lastmod(journal: Journal) -> None:
    known = Resource(BASE + "a", lastmod=from_microseconds(5), length=3)
    with journal.transaction():
        assert journal.load([Record(known, "v1"), Record(Resource(BASE + "b"))]) == 2
    assert journal.changes(0) == []
    with journal.snapshot():
        assert next(journal.resources()) == known
    assert journal.resource(BASE + "a") == (known, "v1")
    assert journal.validators(BASE) == {BASE + "a": "v1", BASE + "b": None}


def test_a_baseline_ends_what_the_journal_vouched_for_before(
    journal: Journal, clock: Clock
) -> None:
    clock.now += 50
    before = journal.closed_through()
    with journal.transaction():
        journal.load([Record(Resource(BASE + "a"))])
    assert journal.closed_through() > before


@pytest.mark.parametrize("first", ["loaded", "recorded"])
def test_a_baseline_is_loaded_into_an_empty_journal_only(journal: Journal, first: str) -> None:
    if first == "recorded":
        record(journal, "a")
    else:
        with journal.transaction():
            journal.load([Record(Resource(BASE + "a"))])
    with pytest.raises(ConfigurationError, match="empty journal"), journal.transaction():
        journal.load([Record(Resource(BASE + "b"))])


def test_the_last_change_at_an_instant_is_found_even_when_it_was_pruned(
    journal: Journal, clock: Clock
) -> None:
    origin = journal.last_change_at(clock.now)
    ats = []
    for clock.now in (2_000_000, 3_000_000, 4_000_000):
        record(journal, "a")
        ats.append(clock.now)
    assert journal.last_change_at(1_999_999) == origin
    assert journal.last_change_at(3_500_000) == ats[1]
    with journal.transaction():
        journal.close_list(Span(origin, ats[1]), keep=10)
        journal.prune(ats[1])
    assert journal.last_change_at(3_500_000) == ats[1]
    assert journal.closed_through() == ats[1]
    assert len(journal.changes(0)) == 1


def test_a_change_is_kept_until_it_is_closed_and_every_hub_has_it(
    journal: Journal, clock: Clock
) -> None:
    origin = journal.closed_through()
    with journal.transaction():
        journal.add_hub("http://slow.example/")
        journal.add_hub("http://quick.example/")
    for clock.now in (2_000_000, 3_000_000, 4_000_000):
        record(journal, "a")
    hubs = ["http://slow.example/", "http://quick.example/"]
    with journal.transaction():
        journal.move_cursor(hubs[0], 2_000_000)
        journal.move_cursor(hubs[1], 4_000_000)
    assert journal.prunable(hubs) is None
    with journal.transaction():
        journal.close_list(Span(origin, 3_000_000), keep=10)
    assert journal.prunable(hubs) == 2_000_000
    assert journal.prunable(hubs[1:]) == 3_000_000


def test_a_new_hub_begins_with_the_next_change_and_a_known_one_keeps_its_place(
    journal: Journal,
) -> None:
    record(journal, "a")
    with journal.transaction():
        journal.add_hub("http://hub.example/")
    place = journal.cursor("http://hub.example/")
    assert place == journal.state().last_change
    record(journal, "b")
    with journal.transaction():
        journal.add_hub("http://hub.example/")
    assert journal.cursor("http://hub.example/") == place


def test_only_so_many_closed_lists_are_kept(journal: Journal) -> None:
    with journal.transaction():
        assert journal.close_list(Span(1, 2), keep=2) == []
        assert journal.close_list(Span(2, 3), keep=2) == []
        assert journal.close_list(Span(3, 4), keep=2) == [Span(1, 2)]
    assert journal.closed_lists() == [Span(2, 3), Span(3, 4)]


def test_a_journal_belongs_to_one_base_url(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="belongs to the Source"):
        Journal(tmp_path / "journal.sqlite3", "http://other.example/")


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite3").write_text("nothing of the kind" * 100)
    with pytest.raises(StorageError, match=r"journal\.sqlite3"):
        Journal(tmp_path / "journal.sqlite3", BASE)
