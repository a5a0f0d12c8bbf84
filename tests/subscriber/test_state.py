from __future__ import annotations

import asyncio
import resource
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify.format.hashes import SetSum
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.offer import Offer
from rsnotify.runtime.tasks import Lane
from rsnotify.selection import Selection
from rsnotify.sync.actions import BacklogExtent, StoreBacklog, TakeBacklog
from rsnotify.sync.list_fingerprint import ListFingerprint
from rsnotify.sync.progress import ComparedList, Progress
from rsnotify_subscriber import PostgreSQLState
from rsnotify_subscriber.fleet.lease_tables import PostgreSQLLeases
from rsnotify_subscriber.fleet.leases import FleetShare
from rsnotify_subscriber.storage import postgresql
from rsnotify_subscriber.storage.destination_state import (
    ContentDoubt,
    DestinationState,
    open_state,
)
from rsnotify_subscriber.storage.identity import Identity
from rsnotify_subscriber.storage.postgresql import LeasedState, StatePool
from rsnotify_subscriber.storage.resource_state import Novelty, ResourceState
from tests.examples_count import part
from tests.subscriber.source import PATIENCE

SECOND = datetime(2026, 1, 1, tzinfo=UTC)
PRECISE = SECOND + timedelta(microseconds=7)
DAY = timedelta(days=1)
A, B = "md5:" + "a" * 32, "md5:" + "b" * 32


Place = Path | PostgreSQLState | LeasedState


@pytest.fixture(params=["a folder", "PostgreSQL"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "a folder":
        yield tmp_path / "state"
        return
    database = request.getfixturevalue("postgresql")
    if request.param == "PostgreSQL":
        yield PostgreSQLState(database)
        return
    with closing(PostgreSQLLeases(database, "me", "me")) as table:
        share = FleetShare(table, clock=lambda: 0.0)  # which does not end
        share.set_listed({"rsnotify"})
        share.beat()
        with closing(StatePool(database, "me")) as pool:
            yield LeasedState(pool, "rsnotify", share)


Reopen = Callable[[], DestinationState]


#: Also with connections that change between transactions.
everywhere = pytest.mark.parametrize(
    "place", ["a folder", "PostgreSQL", "PostgreSQL, under a lease"], indirect=True
)


@pytest.fixture
def reopen(place: Place) -> Iterator[Reopen]:
    """Close the state, if it is open, and open it as the next process would."""
    opened: list[DestinationState] = []

    def again() -> DestinationState:
        for state in opened:
            state.close()
        opened[:] = [DestinationState(place)]
        return opened[0]

    yield again
    for state in opened:
        state.close()


@pytest.fixture
def state(reopen: Reopen) -> DestinationState:
    return reopen()


def find(state: DestinationState, uri: str) -> ResourceState:
    found = state.find(uri)
    assert found is not None
    return found


def create_effects(state: DestinationState) -> None:
    state.transactions.apply_within(
        lambda connection: connection.execute("CREATE TABLE effect (n integer)")
    )


def held(
    uri: str, at: Instant, change: ChangeType = ChangeType.UPDATED, hash: str | None = None
) -> ResourceState:
    return ResourceState(uri, to_microseconds(at), change.value, hash)


def change(at: Instant, kind: ChangeType = ChangeType.UPDATED, hash: str | None = None) -> Change:
    return Change("u", kind, at, Resource("u", change=kind, hash=hash))


@pytest.mark.parametrize(
    ("have", "new", "covered"),
    [
        (held("u", PRECISE), change(SECOND), True),
        (held("u", SECOND), change(PRECISE), False),
        (held("u", PRECISE), change(PRECISE), True),
        (held("u", SECOND), change(SECOND), False),
        (held("u", SECOND, hash=A), change(SECOND, hash=A), True),
        (held("u", SECOND, hash=A), change(SECOND, hash=B), False),
        (held("u", PRECISE, hash=A), change(PRECISE, hash=B), False),
        (held("u", PRECISE, ChangeType.DELETED), change(PRECISE), False),
        (held("u", PRECISE, ChangeType.DELETED), change(PRECISE, ChangeType.DELETED), True),
        (held("u", SECOND, ChangeType.DELETED), change(SECOND, ChangeType.DELETED), True),
        (held("u", SECOND, ChangeType.DELETED), change(SECOND, ChangeType.CREATED), False),
        (held("u", PRECISE), Change("u", ChangeType.UPDATED, PRECISE, Resource("u")), False),
        (held("u", PRECISE), Change("u", ChangeType.UPDATED, SECOND, Resource("u")), True),
    ],
)
def test_which_changes_need_not_be_applied_again(
    have: ResourceState, new: Change, covered: bool
) -> None:
    assert have.covers(new) is covered


@pytest.mark.parametrize(
    ("hash", "lastmod", "covered"),
    [(A, SECOND, False), (B, SECOND, True), (None, SECOND, False), (None, PRECISE, True)],
)
def test_a_deletion_of_the_held_version_is_later_whatever_its_datetime(
    hash: str | None, lastmod: Instant, covered: bool
) -> None:
    later = to_microseconds(SECOND + timedelta(minutes=1))
    have = ResourceState("u", later, ChangeType.UPDATED.value, A, 1, to_microseconds(SECOND))
    entry = Resource("u", change=ChangeType.DELETED, hash=hash, lastmod=lastmod)
    assert have.covers(Change("u", ChangeType.DELETED, lastmod, entry)) is covered


@pytest.mark.parametrize(("lastmod", "covered"), [(SECOND, True), (PRECISE, False)])
def test_a_resource_list_dated_before_a_version_supersedes_it_with_a_later_lastmod(
    lastmod: Instant, covered: bool
) -> None:
    later = to_microseconds(PRECISE + timedelta(days=1))
    have = ResourceState("u", later, ChangeType.UPDATED.value, A, 1, to_microseconds(SECOND))
    entry = Resource("u", hash=B, lastmod=lastmod)
    assert have.covers(Change("u", ChangeType.UPDATED, PRECISE, entry)) is covered


def test_a_comparison_returns_the_entries_that_differ_from_the_copy(
    state: DestinationState,
) -> None:
    later = PRECISE + timedelta(days=1)
    state.commit(
        [
            held("same", SECOND, hash=A),
            held("other", SECOND, hash=A),
            held("deleted", SECOND, ChangeType.DELETED),
            held("later", later, hash=A),
            held("deleted later", later, ChangeType.DELETED),
            ResourceState("unhashed", 0, "updated", None, 5, to_microseconds(SECOND)),
            ResourceState("touched", 0, "updated", None, 5, to_microseconds(SECOND)),
            *(
                ResourceState(uri, to_microseconds(later), "updated", A, 5, to_microseconds(SECOND))
                for uri in ("superseded", "as listed", "listed earlier")
            ),
        ],
        None,
    )
    listed = [
        Resource("superseded", lastmod=PRECISE, hash=B),
        Resource("as listed", lastmod=PRECISE, hash=A),
        Resource("listed earlier", lastmod=SECOND - timedelta(days=1), hash=B),
        Resource("same", hash=A),
        Resource("other", hash=B),
        Resource("deleted", hash=A),
        Resource("later", hash=B),
        Resource("deleted later", hash=B),
        Resource("new", hash=A),
        Resource("unhashed", lastmod=SECOND, length=5),
        Resource("touched", lastmod=PRECISE, length=5),
    ]
    differing, absent, *_ = state.baseline.compare(listed, PRECISE)
    assert [resource.uri for resource in differing] == ["superseded", "other", "touched"]
    assert [resource.uri for resource in absent] == ["deleted", "new"]


@everywhere
def test_resources_that_no_list_of_this_baseline_had_are_returned(state: DestinationState) -> None:
    later = PRECISE + timedelta(days=1)
    old = [held(uri, SECOND) for uri in ("a", "b", "c")]
    state.commit([*old, held("later", later), held("gone", SECOND, ChangeType.DELETED)], None)
    state.begin_baseline()
    state.baseline.compare([Resource("a"), Resource("b")], PRECISE)
    assert state.baseline.unlisted(PRECISE)[0] == ["c"]
    state.begin_baseline()
    state.baseline.compare([Resource("c")], PRECISE)
    assert state.baseline.unlisted(PRECISE)[0] == ["a", "b"]


def test_a_baseline_decides_about_what_changed_up_to_its_very_instant(
    state: DestinationState,
) -> None:
    later = PRECISE + timedelta(microseconds=1)
    for at, concerns in ((PRECISE, True), (later, False)):
        state.commit([held("listed", at, hash=A), held("unlisted", at, hash=A)], None)
        state.begin_baseline()
        listed = Resource("listed", hash=B)
        differing, *others = state.baseline.compare([listed], PRECISE)
        assert (differing, any(others)) == ([listed] if concerns else [], False)
        assert state.baseline.unlisted(PRECISE)[0] == (["unlisted"] if concerns else [])


def test_a_tombstone_is_kept_for_an_hour_before_the_last_list_begins(
    state: DestinationState,
) -> None:
    """Until then, a cache may serve a list that announces the resource."""
    hour, deleted = timedelta(hours=1), PRECISE + timedelta(hours=3)
    state.commit([held("u", deleted, ChangeType.DELETED)], Progress(deleted, SECOND))
    later = deleted + 2 * hour
    since = ListFingerprint("list", deleted + hour, later)
    for progress in (Progress(deleted, deleted + hour), Progress(later, later, prefix=since)):
        state.commit([], progress)
        assert state.find("u") is not None
    state.commit([], Progress(later, later))
    assert state.find("u") is None


@everywhere
def test_progress_outlives_the_process(state: DestinationState, reopen: Reopen) -> None:
    progress = Progress(PRECISE, SECOND, (("u", "updated", A),))
    state.commit([held("u", PRECISE, hash=A)], progress)
    again = reopen()
    assert again.progress() == progress
    assert again.find("u") == held("u", PRECISE, hash=A)
    assert again.resources == 1


def test_a_state_is_used_by_one_process_at_a_time(state: DestinationState, place: Place) -> None:
    with pytest.raises(ConfigurationError, match="in use"):
        DestinationState(place)


def updated(uri: str, at: datetime, hash: str = A) -> Change:
    resource = Resource(uri, change=ChangeType.UPDATED, datetime=at, hash=hash)
    return Change(uri, ChangeType.UPDATED, at, resource)


@everywhere
def test_a_state_is_opened_without_the_backlog_of_an_earlier_run(reopen: Reopen) -> None:
    reopen().backlog.use(StoreBacklog(((updated("a", SECOND), SECOND),)))
    again = reopen().backlog
    assert again.use(TakeBacklog(9)) == (BacklogExtent(), [])
    assert again.use(StoreBacklog(((updated("b", SECOND), SECOND),)))[0].resources == 1


@everywhere
def test_the_effect_of_a_handler_is_committed_with_the_progress_over_it(
    state: DestinationState, reopen: Reopen
) -> None:
    create_effects(state)
    with pytest.raises(ZeroDivisionError):
        state.transactions.apply_within(_fail)
    state.transactions.apply_within(
        lambda connection: connection.execute("INSERT INTO effect VALUES (2)")
    )
    state.save_progress(Progress(SECOND, SECOND))  # it must not end what the handler began
    assert state.find("u") is None
    state = reopen()
    assert state.progress() is None
    for statement in ("CREATE TABLE effect (n integer)", "INSERT INTO effect VALUES (3)"):
        state.transactions.apply_within(lambda connection, text=statement: connection.execute(text))
    state.commit([held("u", PRECISE)], Progress(PRECISE, PRECISE))
    state = reopen()
    assert state.progress() == Progress(PRECISE, PRECISE)
    found: list[object] = []
    state.transactions.apply_within(
        lambda connection: found.extend(connection.execute("SELECT n FROM effect"))
    )
    assert found == [(3,)]


def _fail(connection: Any) -> None:
    connection.execute("INSERT INTO effect VALUES (1)")
    raise ZeroDivisionError


def test_connecting_to_a_server_that_never_answers_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgresql, "_CONNECT_TIMEOUT", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = PostgreSQLState(f"host=127.0.0.1 port={silent.getsockname()[1]}")
        with pytest.raises(StorageError, match="no answer in time"):
            DestinationState(place)


@pytest.mark.parametrize("conninfo", ["canary", "host='canary", "postgresql://me:canary%zz@a/"])
def test_the_connection_string_is_never_shown(conninfo: str) -> None:
    with pytest.raises(ConfigurationError, match="connection string") as error:
        PostgreSQLState(conninfo)
    assert "canary" not in str(error.value)


def test_no_commit_follows_a_failed_commit(state: DestinationState) -> None:
    broken = ResourceState("u", 1, None)  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        state.commit([held("before", SECOND), broken], Progress(PRECISE, PRECISE))
    assert state.find("before") is None
    with pytest.raises(StorageError, match="an earlier commit failed"):
        state.commit([], Progress(PRECISE, PRECISE))
    assert state.progress() is None


def test_a_damaged_state_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"this is no database" * 100)
    with pytest.raises(StorageError, match=r"state\.sqlite|not a database"):
        DestinationState(tmp_path)


def sha(number: int) -> str:
    return f"md5:{number:032x} sha-256:{number:064x}"


def summed_up(*held: tuple[str, int]) -> str:
    total = SetSum()
    total.add((uri, sha(number)) for uri, number in held)
    return str(total)


def test_the_sum_agrees_with_the_copy_after_every_commit(
    state: DestinationState, reopen: Reopen
) -> None:
    assert str(state.sum) == summed_up()
    state.commit([held("a", SECOND, hash=sha(1)), held("b", SECOND, hash=sha(2))], None)
    assert str(state.sum) == summed_up(("a", 1), ("b", 2))
    twice = [held("a", SECOND, hash=sha(3)), held("a", PRECISE, hash=sha(4))]
    gone = [held("b", PRECISE, ChangeType.DELETED), held("never", PRECISE, ChangeType.DELETED)]
    state.commit([*twice, *gone], Progress(PRECISE, SECOND))
    assert str(state.sum) == summed_up(("a", 4))
    state.save_progress(Progress(PRECISE, PRECISE))
    assert state.latest == PRECISE
    again = reopen()
    assert (str(again.sum), again.resources) == (summed_up(("a", 4)), 1)
    assert again.latest == PRECISE


@pytest.mark.parametrize("kept", [None, "7 0 00", "1 0", "seven"])
def test_a_state_of_a_version_without_sums_is_summed_up_once(
    state: DestinationState, reopen: Reopen, kept: str | None
) -> None:
    state.commit([held("a", SECOND, hash=sha(1)), held("b", SECOND, hash=sha(2))], None)
    if kept is None:
        state.database.execute("DELETE FROM {facts} WHERE name = 'sum'")
    else:
        with state.transactions.writing():
            state.transactions.write_facts(sum=kept)
    again = reopen()
    assert str(again.sum) == summed_up(("a", 1), ("b", 2))
    again.commit([held("b", PRECISE, ChangeType.DELETED)], None)
    assert str(again.sum) == summed_up(("a", 1))


def test_a_baseline_computes_the_sum_again(state: DestinationState) -> None:
    state.commit([held("a", SECOND, hash=sha(1))], None)
    state.sum = SetSum(1, 0, 12345)
    state.begin_baseline()
    assert str(state.sum) == summed_up(("a", 1))


def test_an_invalidated_state_has_no_comparable_sum(state: DestinationState) -> None:
    state.commit([held("a", SECOND, hash=sha(1))], None)
    state.invalidate()
    assert state.resources == 1
    assert state.sum.digest() is None


def test_the_sum_is_committed_with_the_transaction_of_the_handler(
    state: DestinationState, reopen: Reopen
) -> None:
    create_effects(state)
    state = reopen()  # as if it died before the commit
    assert str(state.sum) == summed_up()
    create_effects(state)
    state.commit([held("a", SECOND, hash=sha(1))], Progress(SECOND, SECOND))
    state = reopen()
    assert str(state.sum) == summed_up(("a", 1))


def test_datetimes_that_are_later_than_possible_are_forgotten(
    state: DestinationState,
) -> None:
    later = SECOND + timedelta(days=30_000)
    state.commit([held("a", SECOND, hash=A), held("b", later, hash=B)], Progress(later, later))
    state.forget_datetimes(later)
    assert state.latest == later
    state.forget_datetimes(SECOND)
    assert state.latest == SECOND
    assert state.progress() == Progress(later, later)
    listed = [Resource("a", hash=A), Resource("b", hash=A)]
    assert [one.uri for one in state.baseline.compare(listed, SECOND)[0]] == ["b"]
    state.forget_datetimes(SECOND, entirely=True)
    assert state.progress() is None
    assert state.resources == 2


@everywhere
def test_changes_that_were_being_applied_at_a_crash_are_held_with_unknown_content(
    state: DestinationState, reopen: Reopen
) -> None:
    state.store_intent(["a", "b"], ())
    state.commit([held("a", SECOND, hash=sha(1)), held("b", SECOND, hash=sha(2))], None)
    state.store_intent(["b", "c"], ())
    again = reopen()  # before the commit
    assert again.unknown_uris() == ["b", "c"]
    assert again.resources == 3
    assert again.sum.digest() is None
    assert again.find("b") == held("b", datetime(1970, 1, 1, tzinfo=UTC))
    # Every change of these is new.
    listed = [Resource("a", hash=sha(1)), Resource("b", hash=sha(2))]
    again.begin_baseline()
    assert [one.uri for one in again.baseline.compare(listed, SECOND)[0]] == ["b"]
    assert again.baseline.unlisted(SECOND) == (["c"], [])
    again.commit([held("b", SECOND, hash=sha(2)), held("c", SECOND, ChangeType.DELETED)], None)
    assert again.unknown_uris() == []
    assert str(again.sum) == summed_up(("a", 1), ("b", 2))
    last = reopen()
    assert last.unknown_uris() == []


def test_changes_that_a_handler_refused_stay_in_doubt(
    state: DestinationState, reopen: Reopen
) -> None:
    state.store_intent(["a", "bad"], ())
    state.store_intent(["a", "bad"], {"bad"})
    state.commit([held("a", SECOND, hash=sha(1))], None)
    state.store_intent(["b"], {"bad"})
    state.commit([held("b", SECOND, hash=sha(2))], None)
    again = reopen()
    assert again.unknown_uris() == ["bad"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_intent_that_was_being_written_at_a_crash_hides_none_before_it(
    tmp_path: Path, is_committed: bool
) -> None:
    folder = tmp_path / "state"
    unfinished = {"bad"} if is_committed else {"a", "bad"}
    with closing(DestinationState(folder)) as state:
        state.store_intent(["a", "bad"], ())
        if is_committed:
            state.store_intent(["a", "bad"], {"bad"})
            state.commit([held("a", SECOND, hash=sha(1))], None)
        before = _intents(folder)
        state.store_intent(["b"] if is_committed else ["a", "bad"], {"bad"})
        after = _intents(folder)
    (changed,) = [name for name in after if after[name] != before.get(name)]
    whole, old = after[changed], before.get(changed, b"")
    for length in part(range(len(whole)), len(whole) - 1, 3):
        for rest in (b"", bytes(100), old[length:]):
            torn = shutil.copytree(folder, tmp_path / "torn")
            (torn / changed).write_bytes(whole[:length] + rest)
            with closing(DestinationState(torn)) as again:
                assert unfinished <= {*again.unknown_uris()}
            shutil.rmtree(torn)


def test_an_intent_for_which_the_disk_has_no_room_is_an_error_and_hides_none_before_it(
    tmp_path: Path,
) -> None:
    with closing(DestinationState(tmp_path)) as state:
        state.store_intent(["a", "bad"], ())
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
        try:
            with pytest.raises(StorageError, match=r"applying: the disk is full"):
                state.store_intent(["a", "bad"], {"bad"})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with closing(DestinationState(tmp_path)) as again:
        assert again.unknown_uris() == ["a", "bad"]


def _intents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*applying")}


@everywhere
def test_a_state_of_an_earlier_version_is_used_on(
    place: Place, state: DestinationState, reopen: Reopen
) -> None:
    is_local = isinstance(place, Path)
    schema = "" if is_local else "rsnotify."
    for index in ("lost", "identities"):
        state.database.execute(f"DROP INDEX {schema}{index}")
    for column in ("identity", "spelling", "mtime", "fetched_at", "validator"):
        if column == "validator" and not is_local:
            break  # there was none without it
        state.database.execute(f"ALTER TABLE {{resources}} DROP COLUMN {column}")
    values = ("u", 1, "updated", A, 5, None)
    marks = "?, ?, ?, ?, ?, ?" + ("" if is_local else ", NULL")
    state.database.execute(f"INSERT INTO {{resources}} VALUES ({marks})", values)
    again = reopen()
    assert again.find("u") == ResourceState("u", 1, "updated", A, 5)
    [file] = again.held_files("", 10)
    assert again.record_files([(file, 6)], []) == 0
    state_of_now = ResourceState("u", 2, "updated", A, 5, 3, 'ETag: "x"', 4, 7)
    again.commit([state_of_now], None)
    assert again.find("u") == state_of_now


@everywhere
def test_a_lost_resource_stays_lost_until_its_content_is_stored(
    state: DestinationState, reopen: Reopen
) -> None:
    at = to_microseconds(SECOND)
    written = [ResourceState(name, at, "updated", A, 5, mtime=1) for name in "abc"]
    state.commit(written, None)
    assert state.lose(["a", "b", "unknown"]) == 2
    state = reopen()
    assert list(state.lost_changes("", 10)) == ["a", "b"]
    assert state.lost_changes("a", 1)["b"].resource.hash == A
    assert find(state, "a").hash is None, "nothing announced may pass for what the copy has"
    # A change that was found to need no content, before the loss was known, does not end it.
    state.commit([ResourceState("a", at + 1, "updated", A, 5)], None)
    assert state.lost == 2
    state.commit([ResourceState("a", at + 2, "updated", B, 5, mtime=9)], None)
    state.commit([ResourceState("b", at + 2, "deleted")], None)
    assert state.lost == 0
    assert state.lose() == 2


@everywhere
def test_the_entry_of_a_resource_is_required_although_its_file_is_unaltered(
    state: DestinationState,
) -> None:
    state.commit([ResourceState("a", 5, "updated", A, 5, mtime=1)], None)
    state.require_entry("a")
    assert state.lost == 1
    assert state.held_files("", 10)[0].length == -1, "a file of that length counts as found"
    assert find(state, "a").changed_at == 0, "a list may be older than the change"


@everywhere
def test_what_another_selection_excludes_is_lost(state: DestinationState) -> None:
    state.store_identity(Identity("", "http://a.example/", Offer()))
    state.commit([held("a/1", PRECISE, hash=A), held("b/1", PRECISE, hash=A)], None)
    state.store_identity(Identity("", "http://a.example/", Offer(), selection=Selection(("a/",))))
    assert list(state.lost_changes("", 10)) == ["b/1"]
    assert state.lost == 1


@everywhere
@pytest.mark.parametrize(
    ("offer", "last_list", "stays"),
    [
        (Offer(resource_list="list"), ComparedList(b"1", PRECISE), PRECISE),
        (Offer(resource_list="list", change_list="changes"), ComparedList(at=PRECISE), PRECISE),
        (Offer(resource_list="list", resource_dump="dump"), None, SECOND),
    ],
)
def test_how_recent_the_copy_is_stays_known_with_another_selection(
    state: DestinationState,
    offer: Offer,
    last_list: ComparedList | None,
    stays: Instant,
) -> None:
    of_all = Identity("", "http://a.example/", offer)
    state.store_identity(of_all)
    state.commit([], Progress(SECOND, SECOND, last_list=last_list))
    for selection in (Selection(("a/",)), Selection(("b/",))):
        state.store_identity(replace(of_all, selection=selection))
        assert state.progress() is None
        assert state.last_list() == ComparedList(at=stays)
    has_changes = replace(offer, change_list="changes")
    state.commit([], Progress(SECOND + DAY, SECOND + DAY))
    state.store_identity(replace(of_all, offer=has_changes))
    assert state.last_list() == ComparedList(at=stays), "the change lists reached further"
    state.forget_datetimes(SECOND, entirely=True)
    assert state.last_list() is None, "the clock of the Source has gone back"


def test_a_file_that_is_written_while_it_is_compared_is_not_lost(state: DestinationState) -> None:
    state.commit([ResourceState("a", 1, "updated", A, 5, mtime=1)], None)
    [before] = state.held_files("", 10)
    state.commit([ResourceState("a", 2, "updated", B, 5, mtime=2)], None)
    assert state.record_files([(before, 3)], [before]) == 0
    assert state.held_files("", 10)[0].mtime == 2


def test_resources_of_an_earlier_version_are_found_by_any_spelling(
    state: DestinationState, reopen: Reopen
) -> None:
    """It stored `ü` beside `%C3%BC`; the next comparison removes the one that is not listed."""
    umlaut, octets = "http://a.example/\u00fc", "http://a.example/%C3%BC"
    names = ["http://a.example/%7Ea", umlaut, octets, "http://a.example/b"]
    state.commit([held(uri, SECOND, hash=A) for uri in names], Progress(SECOND, SECOND))
    state.database.execute("UPDATE {resources} SET identity = NULL")
    again = reopen()
    assert again.progress() is None, "everything is compared"
    assert again.find("http://a.example/~a") == held("http://a.example/%7Ea", SECOND, hash=A)
    again.begin_baseline()
    listed = [Resource(uri, hash=A) for uri in ("http://a.example/~a", umlaut, names[-1])]
    assert not any(again.baseline.compare(listed, SECOND))
    assert again.baseline.unlisted(SECOND) == ([], [umlaut])
    assert find(again, umlaut).uri == umlaut
    assert find(again, "http://a.example/%c3%bc").uri == octets
    again.commit([held(umlaut, PRECISE, ChangeType.DELETED)], Progress(PRECISE, PRECISE))
    last = reopen()
    assert last.progress() is not None
    assert sorted(last.held_uris()) == sorted({*names} - {umlaut})


def test_the_sum_has_the_spelling_that_the_source_wrote_last(
    state: DestinationState, reopen: Reopen
) -> None:
    tilde, octets = "http://a.example/~b", "http://a.example/%7Eb"
    hash = "sha-256:" + "a" * 64
    state.commit([held(tilde, SECOND, hash=hash)], None)
    state.begin_baseline()
    for listed in (octets, tilde, octets):
        state.begin_baseline()
        assert not any(state.baseline.compare([Resource(listed, hash=hash)], SECOND))
        expected = SetSum()
        expected.add([(listed, hash)])
        assert state.sum == expected
    state.lose([tilde])
    change = state.lost_changes("", 10)[tilde]
    assert (change.uri, change.resource.uri) == (tilde, octets)
    again = reopen()
    again.begin_baseline()
    assert again.sum == expected


@pytest.mark.parametrize("pages", [1, 2])
@everywhere
def test_a_resource_that_is_listed_in_two_spellings_is_held_once_and_in_doubt(
    state: DestinationState, reopen: Reopen, pages: int
) -> None:
    uris = ["http://a.example/~b", "http://a.example/%7Eb"]
    for first, second in (uris, uris[::-1]):
        state.begin_baseline()
        assert not state.doubts
        listed = [Resource(first, hash=A), Resource(second, hash=B)]
        parts = [listed] if pages == 1 else [listed[:1], listed[1:]]
        found = [state.baseline.compare(part, SECOND) for part in parts]
        assert [one for part in found for one in part.absent] == listed[:1]
        (uri, why), *_ = state.doubts.items()
        assert uri == second
        assert first in why
    again = reopen()
    assert list(again.doubts) == uris[:1]
    again.begin_baseline()
    assert not again.doubts


def test_a_resource_is_found_by_another_spelling_of_its_uri(state: DestinationState) -> None:
    tilde, encoded = "http://a.example/~b", "http://a.example/%7eb"
    state.commit([held(tilde, SECOND, hash=A)], None)
    assert state.find("HTTP://A.example/%7Eb") == held(tilde, SECOND, hash=A)
    state.begin_baseline()
    assert not any(state.baseline.compare([Resource(encoded, hash=A)], SECOND))
    assert not any(state.baseline.unlisted(SECOND))
    state.commit([held(encoded, PRECISE, ChangeType.DELETED)], None)
    assert (
        find(state, encoded).uri == tilde
    )  # what is there counts, not the tombstone of an earlier version


@pytest.mark.parametrize(("fetched", "differs"), [(0, True), (1_000_000, False), (None, False)])
def test_an_entry_without_a_hash_is_settled_once_its_second_is_over(
    state: DestinationState, reopen: Reopen, fetched: int | None, differs: bool
) -> None:
    second = SECOND + timedelta(hours=3)
    lastmod = to_microseconds(second)
    fetched_at = None if fetched is None else lastmod + fetched
    state.commit([ResourceState("u", 0, "updated", A, 5, lastmod, None, fetched_at)], None)
    for listed in (Resource("u", lastmod=second), Resource("u", lastmod=second, hash=A)):
        # One that was fetched by this very process is not fetched again at each comparison.
        assert not any(state.baseline.compare([listed], PRECISE + DAY))
    again = reopen()
    listed = Resource("u", lastmod=second)
    assert bool(again.baseline.compare([listed], PRECISE + DAY)[0]) is differs
    assert not any(again.baseline.compare([replace(listed, hash=A)], PRECISE + DAY))


@pytest.mark.parametrize(
    ("lastmod", "waits", "is_long"),
    [(SECOND + timedelta(hours=3, seconds=5), 1.0, False), (SECOND.replace(fold=1), 900.0, True)],
    ids=["a second", "a day"],
)
def test_content_that_may_change_again_is_fetched_again_when_its_second_is_over(
    state: DestinationState,
    monkeypatch: pytest.MonkeyPatch,
    lastmod: datetime,
    waits: float,
    is_long: bool,
) -> None:
    now = 50.0
    monkeypatch.setattr("rsnotify_subscriber.storage.baseline_tables.monotonic", lambda: now)
    at = to_microseconds(lastmod)
    state.commit([ResourceState("u", 0, "updated", A, 5, at, None, at)], None)
    assert bool(state.baseline.long_unsettled) is is_long
    for passed, differs in ((0.9 * waits, False), (waits, True)):
        now = 50.0 + passed
        found = state.baseline.compare([Resource("u", lastmod=lastmod)], PRECISE + DAY)
        assert bool(found.differing) is differs


@pytest.mark.parametrize(
    ("hours", "novelty"), [(0, Novelty.COVERED), (-1, Novelty.FETCH), (1, Novelty.COVERED)]
)
def test_a_listed_version_before_that_of_the_copy_is_not_what_was_fetched_after_it(
    hours: int, novelty: Novelty
) -> None:
    """The Source was restored from a backup, and its entries have no hashes."""
    updated = PRECISE + timedelta(hours=3)
    at = to_microseconds(updated)
    state = ResourceState("u", at, "updated", A, 5, at, None, at + 9_000_000)
    listed = updated + timedelta(hours=hours)
    entry = Resource("u", change=ChangeType.UPDATED, datetime=PRECISE, lastmod=listed)
    change = Change("u", ChangeType.UPDATED, PRECISE, entry, check=CheckMethod.COMPARE)
    assert state.novelty(change) is novelty


@pytest.mark.parametrize(
    ("fetched", "hash", "check", "may_be_later"),
    [
        (90, B, CheckMethod.COMPARE, True),
        (90, A, CheckMethod.COMPARE, False),
        (30, B, CheckMethod.COMPARE, False),
        (90, B, CheckMethod.DATE, False),
    ],
    ids=["another version", "the same", "a later version", "by date"],
)
def test_content_that_was_fetched_after_a_compared_entry_may_be_later(
    fetched: int, hash: str, check: CheckMethod, may_be_later: bool
) -> None:
    fetched_at = to_microseconds(PRECISE + timedelta(seconds=fetched))
    state = ResourceState("u", to_microseconds(PRECISE), "updated", A, 5, None, None, fetched_at)
    at = PRECISE + timedelta(minutes=1)
    entry = Resource("u", change=ChangeType.UPDATED, datetime=at, hash=hash)
    change = Change("u", ChangeType.UPDATED, at, entry, check=check)
    assert state.novelty(change) is Novelty.APPLY
    assert state.may_be_later_than(change) is may_be_later


def test_doubts_are_stored_until_their_resources_are_settled(
    state: DestinationState, reopen: Reopen
) -> None:
    old = ContentDoubt("old", SECOND)
    state.commit([held("a", SECOND), held("b", SECOND, hash=A)], None, {"a": old, "b": old})
    state.commit([held("a", PRECISE)], None)
    again = reopen()
    assert again.doubts == {"b": "old"}
    assert [(one.uri, one.resource.lastmod) for one in again.doubted_changes()] == [("b", SECOND)]
    many = [str(number) for number in range(1000)]
    again.commit([held(one, SECOND) for one in many], None, dict.fromkeys(many, old))
    assert len(again.doubts) == 100
    again.commit([held(one, PRECISE) for one in ["b", *many]], None)
    assert len(again.doubts) == 1  # others were, and may still be
    assert not again.doubted_changes()
    again.begin_baseline()
    assert again.doubts == {}


def test_postgresql_has_flushed_the_record_of_several_changes_when_it_is_stored(
    postgresql: str,
) -> None:
    with (
        closing(DestinationState(PostgreSQLState(postgresql))) as state,
        psycopg.connect(postgresql, autocommit=True) as other,
    ):
        for _ in range(10):  # without waiting, the server flushes five times a second
            before = other.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
            state.store_intent(["a", "b"], ())
            query = "SELECT pg_current_wal_flush_lsn() > %s::pg_lsn"
            assert other.execute(query, before).fetchone() == (True,)


# A state is opened, used and closed by whatever thread is free.


async def test_a_state_that_another_thread_closed_is_free_again(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        state = first.submit(DestinationState, tmp_path).result(PATIENCE)
        with pytest.raises(ConfigurationError, match="in use"):
            DestinationState(tmp_path)
        assert state.find("https://a.example/") is None
        second.submit(state.close).result(PATIENCE)
    DestinationState(tmp_path).close()


@pytest.mark.parametrize("in_use", [False, True])
async def test_a_task_cancelled_while_a_state_is_opened_is_cancelled_and_leaves_it_as_it_was(
    tmp_path: Path, in_use: bool
) -> None:
    gate = Barrier(2, timeout=PATIENCE)

    async def open_it() -> None:
        async with open_state(tmp_path, lane):
            raise AssertionError("it was cancelled before, or is in use")

    state = DestinationState(tmp_path) if in_use else None
    with ThreadPoolExecutor(2) as pool, Lane(pool) as lane:
        blocked = lane.submit(gate.wait)
        opening = asyncio.create_task(open_it())
        await asyncio.sleep(0)  # it waits for its turn in the lane
        opening.cancel()
        gate.wait()
        blocked.result(PATIENCE)
        with pytest.raises(asyncio.CancelledError):
            await opening
    if state is not None:
        state.close()
    DestinationState(tmp_path).close()
