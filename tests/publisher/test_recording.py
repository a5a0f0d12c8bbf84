"""Recording from many threads, from asyncio and from several processes, durably."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.model import ChangeType, Link, Resource
from rsnotify_publisher import Publisher, Record, SourceDescription
from rsnotify_publisher.journal import Journal, Recorder
from tests.fork_server import forked
from tests.publisher.helpers import BASE, PATIENCE, quick_publisher, update
from tests.publisher.published import recorded

WRITER = """
import sys
from rsnotify_publisher import Publisher
name, count = sys.argv[2], int(sys.argv[3])
with Publisher(sys.argv[1], "http://source.example/data/") as publisher:
    for number in range(count):
        change = publisher.updated(f"http://source.example/data/{name}-{number}")
        print(change.uri, flush=True)
"""


class Holding:
    """An operation that waits until the test sets `go`."""

    def __init__(self) -> None:
        self.started, self.go = threading.Event(), threading.Event()

    def __call__(self, _: object) -> None:
        self.started.set()
        self.go.wait(PATIENCE)


def assert_ordered(changes: list[Resource]) -> None:
    datetimes = [change.datetime for change in changes]
    assert all(a < b for a, b in pairwise(datetimes))


def test_a_recorded_change_is_returned_with_its_datetime(tmp_path: Path):
    link = Link("describedby", "http://source.example/about")
    with quick_publisher(tmp_path) as publisher:
        change = publisher.created(
            BASE + "a", length=3, type="text/turtle", hash="md5:00", links=[link]
        )
        assert recorded(publisher) == [change]
    assert change.datetime is not None
    assert (change.length, change.type, change.links) == (3, "text/turtle", (link,))


def test_the_first_change_starts_the_publisher(tmp_path: Path):
    publisher = quick_publisher(tmp_path)
    try:
        publisher.deleted(BASE + "a")
        assert publisher.wait_published(PATIENCE)
    finally:
        publisher.close()


def test_a_closed_publisher_can_be_started_again(tmp_path: Path):
    publisher = quick_publisher(tmp_path)
    for name in ("a", "b"):
        with publisher:
            publisher.updated(BASE + name)
    assert [change.uri for change in recorded(publisher)] == [BASE + "a", BASE + "b"]


def test_threads_record_concurrently_without_loss_or_duplicates(tmp_path: Path):
    with quick_publisher(tmp_path) as publisher:

        def record(thread: int) -> list[Resource]:
            return [publisher.updated(f"{BASE}{thread}-{number}") for number in range(50)]

        with ThreadPoolExecutor(8) as pool:
            reported = [change for changes in pool.map(record, range(8)) for change in changes]
        kept = recorded(publisher)
    assert_ordered(kept)
    assert sorted(kept, key=lambda change: change.uri) == sorted(reported, key=lambda c: c.uri)


async def test_asyncio_records_concurrently(tmp_path: Path):
    async with quick_publisher(tmp_path) as publisher:
        reported = await asyncio.gather(*(publisher.aupdated(f"{BASE}{n}") for n in range(200)))
        assert await publisher.acreated(BASE + "x")
        assert await publisher.adeleted(BASE + "x")
        kept = recorded(publisher)
    assert_ordered(kept)
    assert {change.uri for change in reported} < {change.uri for change in kept}
    assert len(kept) == 202


def test_several_processes_record_concurrently(tmp_path: Path):
    command = [*forked(WRITER), str(tmp_path)]
    writers = [
        subprocess.Popen([*command, name, "60"], stdout=subprocess.DEVNULL)
        for name in ("x", "y", "z")
    ]
    assert [writer.wait(PATIENCE * 2) for writer in writers] == [0, 0, 0]
    kept = recorded(Publisher(tmp_path, BASE))
    assert_ordered(kept)
    expected = {f"{BASE}{name}-{number}" for name in "xyz" for number in range(60)}
    assert {change.uri for change in kept} == expected
    assert len(kept) == 180


def test_acknowledged_changes_survive_kill_9(tmp_path: Path):
    command = [*forked(WRITER), str(tmp_path), "x", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        reported = [writer.stdout.readline().strip() for _ in range(100)]
        writer.kill()
        reported += [line.strip() for line in writer.stdout if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    kept = [change.uri for change in recorded(Publisher(tmp_path, BASE))]
    assert kept[: len(reported)] == reported
    assert len(kept) <= len(reported) + 1


def test_a_host_may_be_an_ipv6_address(tmp_path: Path):
    with quick_publisher(tmp_path) as publisher:
        assert publisher.updated("http://[2001:db8::1]/a").uri == "http://[2001:db8::1]/a"


def test_a_batch_is_recorded_whole_or_not_at_all(tmp_path: Path):
    good = update("a")
    with quick_publisher(tmp_path) as publisher:
        with pytest.raises(ConfigurationError, match="b c"):
            publisher.record([good, update("b c")])
        assert recorded(publisher) == []
        assert len(publisher.record([good, good])) == 2


@pytest.mark.parametrize(
    ("uri", "metadata", "complaint"),
    [
        ("relative", {}, "not an absolute URI"),
        ("", {}, "not an absolute URI"),
        ("http://[", {}, "not an absolute URI"),
        ("http://[::1/a", {}, "not an absolute URI"),
        (BASE + "ä", {}, "percent-encode"),
        (BASE + "a b", {}, "percent-encode"),
        (BASE + "a\x00", {}, "percent-encode"),
        (BASE + "a" * 9000, {}, "longer than"),
        (BASE + "a", {"length": -1}, "length is -1"),
        (BASE + "a", {"length": "3"}, "length is '3'"),
        (BASE + "a", {"hash": "abc"}, "hash is 'abc'"),
        (BASE + "a", {"lastmod": "2026"}, "lastmod is '2026'"),
        (BASE + "a", {"content": "text"}, "content is of type str; encode it"),
        (BASE + "a", {"type": "a\x01b"}, "percent-encode"),
        (BASE + "a", {"color": "red"}, "color"),
        (BASE + "a", {"links": [Link("x", "http://x/\x02")]}, "percent-encode"),
        (BASE + "a", {"links": [Link("related", "http://x/")] * 1_001}, "more than .* links"),
    ],
)
def test_unpublishable_changes_are_refused_in_one_sentence(
    tmp_path: Path, uri: str, metadata: dict[str, object], complaint: str
):
    publisher = Publisher(tmp_path, BASE)
    with pytest.raises(ConfigurationError, match=complaint) as raised:
        publisher.updated(uri, **metadata)
    assert "\n" not in str(raised.value)
    assert publisher.is_empty()


def test_a_closed_recorder_refuses_changes(tmp_path: Path):
    publisher = quick_publisher(tmp_path)
    publisher.start()
    recorder = publisher._recorder
    publisher.close()
    with pytest.raises(StorageError, match="closed"):
        recorder.submit(lambda journal: journal.state())


def test_a_failing_operation_does_not_fail_the_others_of_its_group(tmp_path: Path):
    hold = Holding()
    with quick_publisher(tmp_path) as publisher:
        holding = publisher._recorder.submit(hold)
        assert hold.started.wait(PATIENCE)
        # These arrive while the first one is running, so they share a transaction.
        good = publisher.submit([update("a")])
        bad = publisher._recorder.submit(lambda _: 1 / 0)
        hold.go.set()
        holding.result(PATIENCE)
        assert good.result(PATIENCE)[0].uri == BASE + "a"
        with pytest.raises(ZeroDivisionError):
            bad.result(PATIENCE)
        assert len(recorded(publisher)) == 1


def test_a_thread_that_records_alone_commits_itself(tmp_path: Path):
    committed_in: list[threading.Thread] = []

    def note(_: object) -> None:
        committed_in.append(threading.current_thread())

    open_journal = partial(Journal, tmp_path / "journal.sqlite3", BASE)
    with ThreadPoolExecutor(1) as executor:
        recorder = Recorder(open_journal, lambda _: None, executor)
        recorder.start()
        caller = threading.Thread(target=recorder.run, args=(note,))
        caller.start()
        caller.join()
        assert committed_in == [caller]
        # A KeyboardInterrupt could end a commit in the main thread.
        recorder.run(note)
        assert committed_in[1] is not threading.current_thread()
        recorder.close()


class InterruptedExecutor(ThreadPoolExecutor):
    """Its first call raises KeyboardInterrupt, as may happen in the main thread."""

    interrupted = False

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().submit(*args, **kwargs)


@pytest.mark.parametrize("is_last", [False, True])
def test_an_interrupted_caller_does_not_block_others(tmp_path: Path, is_last: bool):
    with Journal(tmp_path / "journal.sqlite3", BASE) as reader, InterruptedExecutor(1) as executor:
        recorder = Recorder(
            lambda: Journal(tmp_path / "journal.sqlite3", BASE), lambda _: None, executor
        )
        recorder.start()

        def record(name: str) -> Callable[[Journal], object]:
            change = update(name)
            return lambda journal: journal.record([Record(change)])

        with pytest.raises(KeyboardInterrupt):
            recorder.run(record("a"))
        if not is_last:
            recorder.submit(record("b")).result(PATIENCE)
        closing = threading.Thread(target=recorder.close, daemon=True)
        closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive()
        names = [change.uri.removeprefix(BASE) for change in reader.changes(0)]
        assert names == (["a"] if is_last else ["a", "b"])


def test_unflushed_changes_are_not_passed_to_feeds(tmp_path: Path):
    passed_on: list[str] = []
    with quick_publisher(tmp_path) as publisher:
        recorder = publisher._recorder
        recorder.on_recorded = lambda recorded: passed_on.extend(
            change.uri for each in recorded for change in each.changes
        )
        database = recorder._journal._db
        database.execute("PRAGMA foreign_keys = ON")
        database.execute(
            "CREATE TEMP TABLE bad (a PRIMARY KEY, b REFERENCES bad DEFERRABLE INITIALLY DEFERRED)"
        )

        def fail_at_the_commit(journal: Journal) -> None:
            journal.record([Record(update("bad"))])
            database.execute("INSERT INTO bad VALUES (1, 2)")

        with pytest.raises(StorageError, match="FOREIGN KEY"):
            recorder.run(fail_at_the_commit)
        publisher.updated(BASE + "good")
        assert [change.uri for change in recorded(publisher)] == [BASE + "good"]
    assert passed_on == [BASE + "good"]


class UnreliableConnection(sqlite3.Connection):
    failed = False

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "ROLLBACK" and not self.failed:
            self.failed = True
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *args)


def test_a_failed_rollback_is_retried_before_the_next_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=UnreliableConnection))
    with Journal(tmp_path / "journal.sqlite3", BASE) as journal:
        changes = [
            Record(update("lost")),
            Record(Resource("\udcff", change=ChangeType.UPDATED)),  # which cannot be stored
        ]
        with pytest.raises(StorageError, match="disk"), journal.transaction():
            journal.record(changes)
        with journal.transaction():
            journal.record([Record(update("kept"))])
        assert [change.uri for change in journal.changes(0)] == [BASE + "kept"]


async def test_a_cancelled_caller_does_not_affect_the_others_of_its_group(tmp_path: Path):
    async with quick_publisher(tmp_path) as publisher:
        hold = Holding()
        holding = publisher._recorder.submit(hold)
        await asyncio.to_thread(hold.started.wait, PATIENCE)
        impatient = asyncio.create_task(publisher.aupdated(BASE + "a"))
        patient = asyncio.create_task(publisher.aupdated(BASE + "b"))
        await asyncio.sleep(0)
        impatient.cancel()
        hold.go.set()
        assert (await patient).uri == BASE + "b"
        assert holding.result(PATIENCE) is None
        # The other may have been recorded, too, as after a lost connection to a database.
        assert BASE + "b" in [change.uri for change in recorded(publisher)]


def test_a_baseline_is_all_or_nothing(tmp_path: Path):
    publisher = Publisher(tmp_path, BASE)
    with pytest.raises(ConfigurationError):
        publisher.load([Resource(BASE + "a"), Resource("nonsense")])
    assert publisher.is_empty()
    assert publisher.load([Resource(BASE + "a"), Resource(BASE + "b")]) == 2
    assert not publisher.is_empty()


def test_a_publisher_started_before_a_fork_is_refused_with_the_remedy(tmp_path: Path):
    script = """
import os, sys
from rsnotify_publisher import Publisher
publisher = Publisher(sys.argv[1], "http://source.example/data/")
publisher.start()
child = os.fork()
if child == 0:
    try:
        publisher.updated("http://source.example/data/a")
    except Exception as error:
        os.write(1, str(error).encode())
    os._exit(0)
os.waitpid(child, 0)
publisher.close()
"""
    done = subprocess.run([*forked(script), str(tmp_path)], capture_output=True, timeout=PATIENCE)
    assert b"after the fork" in done.stdout


@pytest.mark.parametrize(
    "base_url",
    [
        *("source.example/", "ftp://source.example/", "http:///x", "http://u:p@x/"),
        *("http://x:99999/", "http://x:port/"),
        *("http://x/?q=1", "http://x/../y/", "http://x/y/.", "http://x/%2E%2e/y/"),
    ],
)
def test_an_unusable_base_url_is_refused(tmp_path: Path, base_url: str):
    with pytest.raises(ConfigurationError):
        Publisher(tmp_path, base_url)


def test_a_slash_is_added_to_the_base_url(tmp_path: Path):
    assert Publisher(tmp_path, "http://x.example/d").source.base_url == "http://x.example/d/"


# The arguments of a Publisher are checked at once.


async def fetched(_: str) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"state": None}, "state is of type NoneType; give the path of a folder"),
        ({"base_url": Path("source")}, "base_url is of type PosixPath; give a URL"),
        ({"hubs": "https://hub.example/"}, "hubs is of type str; give a list of URLs"),
        ({"hubs": [5]}, "a hub is of type int"),
        ({"options": {"rotate": "1 h"}}, "options is of type dict; give Options"),
        ({"content": b"text"}, "content is of type bytes; give a function"),
        ({"content": fetched}, "content is an async function; define it with"),
        ({"resources": []}, "resources is of type list; give a function"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(given: dict[str, Any], expected: str):
    arguments: dict[str, Any] = {"state": "state", "base_url": BASE} | given
    with pytest.raises(ConfigurationError) as caught:
        Publisher(arguments.pop("state"), arguments.pop("base_url"), **arguments)
    assert expected in str(caught.value)


def test_an_unknown_argument_is_refused(tmp_path: Path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'contents'"):
        Publisher(tmp_path, BASE, contents=lambda uri: None)


def test_sets_of_a_wrong_type_are_refused(tmp_path: Path):
    sets: Any
    for sets in (Publisher(tmp_path, BASE), ["state"]):
        with pytest.raises(ConfigurationError, match="give a"):
            SourceDescription(BASE, sets)


def test_a_change_may_be_a_string(tmp_path: Path):
    with Publisher(str(tmp_path), BASE) as publisher:
        change: Any = "created"
        (recorded,) = publisher.record([Resource(BASE + "one", change=change)])
        assert recorded.change is ChangeType.CREATED


@pytest.mark.parametrize("change", ["made", None, 5])
def test_an_invalid_change_is_refused_with_the_valid_ones(tmp_path: Path, change: Any):
    one = Resource(BASE + "one", change=change)
    expected = "give one of created, updated, deleted"
    with Publisher(tmp_path, BASE) as publisher, pytest.raises(ConfigurationError, match=expected):
        publisher.record([one])
