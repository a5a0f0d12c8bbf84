"""Many sets in one process: a few threads do the work for all, in order for each set."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import aiohttp
import pytest
from watchfiles import Change, awatch

from rsnotify.format.model import Capability, ChangeType, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Publisher, Record, SourceDescription
from rsnotify_publisher.background.pool import FunctionThreads, JournalPoller
from rsnotify_publisher.folder.file_names import FileNames
from rsnotify_publisher.folder.folder_publishing import PublishedFolder
from rsnotify_publisher.folder.scanner import FolderScanner
from rsnotify_publisher.folder.server import folder_application
from rsnotify_publisher.folder.watcher import SystemWatch
from rsnotify_publisher.journal import Journal, Recorder
from rsnotify_publisher.web.application import SharedThreads
from tests.publisher.helpers import (
    BASE,
    PATIENCE,
    QUICK,
    WaitingCallback,
    put,
    quick_publisher,
    serving,
    update,
)
from tests.publisher.published import read, recorded, uris
from tests.publisher.test_recording import Holding

HOST = "https://x.example/"
SETS = 16
#: One event loop, and the maximum for commits, three kinds of documents, and contents.
THREADS = 1 + 8 + 6 + 4 + 2 + 6

Make = Callable[[int], SourceDescription]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(count: int, **settings: object) -> SourceDescription:
        return SourceDescription(
            HOST,
            [
                Publisher(tmp_path / str(n), f"{HOST}{n}/", options=QUICK, **settings)
                for n in range(count)
            ],
        )

    return made


def own_threads() -> int:
    return sum(each.name.startswith("rsnotify") for each in threading.enumerate())


def test_many_sets_need_no_more_threads_than_few(make: Make):
    before = own_threads()
    with make(SETS) as source:
        for publisher in source.sets:
            assert publisher.wait_published(PATIENCE)
        assert own_threads() - before <= THREADS < 2 * SETS
        futures = [
            publisher.submit([Resource(f"{HOST}{n}/{name}", change=ChangeType.UPDATED)])
            for name in "ab"
            for n, publisher in enumerate(source.sets)
        ]
        for future in futures:
            future.result(PATIENCE)
        assert own_threads() - before <= THREADS
    for n, publisher in enumerate(source.sets):
        assert [each.uri for each in recorded(publisher)] == [f"{HOST}{n}/a", f"{HOST}{n}/b"]
        assert uris(read(publisher, "changelist.xml")) == [f"{HOST}{n}/a", f"{HOST}{n}/b"]
    assert own_threads() == before


async def test_shared_threads_restart_with_the_sets(make: Make):
    source = make(2)
    for name in ("one", "two"):
        async with source:
            for n, publisher in enumerate(source.sets):
                await publisher.acreated(f"{HOST}{n}/{name}")
                assert await publisher.await_published(PATIENCE)
    assert [len(recorded(publisher)) for publisher in source.sets] == [2, 2]


def test_a_set_that_cannot_be_listed_does_not_block_others(tmp_path: Path):
    resources = WaitingCallback()
    stuck = Publisher(tmp_path / "stuck", f"{HOST}stuck/", options=QUICK, resources=resources)
    others = [Publisher(tmp_path / n, f"{HOST}{n}/", options=QUICK) for n in "abc"]
    with SourceDescription(HOST, [stuck, *others]):
        for publisher in others:
            assert publisher.wait_published(PATIENCE)
        stuck.updated(f"{HOST}stuck/a")
        assert not stuck.wait_published(0)
        resources.go.set()
        assert stuck.wait_published(PATIENCE)


async def test_waiting_for_documents_ends_after_the_timeout(tmp_path: Path):
    resources = WaitingCallback()
    async with quick_publisher(tmp_path, resources=resources) as publisher:
        assert not await publisher.await_published(0)
        resources.go.set()
        assert await publisher.await_published(PATIENCE)


# Group commits
@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def change(name: str) -> Record:
    return Record(update(name))


def in_turns(folder: Path, pool: ThreadPoolExecutor) -> Recorder:
    recorder = Recorder(lambda: Journal(folder / "j.sqlite3", BASE), lambda _: None, pool)
    recorder.start()
    return recorder


def test_all_that_is_submitted_is_committed_in_order(tmp_path: Path, pool: ThreadPoolExecutor):
    """More operations than fit into one group, immediately followed by `close`."""
    recorder = in_turns(tmp_path, pool)
    hold = Holding()
    recorder.submit(hold)
    assert hold.started.wait(PATIENCE)
    names = [str(n) for n in range(5_100)]
    for name in names:
        recorder.submit(lambda journal, name=name: journal.record([change(name)]))
    hold.go.set()
    recorder.close()
    with Journal(tmp_path / "j.sqlite3", BASE) as journal:
        changes = journal.changes(0)
    assert [each.uri.removeprefix(BASE) for each in changes] == names
    assert all(a.datetime < b.datetime for a, b in pairwise(changes))


def test_a_journal_that_cannot_be_opened_is_reported_at_once(
    tmp_path: Path, pool: ThreadPoolExecutor
):
    (tmp_path / "j.sqlite3").mkdir()
    with pytest.raises(Exception, match=r"j\.sqlite3"):
        in_turns(tmp_path, pool)


# Detecting changes
async def test_only_the_set_whose_journal_was_written_is_woken(tmp_path: Path):
    woken = {name: asyncio.Event() for name in "ab"}
    poller = JournalPoller()
    with (
        Journal(tmp_path / "a", BASE) as a,
        Journal(tmp_path / "b", BASE) as b,
        poller.watch(a, 0.001, woken["a"].set),
        poller.watch(b, 0.001, woken["b"].set),
    ):
        polling = asyncio.create_task(poller.run())
        for name in "ba":
            with Journal(tmp_path / name, BASE) as other, other.transaction():
                other.record([change("one")])
            await asyncio.wait_for(woken[name].wait(), PATIENCE)
            assert (name == "a") == woken["a"].is_set()
        polling.cancel()


class Broken(Journal):
    def data_version(self) -> int:
        if self._seen:
            raise sqlite3.OperationalError("disk I/O error")
        self._seen = True
        return 0

    _seen = False


async def test_an_unreadable_journal_does_not_stop_polling_the_others(tmp_path: Path):
    broken, whole = asyncio.Event(), asyncio.Event()
    poller = JournalPoller()
    with (
        Broken(tmp_path / "a", BASE) as a,
        Journal(tmp_path / "b", BASE) as b,
        poller.watch(a, 0.001, broken.set),
        poller.watch(b, 0.001, whole.set),
    ):
        polling = asyncio.create_task(poller.run())
        with Journal(tmp_path / "b", BASE) as other, other.transaction():
            other.record([change("one")])
        for woken in (broken, whole):
            await asyncio.wait_for(woken.wait(), PATIENCE)
        polling.cancel()


class RecordingListener:
    def __init__(self) -> None:
        self.names: set[str] = set()
        self.paths: set[Path] = set()
        self.news = asyncio.Event()

    def on_changes(self, changes: Iterable[tuple[Change, Path]]) -> None:
        self.names |= {path.name for _, path in changes}
        self.paths |= {path for _, path in changes}
        self.news.set()

    def on_missed(self) -> None:
        self.names.add("missed")
        self.news.set()

    async def of(self, name: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while name not in self.names:
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def watching(*folders: Path) -> AsyncIterator[dict[Path, RecordingListener]]:
    notified = {folder: RecordingListener() for folder in folders}
    listening = asyncio.create_task(SystemWatch(notified).run())
    await asyncio.sleep(0)
    try:
        yield notified
    finally:
        listening.cancel()


async def test_one_watch_notifies_each_listener_of_its_own_folder(tmp_path: Path):
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "a" / ".within"]
    for folder in folders:
        folder.mkdir()
    async with watching(*folders) as notified:
        for folder, name in zip(folders, ("in-a", "in-b", "within"), strict=True):
            (folder / name).write_text("1")
            await notified[folder].of(name)
        await notified[folders[0]].of("within")  # the listener decides whether it is published
        assert "in-a" not in notified[folders[1]].names | notified[folders[2]].names


async def test_a_link_to_a_folder_above_does_not_hide_changes(tmp_path: Path):
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "away").symlink_to(tmp_path)
    async with watching(folder) as notified:
        for path in (folder / "sub" / "one", folder / "two"):
            path.write_text("1")
            await notified[folder].of(path.name)
            assert path in notified[folder].paths


async def test_an_inaccessible_folder_does_not_stop_watching_the_others(tmp_path: Path):
    async with watching(tmp_path, tmp_path / ("x" * 300)) as notified:
        (tmp_path / "one").write_text("1")
        await notified[tmp_path].of("one")


async def test_folders_beyond_the_limit_of_the_system_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def limited(*folders: Path, ignore_permission_denied: bool, **options: Any) -> Any:
        if not ignore_permission_denied:
            raise OSError("OS file watch limit reached. about [...]")
        return awatch(*folders, ignore_permission_denied=True, **options)

    monkeypatch.setattr("rsnotify_publisher.folder.watcher.awatch", limited)
    async with watching(tmp_path) as notified:
        (tmp_path / "one").write_text("1")
        await notified[tmp_path].of("one")
    (message,) = [record.message for record in caplog.records if record.name == "rsnotify.source"]
    assert message.startswith(f"{tmp_path} has more folders than the system can watch")
    assert "raise fs.inotify.max_user_watches" in message


async def test_a_new_folder_beyond_the_limit_of_the_system_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    tried = asyncio.Queue[Path]()

    async def limited(*folders: Path, recursive: bool = True, **options: Any) -> AsyncIterator[Any]:
        if not recursive:
            tried.put_nowait(Path(*folders))
            raise OSError("OS file watch limit reached. about [...]")
        async for changes in awatch(*folders, **options):
            yield changes

    monkeypatch.setattr("rsnotify_publisher.folder.watcher.awatch", limited)
    monkeypatch.setattr("rsnotify_publisher.folder.watcher._FOLDER_CHECK_INTERVAL", 50)
    async with watching(tmp_path) as notified:
        (tmp_path / "new").mkdir()
        assert await asyncio.wait_for(tried.get(), 30) == tmp_path / "new"
        (tmp_path / "later").mkdir()
        await notified[tmp_path].of("later")
        (tmp_path / "last").write_text("1")
        await notified[tmp_path].of("last")
    assert tried.empty()
    assert caplog.text.count("more folders than the system can watch") == 1


async def test_after_an_interruption_of_the_watch_everything_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    errors = iter([OSError("the watch ended")])

    async def interrupted(*folders: Path, **options: object) -> AsyncIterator[set[object]]:
        yield set()
        for error in errors:
            raise error
        await asyncio.Event().wait()

    monkeypatch.setattr("rsnotify_publisher.folder.watcher.awatch", interrupted)
    async with watching(tmp_path) as notified:
        await notified[tmp_path].of("missed")
    assert f"watching {tmp_path} was interrupted; comparing all files instead" in caplog.text


async def test_a_folder_that_reappears_is_watched_while_others_change_constantly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_publisher.folder.watcher._FOLDER_CHECK_INTERVAL", 50)
    busy, away = tmp_path / "busy", tmp_path / "away"
    busy.mkdir()
    async with watching(busy, away) as notified, asyncio.timeout(PATIENCE):
        away.mkdir()
        while "one" not in notified[away].names:
            for folder in (busy, away):
                (folder / "one").write_text("1")
            await asyncio.sleep(0.001)


def test_an_inaccessible_folder_does_not_end_a_comparison(tmp_path: Path):
    names = FileNames(tmp_path / ("x" * 300), BASE)
    with Journal(tmp_path / "journal.sqlite3", BASE) as journal:
        assert list(FolderScanner(names, journal).compare(names.root)) == []


# Serving
async def test_a_file_is_served_at_once_and_a_document_when_all_are_there(
    tmp_path: Path, folder: Path
):
    put(folder / "one", "text")
    publisher = Publisher(tmp_path / "state", f"{HOST}data/", options=QUICK)
    ours = PublishedFolder(FileNames(folder, f"{HOST}data/"), publisher)
    async with (
        serving(folder_application(publisher, [ours])) as url,
        aiohttp.ClientSession() as session,
    ):

        async def get(path: str) -> tuple[int, bytes]:
            async with session.get(url + path) as answer:
                return answer.status, await answer.read()

        early = asyncio.create_task(get("/data/capabilitylist.xml"))
        assert await get("/data/one") == (200, b"text")
        assert not early.done()
        async with publisher:
            assert await publisher.await_published(PATIENCE)
            ours.ready.set()
            status, body = await early
        assert status == 200
        assert read_document(body).capability == Capability.CAPABILITY_LIST


# Calls of many requests share threads.


async def test_each_call_has_its_own_result_or_error():
    threads = SharedThreads()
    outcomes = await asyncio.gather(
        *(threads.call(lambda number=number: 6 // number) for number in range(4)),
        return_exceptions=True,
    )
    assert [str(each) for each in outcomes] == ["integer division or modulo by zero", "6", "3", "2"]


async def test_simultaneous_calls_share_a_thread():
    threads = SharedThreads()
    used = await asyncio.gather(*(threads.call(threading.get_ident) for _ in range(20)))
    assert len(set(used)) == 1
    assert used[0] != threading.get_ident()


async def test_a_blocking_call_does_not_delay_later_ones():
    threads, release = SharedThreads(), threading.Event()
    blocked = asyncio.create_task(threads.call(release.wait))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # its thread has started
    try:
        assert await threads.call(lambda: 1) == 1
        assert not blocked.done()
    finally:
        release.set()
    await blocked


async def test_calls_wait_while_all_threads_are_busy():
    threads, release = SharedThreads(), threading.Event()
    tasks = []
    for _ in range(6):
        tasks.append(asyncio.create_task(threads.call(release.wait)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    last = asyncio.create_task(threads.call(lambda: 1))
    release.set()
    assert await last == 1
    assert await asyncio.gather(*tasks) == [True] * 6


async def test_a_cancelled_call_does_not_affect_the_others():
    threads, release = SharedThreads(), threading.Event()
    first, second = (asyncio.create_task(threads.call(release.wait)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    release.set()
    assert await second


# The threads that commit for callers that cannot.


def test_a_failing_function_does_not_end_the_thread(caplog: pytest.LogCaptureFixture):
    threads, done = FunctionThreads(1, "test"), Event()
    with caplog.at_level(logging.ERROR):
        threads.submit(lambda: 1 / 0)
        threads.submit(done.set)
        assert done.wait(PATIENCE)
    threads.shutdown()
    assert "ZeroDivisionError" in caplog.text


def test_all_that_was_submitted_runs_before_the_threads_end():
    threads, numbers = FunctionThreads(2, "test"), list[int]()
    for number in range(100):
        threads.submit(lambda number=number: numbers.append(number))
    threads.shutdown()
    assert sorted(numbers) == list(range(100))
