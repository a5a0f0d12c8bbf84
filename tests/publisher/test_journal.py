"""The journal: increasing datetimes, the current set, and what may be deleted."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify.format.hashes import SetDigest, SetSum
from rsnotify.format.model import INLINE_LIMIT, ChangeType, Link, Rel, Resource
from rsnotify.format.uris import normalize
from rsnotify_publisher import FinishedDocument, Record
from rsnotify_publisher.journal import Journal, RecordedChanges, Recorder, system_clock
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


def closed(begin: int, end: int) -> FinishedDocument:
    return FinishedDocument(
        "changelist", begin, end, 1, 100, (f"{begin}-{end}.xml",), archived=True
    )


DIGEST = "sha-256:" + "1" * 64


def sum_of(names: Iterable[str]) -> str:
    """Return the sum of a set whose resources have the same content."""
    total = SetSum()
    total.add((BASE + name, DIGEST) for name in names)
    return str(total)


def change_by_sql(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)


def datetimes(changes: list[Resource]) -> list[object]:
    return [change.datetime for change in changes]


def test_simultaneous_changes_are_a_microsecond_apart(journal: Journal, clock: Clock):
    clock.now += 5
    changes = record(journal, "a", "b")
    assert datetimes(changes) == [from_microseconds(1_000_005), from_microseconds(1_000_006)]


def test_a_change_is_not_dated_before_its_earliest_instant(journal: Journal):
    with journal.transaction():
        changes = journal.record(map(update, "abcd"), earliest=[3_000_000, 2_000_000, 4_000_000])
    expected = (3_000_000, 3_000_001, 4_000_000, 4_000_001)
    assert datetimes(changes) == [*map(from_microseconds, expected)]


def test_datetimes_increase_when_the_clock_jumps_back(journal: Journal, clock: Clock):
    clock.now = 9_000_000
    (before,) = record(journal, "a")
    clock.now = 2_000_000
    (after,) = record(journal, "a")
    assert (before.datetime, after.datetime) == (
        from_microseconds(9_000_000),
        from_microseconds(9_000_001),
    )


def test_no_change_gets_a_datetime_before_a_promise(journal: Journal, clock: Clock):
    clock.now = 5_000_000
    with journal.transaction():
        assert journal.promise().promised == 5_000_000
    clock.now = 4_000_000
    (change,) = record(journal, "a")
    assert change.datetime == from_microseconds(5_000_001)


def test_a_promise_never_decreases(journal: Journal, clock: Clock):
    for clock.now in (5_000_000, 4_000_000):
        with journal.transaction():
            state = journal.promise()
    assert state.promised == 5_000_000


def test_all_metadata_of_a_change_is_stored(journal: Journal):
    reported = Resource(
        BASE + "a",
        change=ChangeType.CREATED,
        lastmod=from_microseconds(77),
        hash="sha-256:00ff",
        length=0,
        type="text/turtle",
        links=(Link("describes", "http://x.example/", pri=3),),
    )
    with journal.transaction():
        recorded = journal.record([Record(reported)])
    assert journal.changes(0) == recorded
    assert recorded[0].links == reported.links


def test_the_current_set_follows_the_changes(journal: Journal):
    record(journal, "a", "b", "a")
    with journal.transaction():
        journal.record([Record(Resource(BASE + "b", change=ChangeType.DELETED))])
    (only,) = journal.resources()
    assert only.uri == BASE + "a"
    assert only.change is None
    assert only.lastmod == journal.changes(0)[2].datetime


def test_the_deletion_of_an_unknown_resource_is_recorded(journal: Journal):
    with journal.transaction():
        journal.record([Record(Resource(BASE + "x", change=ChangeType.DELETED))])
    assert [change.change for change in journal.changes(0)] == [ChangeType.DELETED]
    assert journal.count() == 0


def test_a_snapshot_does_not_contain_later_changes(journal: Journal, tmp_path: Path):
    record(journal, "a")
    with Journal(tmp_path / "journal.sqlite3", BASE) as other, other.snapshot() as state:
        record(journal, "b")
        assert [change.uri for change in other.changes(0)] == [BASE + "a"]
        assert journal.state().last_change > state.last_change


def test_changes_are_applied_to_the_set_before_they_are_pruned(journal: Journal):
    record(journal, "a", "b")
    with journal.transaction():
        journal.prune(journal.state().last_change)
    assert journal.changes(0) == []
    assert [resource.uri for resource in journal.resources()] == [BASE + "a", BASE + "b"]


def test_the_set_is_current_within_a_transaction_that_records(journal: Journal):
    with journal.transaction():
        journal.record([update("a")])
        assert journal.resource(BASE + "a") is not None
        journal.revalidate(BASE + "a", "v2")
        journal.record([Record(Resource(BASE + "b", change=ChangeType.CREATED), "v1")])
    assert journal.validators(BASE) == {BASE + "a": "v2", BASE + "b": "v1"}


def test_a_program_killed_before_changes_were_applied_has_the_same_set(
    journal: Journal, tmp_path: Path
):
    names = [f"{number:04}" for number in range(1_200)]
    record(journal, *names)
    with Journal(tmp_path / "journal.sqlite3", BASE) as other:

        def fail_halfway() -> None:
            with other.transaction(flush=False):
                assert other.apply_changes()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_halfway()
        with other.transaction(flush=False):
            assert other.apply_changes(), "only a part is applied at once"
    with Journal(tmp_path / "journal.sqlite3", BASE) as again:
        assert [resource.uri for resource in again.resources()] == [BASE + name for name in names]
        assert again.state().applied == again.state().last_change


@pytest.mark.parametrize("awaited", [False, True])
def test_a_digest_requires_that_all_changes_are_applied(tmp_path: Path, awaited: bool):
    executor = ThreadPoolExecutor(1)
    path = tmp_path / "new/journal.sqlite3"
    recorder = Recorder(partial(Journal, path, BASE), lambda _: None, executor)
    recorder.start()
    records = [
        Record(Resource(f"{BASE}{n}", change=ChangeType.UPDATED, hash=DIGEST)) for n in range(2_100)
    ]
    changes = recorder.run(lambda journal: journal.record(records))
    through = recorder.run(Journal.state).last_change - 1_500
    while (
        asyncio.run(recorder.arun(lambda journal: journal.apply_changes(through)))
        if awaited
        else recorder.run(lambda journal: journal.apply_changes(through))
    ):
        pass
    some = recorder.run(Journal.state)
    every = asyncio.run(recorder.promise_with_digest())
    with pytest.raises(ZeroDivisionError):
        asyncio.run(recorder.arun(lambda _: 1 / 0))
    recorder.close()
    executor.shutdown()
    assert recorder.counters.changes == len(changes)
    assert through <= some.applied < some.last_change
    assert some.digest is None
    assert every.digest == SetDigest(2_100, sum_of(map(str, range(2_100))).split()[2])


def test_the_clock_counts_microseconds():
    before = time.time_ns() // 1_000
    assert before <= system_clock() <= time.time_ns() // 1_000


def test_the_current_set_cannot_be_read_in_a_snapshot(journal: Journal):
    record(journal, "a")
    with journal.snapshot(), pytest.raises(RuntimeError, match="outside"):
        journal.count()
    assert journal.count() == 1


def test_pruning_applies_no_more_changes_than_it_removes(journal: Journal):
    record(journal, *map(str, range(2_000)))
    first = journal.changes(0, 1)[0].datetime
    with journal.transaction():
        journal.prune(to_microseconds(first))
    state = journal.state()
    assert state.pruned <= state.applied < state.last_change
    assert journal.count() == 2_000


def test_a_failed_transaction_stores_nothing(journal: Journal):
    def fail_halfway() -> None:
        with journal.transaction():
            journal.record([update("a")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert journal.is_empty()


def test_recorded_changes_include_small_contents(journal: Journal):
    sizes = {"none": 0, "most": INLINE_LIMIT, "more": INLINE_LIMIT + 1}
    records = [replace(update(name), content=b"x" * size) for name, size in sizes.items()]
    (before,) = record(journal, "before")
    with journal.transaction():
        changes = journal.record([*records, update("unknown")])
    begin, end = to_microseconds(before.datetime), to_microseconds(changes[-1].datetime)
    contents = {BASE + name: b"x" * sizes[name] for name in ("none", "most")}
    assert journal.recorded == [RecordedChanges(begin, end, changes, contents)]


def test_recorded_changes_are_joined_and_divided_with_their_contents():
    changes = [
        Resource(f"{BASE}{n}", change=ChangeType.UPDATED, datetime=from_microseconds(n))
        for n in (1, 2, 3, 4)
    ]
    contents = {f"{BASE}{n}": b"%d" % n for n in (1, 3)}
    one = RecordedChanges(0, 2, changes[:2], {BASE + "1": b"1"})
    every = one.joined(RecordedChanges(2, 4, changes[2:], {BASE + "3": b"3"}))
    assert every == RecordedChanges(0, 4, changes, contents)
    for n in (1, 2, 3, 4):
        first = RecordedChanges(0, n, changes[:n], contents)
        assert every.first(n) == every.through(n) == first
        assert every.after(n - 1) == RecordedChanges(n - 1, 4, changes[n - 1 :], contents)


def test_a_baseline_has_no_changes_and_keeps_its_lastmod(journal: Journal):
    known = Resource(BASE + "a", lastmod=from_microseconds(5), length=3)
    with journal.transaction():
        assert journal.load([Record(known, "v1"), Record(Resource(BASE + "b"))]) == 2
    assert journal.changes(0) == []
    assert next(journal.resources()) == known
    assert journal.resource(BASE + "a") == (known, "v1")
    assert journal.validators(BASE) == {BASE + "a": "v1", BASE + "b": None}


def test_the_journal_begins_at_its_baseline(journal: Journal, clock: Clock):
    for number in (50, -10):
        clock.now += number
        with journal.transaction():
            assert journal.load([]) == 0
    state = journal.state()
    assert (state.applied, state.promised, state.pruned, state.closed) == (1_000_051,) * 4


@pytest.mark.parametrize("first", ["loaded", "recorded"])
def test_a_baseline_requires_an_empty_journal(journal: Journal, first: str):
    if first == "recorded":
        record(journal, "a")
    else:
        with journal.transaction():
            journal.load([Record(Resource(BASE + "a"))])
    with pytest.raises(ConfigurationError, match="is not empty"), journal.transaction():
        journal.load([Record(Resource(BASE + "b"))])


def test_the_last_change_at_an_instant_is_known_even_if_pruned(journal: Journal, clock: Clock):
    origin = journal.last_change_at(clock.now)
    ats = []
    for clock.now in (2_000_000, 3_000_000, 4_000_000):
        record(journal, "a")
        ats.append(clock.now)
    assert journal.last_change_at(1_999_999) == origin
    assert journal.last_change_at(3_500_000) == ats[1]
    with journal.transaction():
        journal.close_list(closed(origin, ats[1]))
        journal.prune(ats[1])
    assert journal.last_change_at(3_500_000) == ats[1]
    assert journal.state().closed == ats[1]
    assert len(journal.changes(0)) == 1


def test_a_change_is_kept_until_it_is_closed_and_every_hub_has_it(journal: Journal, clock: Clock):
    origin = journal.state().closed
    with journal.transaction():
        journal.add_hub("http://slow.example/")
        journal.add_hub("http://quick.example/")
    for clock.now in (2_000_000, 3_000_000, 4_000_000):
        record(journal, "a")
    hubs = ["http://slow.example/", "http://quick.example/"]
    with journal.transaction():
        journal.move_cursors({hubs[0]: 2_000_000, hubs[1]: 4_000_000}, {})
    assert journal.prunable(hubs) is None
    assert not journal.has_closed_lists()
    with journal.transaction():
        journal.close_list(closed(origin, 3_000_000))
    assert journal.has_closed_lists()
    assert journal.prunable(hubs) == 2_000_000
    assert journal.prunable(hubs[1:]) == 3_000_000


def test_a_new_hub_begins_with_the_next_change_and_a_known_one_keeps_its_cursor(journal: Journal):
    record(journal, "a")
    with journal.transaction():
        journal.add_hub("http://hub.example/")
    cursor = journal.cursor("http://hub.example/")
    assert cursor == journal.state().last_change
    record(journal, "b")
    with journal.transaction():
        journal.add_hub("http://hub.example/")
    assert journal.cursor("http://hub.example/") == cursor


def test_changes_are_not_kept_for_an_unreachable_hub_beyond_the_archive(
    journal: Journal, clock: Clock
):
    origin = journal.state().closed
    with journal.transaction():
        journal.add_hub("http://gone.example/")
    for clock.now in (2_000_000, 3_000_000, 4_000_000):
        record(journal, "a")
    first, second = closed(origin, 2_000_000), closed(2_000_000, 3_000_000)
    with journal.transaction():
        journal.close_list(first)
        journal.close_list(second)
    assert journal.prunable(["http://gone.example/"]) is None
    with journal.transaction():
        journal.drop([first])
    assert journal.prunable(["http://gone.example/"]) == 2_000_000


def test_the_open_list_begins_at_the_end_of_a_dropped_list(
    journal: Journal,
):
    volume = closed(journal.state().closed, 3_000_000)
    with journal.transaction():
        journal.close_list(volume)
        journal.drop([volume])
    assert journal.finished("changelist") == []
    assert journal.state().closed == 3_000_000


def test_finished_documents_are_listed_by_kind_and_archive(journal: Journal):
    older, newer = closed(1, 2), replace(closed(2, 3), archived=False)
    dump = replace(older, kind="changedump", files=("d.xml", "d.zip"))
    with journal.transaction():
        for volume in (newer, dump, older):
            journal.put(volume)
    assert journal.finished("changelist") == [older, newer]
    assert journal.finished("changelist", archived=True) == [older]
    assert journal.finished("changelist", archived=False) == [newer]
    with journal.transaction():
        journal.archive([newer])
    assert journal.finished("changelist", archived=False) == []
    assert journal.files() == {"1-2.xml", "2-3.xml", "d.xml", "d.zip"}


def test_files_of_a_dropped_document_are_discarded_later(journal: Journal, clock: Clock):
    volume = closed(1, 2)
    clock.now = 5_000_000
    with journal.transaction():
        journal.put(volume)
        journal.drop([volume])
    assert journal.discarded(before=5_000_000) == []
    assert journal.discarded(before=5_000_001) == ["1-2.xml"]
    assert journal.files() == {"1-2.xml"}
    with journal.transaction():
        journal.keep(["1-2.xml"])
    assert journal.files() == set()


def test_a_file_that_is_used_again_is_not_discarded(journal: Journal):
    with journal.transaction():
        journal.discard(["1-2.xml"])
        journal.put(closed(1, 2))
    assert journal.discarded(before=2**62) == []


def test_the_set_is_read_in_pages_between_which_others_write(journal: Journal, tmp_path: Path):
    names = [f"{number:05}" for number in range(2_500)]
    with journal.transaction():
        journal.load(Record(Resource(BASE + name)) for name in names)
    seen = []
    with Journal(tmp_path / "journal.sqlite3", BASE) as reader:
        resources = reader.resources()
        seen.append(next(resources).uri)
        record(journal, "99998", "99999")
        journal.bring_up_to_date()
        seen += [resource.uri for resource in resources]
    assert seen == [BASE + name for name in [*names, "99998", "99999"]]


def test_a_set_larger_than_a_page_is_read_completely(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_publisher.journal.journal._PAGE_SIZE", 2)
    uris = ["HTTP://source.example/data/a", *(BASE + name for name in ("b", "c", "d/1", "d/2"))]
    with journal.transaction():
        assert journal.load(Record(Resource(uri), uri[-1]) for uri in uris) == len(uris)
    every = [(uri, uri[-1]) for uri in uris]
    assert [*journal.select(lambda uri, validator: True)] == every
    assert [*journal.select(lambda uri, validator: validator in ("a", "1"))] == every[::3]
    assert [resource.uri for resource in journal.resources()] == uris
    assert journal.validators() == dict(every)
    assert journal.validators(BASE + "d/") == dict(every[3:])
    assert journal.resource(BASE + "x") is None


def test_notices_are_kept_in_order_up_to_a_limit(
    journal: Journal, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_publisher.journal.journal.MAX_NOTICES", 3)
    begin = clock.now
    documents = [Resource(BASE + name, change=ChangeType.UPDATED) for name in "abcde"]
    dated = [
        replace(each, datetime=from_microseconds(begin + number))
        for number, each in enumerate(documents, 1)
    ]
    assert (journal.first_notice(), journal.last_notice(), journal.notices(0)) == (begin, begin, [])
    assert [journal.last_notice_at(instant) for instant in (0, begin + 10**15)] == [begin, begin]
    before = journal.state()
    with journal.transaction():
        journal.add_notices(documents[:2])
        journal.add_hub("http://hub.example/")
    assert (journal.notices(0), journal.notices(0, 1)) == (dated[:2], dated[:1])
    assert journal.notices(begin + 1) == dated[1:2]
    assert [journal.last_notice_at(begin + n) for n in (-1, 1, 9)] == [begin, begin + 1, begin + 2]
    with journal.transaction():
        journal.add_notices(documents[2:])
        journal.add_hub("http://hub.example/")
        assert journal.notice_cursor("http://hub.example/") == begin + 2
        journal.move_cursors({}, {"http://hub.example/": begin + 4})
    assert journal.notice_cursor("http://hub.example/") == begin + 4
    assert (journal.notices(0), journal.first_notice()) == (dated[2:], begin + 2)
    assert journal.state() == before, "a notice is not a change"
    record(journal, "a")
    assert journal.notices(0) == dated[2:], "and a change makes no notice"


def test_notices_are_later_than_a_promised_heartbeat(journal: Journal):
    with journal.transaction():
        promised = journal.promise().reached
        journal.add_notices([Resource(BASE + "a", change=ChangeType.UPDATED)])
    assert journal.last_notice() > promised


def test_each_version_of_a_document_has_one_notice(journal: Journal):
    with journal.transaction():
        for version in ("1", "1", "2", "2"):
            journal.add_version_notice(Resource(BASE + "a"), version)
    assert [each.change for each in journal.notices(0)] == [ChangeType.CREATED, ChangeType.UPDATED]


def test_a_set_from_a_callback_is_not_stored(journal: Journal):
    record(journal, "a")
    with journal.transaction():
        journal.set_tracked(False)
    record(journal, "b")
    assert journal.count() == 0
    assert journal.state().digest is None
    assert [change.uri for change in journal.changes(0)] == [BASE + "a", BASE + "b"]


def test_a_set_from_a_callback_cannot_be_stored_later(journal: Journal):
    with journal.transaction():
        journal.set_tracked(False)
    with pytest.raises(ConfigurationError, match="pass that again"), journal.transaction():
        journal.set_tracked(True)


def test_the_current_set_has_no_patches(journal: Journal):
    links = (Link(Rel.PATCH, "http://x.example/diff", type="application/json-patch+json"),)
    links += (Link("memento", "http://x.example/2"),)
    change = Resource(BASE + "a", change=ChangeType.UPDATED, links=links)
    with journal.transaction():
        journal.record([Record(change)])
    assert journal.changes(0)[0].links == links
    assert next(journal.resources()).links == links[1:]


VERSION_1 = """
CREATE TABLE state (base_url TEXT NOT NULL, last_change INTEGER NOT NULL,
    promised INTEGER NOT NULL, pruned INTEGER NOT NULL);
CREATE TABLE changes (at INTEGER PRIMARY KEY, entry BLOB NOT NULL);
CREATE TABLE resources (uri TEXT PRIMARY KEY, at INTEGER NOT NULL, entry BLOB NOT NULL,
    validator TEXT) WITHOUT ROWID;
CREATE TABLE closed_lists (until_at INTEGER PRIMARY KEY, from_at INTEGER NOT NULL);
CREATE TABLE cursors (hub TEXT PRIMARY KEY, through INTEGER NOT NULL);
INSERT INTO state VALUES ('http://source.example/data/', 3000000, 3000001, 1000000);
INSERT INTO changes VALUES (3000000, '{"uri":"http://source.example/data/a","change":"created"}');
INSERT INTO closed_lists VALUES (2000000, 1000000);
PRAGMA user_version = 1;
"""


#: Statements that turn a journal of the next version into one of this version.
TO_VERSION = {
    7: "DROP TABLE spellings;",
    6: """
        ALTER TABLE state RENAME COLUMN applied TO last_change;
        UPDATE changes SET entry = cast(json_set(entry, '$.uri', uri) AS BLOB);
        ALTER TABLE changes DROP COLUMN uri;
        ALTER TABLE changes DROP COLUMN validator;
        """,
    5: "DROP TABLE positions;",
    4: "",
    3: "ALTER TABLE state DROP COLUMN sum;",
    2: "DROP TABLE notices; DROP TABLE told; DROP TABLE versions;",
}


@pytest.mark.parametrize("version", TO_VERSION)
def test_a_journal_of_each_version_is_migrated(tmp_path: Path, clock: Clock, version: int):
    def content(journal: Journal) -> object:
        return journal.state(), [*journal.resources()], journal.changes(0), journal.files()

    path = tmp_path / "journal.sqlite3"
    hashed = Resource(BASE + "a", change=ChangeType.CREATED, hash="sha-256:" + "0" * 64)
    with Journal(path, BASE, clock=clock) as journal:
        with journal.transaction():
            journal.put(closed(1, 2))
            journal.record([Record(hashed), update("b")])
            journal.bring_up_to_date()
            clock.now += 5
            promised = journal.promise().promised
        before = content(journal)
    for number in range(7, version - 1, -1):
        change_by_sql(path, f"{TO_VERSION[number]} PRAGMA user_version = {number};")
    with Journal(path, BASE, clock=clock) as journal:
        assert content(journal) == before
        assert journal.first_notice() == (promised if version == 2 else 1_000_000)
        with journal.transaction():
            journal.set_position("reader", "1")
            journal.record([update("%62")])
        assert (journal.position("reader"), journal.position("other")) == ("1", None)
        assert [each.uri for each in journal.resources()] == [BASE + "%62", BASE + "a"]


def test_a_journal_of_version_1_is_migrated(tmp_path: Path):
    path = tmp_path / "journal.sqlite3"
    change_by_sql(path, VERSION_1)
    with Journal(path, BASE) as journal:
        state = journal.state()
        assert (state.closed, state.pruned, state.last_change) == (2_000_000, 1_000_000, 3_000_000)
        assert state.tracked
        assert [change.uri for change in journal.changes(0)] == [BASE + "a"]
        assert (state.sum, journal.last_notice()) == (str(SetSum()), 3_000_001)
        name = "resourcesync/changelist-19700101T000001000000Z-19700101T000002000000Z.xml"
        volume = FinishedDocument("changelist", 1_000_000, 2_000_000, 0, 0, (name,), archived=True)
        assert journal.finished("changelist", archived=True) == [volume]
    with Journal(path, BASE) as again:
        assert again.state() == state
        with again.transaction():
            again.add_notices([Resource(BASE + "a", change=ChangeType.UPDATED)])
        assert len(again.notices(0)) == 1


def test_entries_of_version_4_with_uris_are_read(tmp_path: Path):
    path = tmp_path / "journal.sqlite3"
    hashed = Resource(BASE + "a", change=ChangeType.CREATED, hash="sha-256:" + "0" * 64)
    with Journal(path, BASE) as journal, journal.transaction():
        journal.record([Record(hashed, "v1"), update("b")])
    with Journal(path, BASE) as journal:
        held = (list(journal.resources()), journal.resource(BASE + "a"))
        before = (*held, journal.state())
    # In version 4, the entry also contained the URI.
    whole = "UPDATE resources SET entry = cast(json_set(entry, '$.uri', uri) AS BLOB);"
    change_by_sql(path, f"{whole} {TO_VERSION[6]} PRAGMA user_version = 4")
    with Journal(path, BASE) as journal:
        held = (list(journal.resources()), journal.resource(BASE + "a"))
        after = (*held, journal.state())
        with journal.transaction():
            gone = [Resource(BASE + name, change=ChangeType.DELETED) for name in "ab"]
            journal.record(map(Record, gone))
        assert journal.count() == 0
        assert journal.state().sum == sum_of("")
        assert [change.uri for change in journal.changes(0)] == [BASE + name for name in "abab"]
    assert after == before


@pytest.mark.parametrize("apart", [True, False], ids=["applied apart", "applied together"])
@pytest.mark.parametrize("first", ["~a", "%7Ea", "x/../a%2f"])
@pytest.mark.parametrize("second", ["~a", "%7ea", "y/../~a", "./a%2F"])
def test_a_resource_is_in_the_set_once_regardless_of_its_spelling(
    journal: Journal, first: str, second: str, apart: bool
):
    is_same = normalize(BASE + first) == normalize(BASE + second)

    def record(name: str, change: ChangeType) -> None:
        hash = None if change is ChangeType.DELETED else DIGEST
        with journal.transaction():
            journal.record([Record(Resource(BASE + name, change=change, hash=hash))])
        if apart:
            journal.bring_up_to_date()

    def check(*names: str) -> None:
        assert {each.uri for each in journal.resources()} == {BASE + name for name in names}
        assert journal.state().sum == sum_of(names)

    record(first, ChangeType.CREATED)
    record(second, ChangeType.UPDATED)
    check(*({second} if is_same else {first, second}))
    record(first, ChangeType.UPDATED)
    check(*({first} if is_same else {first, second}))
    record(second, ChangeType.DELETED)
    check(*(() if is_same else {first}))


def test_the_migration_of_spellings_keeps_the_latest(tmp_path: Path):
    path = tmp_path / "journal.sqlite3"
    names = ["%7Ea", "b", "%62", "c", "~a", "%7ea"]
    with Journal(path, BASE) as journal:
        for name in names:
            with journal.transaction():
                resource = Resource(BASE + name, change=ChangeType.CREATED, hash=DIGEST)
                journal.record([Record(resource)])
    with closing(sqlite3.connect(path)) as old:
        at = "(SELECT at FROM changes WHERE changes.uri = ?1)"
        entry = f'{{"uri":"","hash":"{DIGEST}"}}'.encode()
        for name in names:
            old.execute(f"INSERT INTO resources VALUES (?1, {at}, ?2, NULL)", (BASE + name, entry))
        (last,) = old.execute("SELECT max(at) FROM changes").fetchone()
        old.execute("UPDATE state SET applied = ?, sum = ?", (last, sum_of(names)))
        old.commit()
        old.executescript("DROP TABLE spellings; PRAGMA user_version = 7")
    with Journal(path, BASE) as journal:
        kept = {each.uri.removeprefix(BASE) for each in journal.resources()}
        assert kept == {"%7ea", "%62", "c"}
        assert journal.state().sum == sum_of(kept)
        with journal.transaction():
            gone = [Resource(BASE + name, change=ChangeType.DELETED) for name in ("~a", "b", "c")]
            journal.record(map(Record, gone))
        assert journal.count() == 0
        assert journal.state().sum == sum_of("")


@pytest.mark.parametrize(("memory", "size"), [(64.0, 0), (1.0, 0), (64.0, 10_000_000)])
def test_checkpoints_depend_on_memory_and_the_file_size(journal: Journal, memory: float, size: int):
    def read(setting: str) -> int:
        return int(journal._db.execute(f"PRAGMA {setting}").fetchone()[0])

    with journal.transaction():
        journal._db.execute("INSERT INTO changes (at, entry) VALUES (1, zeroblob(?))", (size,))
    journal.tune_for_writes(memory)
    half = read("page_count") / 2
    assert half > 2_000 or not size
    expected = 1_024 if memory == 1 else max(2_000, round(half))
    assert (read("cache_size"), read("wal_autocheckpoint")) == (-1_024 * memory, expected)


def test_a_journal_of_a_later_version_is_refused(tmp_path: Path):
    path = tmp_path / "journal.sqlite3"
    change_by_sql(path, "CREATE TABLE state (x); PRAGMA user_version = 99;")
    with pytest.raises(ConfigurationError, match="later version"):
        Journal(path, BASE)


def test_a_journal_belongs_to_one_base_url(journal: Journal, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="belongs to the Source"):
        Journal(tmp_path / "journal.sqlite3", "http://other.example/")


def test_a_file_that_is_not_a_journal_is_refused(tmp_path: Path):
    (tmp_path / "journal.sqlite3").write_text("nothing of the kind" * 100)
    with pytest.raises(StorageError, match=r"journal\.sqlite3"):
        Journal(tmp_path / "journal.sqlite3", BASE)


def test_rewritten_files_are_not_deleted(journal: Journal):
    with journal.transaction():
        journal.discard(["resourcesync/changedump-1-00001.zip", "resourcesync/changedump-2.xml"])
        journal.reclaim("resourcesync/changedump-1")
    assert journal.files() == {"resourcesync/changedump-2.xml"}


def test_the_write_version_changes_when_any_connection_writes(tmp_path: Path, journal: Journal):
    begun = journal.write_version()
    with Journal(tmp_path / "journal.sqlite3", BASE) as other:
        journal.state()
        assert journal.write_version() == begun

        record(other, "a")
        assert (by_another := journal.write_version()) != begun

    record(journal, "b")
    assert journal.write_version() != by_another
