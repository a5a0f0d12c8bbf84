"""The feeds of the hubs read the same changes from memory as from the journal."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Options, Publisher, Record
from rsnotify_publisher.documents.document_store import DocumentStore
from rsnotify_publisher.journal import Journal, JournalState, RecordedChanges, Recorder
from rsnotify_publisher.push import change_stream
from rsnotify_publisher.push.change_stream import ChangeStream
from rsnotify_publisher.source_context import SourceContext
from tests.publisher.helpers import BASE, PATIENCE, FakeHub, chain_of, quick_publisher, update

HASH = "sha-256:" + "0" * 64
CONTENT = b"small"


def change(name: object) -> Record:
    return Record(Resource(f"{BASE}{name}", change=ChangeType.UPDATED, hash=HASH))


class World:
    """A journal that two processes write, and hubs that the first process feeds."""

    def __init__(self, folder: Path, hubs: int) -> None:
        def clock() -> int:  # so that every datetime is as early as possible
            return 0

        self.own = Journal(folder / "journal.sqlite3", BASE, clock=clock)
        self.foreign = Journal(folder / "journal.sqlite3", BASE, clock=clock)
        last = self.own.state().last_change
        self.hubs = [SimpleNamespace(sent=last) for _ in range(hubs)]
        self.calls: list[Callable[[], object]] = []
        self.pool = ThreadPoolExecutor(1)
        self.stream = ChangeStream(self.read_contents, self.calls.append, self.pool.submit)
        self.stream.open(self.foreign)
        self.stream.feeds = self.hubs

    def close(self) -> None:
        self.pool.shutdown()
        self.own.close()
        self.foreign.close()

    def read_contents(self, uris: Sequence[str]) -> Mapping[str, bytes]:
        return dict.fromkeys(uris, CONTENT)

    def record(self, count: int) -> None:
        with self.own.transaction():
            self.own.record([change(number) for number in range(count)])
        self.stream.on_recorded(self.own.recorded)

    def record_elsewhere(self, count: int) -> None:
        with self.foreign.transaction():
            self.foreign.record([change(number) for number in range(count)])

    def deliver(self, _: int) -> None:
        """Run what threads have passed to the event loop."""
        while self.calls:
            self.calls.pop(0)()

    def poll(self, _: int) -> None:
        self.stream.check()

    def feed(self, hub: int, limit: int = 3) -> RecordedChanges | None:
        """Read the next changes for a hub, and check that they are those of the journal."""
        feed = self.hubs[hub % len(self.hubs)]
        read = self.stream.read(feed.sent, limit)
        if read is not None:
            expected = self.own.changes(feed.sent, limit)
            assert list(read.changes) == expected[: len(read.changes)]
            assert read.begin == self.own.last_change_at(feed.sent)
            assert read.end == to_microseconds(read.changes[-1].datetime)
            assert set(read.contents.values()) <= {CONTENT}
            feed.sent = read.end
        return read

    def promise(self, hub: int) -> None:
        """Send a heartbeat to a hub that has every change."""
        with self.own.transaction():
            state = self.own.promise()
        feed = self.hubs[hub % len(self.hubs)]
        if feed.sent >= state.last_change:
            feed.sent = state.reached


def test_changes_are_passed_to_feeds_only_while_the_stream_is_open(tmp_path: Path) -> None:
    calls: list[Callable[[], object]] = []
    with Journal(tmp_path / "journal.sqlite3", BASE) as journal, ThreadPoolExecutor(1) as pool:
        stream = ChangeStream(None, calls.append, pool.submit)

        def record() -> int:
            with journal.transaction():
                journal.record([change("a")])
            stream.on_recorded(journal.recorded)
            return len(calls)

        assert record() == 0
        stream.open(journal)
        assert record() == 1
        stream.on_recorded([])
        stream.close()
        assert record() == 1


async def test_an_unreadable_journal_raises_an_error_only_in_the_feeds(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.sqlite3", BASE) as journal, ThreadPoolExecutor(1) as pool:
        stream = ChangeStream(None, lambda work: None, pool.submit)
        stream.open(journal)
    stream.check()  # the feed that reads raises the error
    with pytest.raises(sqlite3.ProgrammingError):
        stream.read(0, 1)


async def test_unreadable_contents_are_omitted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def read(uris: Sequence[str]) -> Mapping[str, bytes]:
        raise MemoryError

    with Journal(tmp_path / "journal.sqlite3", BASE) as journal, ThreadPoolExecutor(1) as pool:
        stream = ChangeStream(read, lambda work: None, pool.submit)
        with journal.transaction():
            journal.record([change("a")])
        stream.open(journal)
        recorded = stream.read(0, 1)
        assert await stream.inline_contents(recorded) == {BASE + "a": None}
    assert "sending changes without inline content" in caplog.text


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["record", "record_elsewhere", "deliver", "poll", "feed", "promise"]),
        st.integers(1, 7),
    ),
    max_size=40,
)


@given(steps=STEPS, kept=st.integers(1, 12))
def test_every_hub_receives_what_the_journal_contains(steps: list[tuple[str, int]], kept: int):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_stream, "_MAX_CHANGES", kept)
        world = World(Path(folder), 2)
        for name, number in steps:
            getattr(world, name)(number)
        world.pool.submit(int).result()  # the contents have been read
        world.deliver(0)
        world.poll(0)
        for hub in range(2):
            while world.feed(hub) is not None:
                pass
        last = world.own.state().last_change
        world.close()
        assert min(feed.sent for feed in world.hubs) >= last


async def test_hubs_that_keep_up_are_fed_from_memory(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
):
    read = []
    changes = Journal.changes
    loop_thread: list[int] = []

    def spy(self: Journal, after: int, limit: int = -1) -> list[Resource]:
        found = changes(self, after, limit)
        if threading.get_ident() in loop_thread and found:
            read.append(found)
        return found

    monkeypatch.setattr(Journal, "changes", spy)
    async with quick_publisher(tmp_path, hub.url, hub.url + "websub") as publisher:
        await publisher.aupdated(BASE + "first")
        await hub.until(partial(has_twice, hub, BASE + "first"))
        loop_thread.append(publisher._pool.spawn(identity()).result())
        for number in range(20):
            await publisher.aupdated(BASE + str(number))
            await hub.until(partial(has_twice, hub, BASE + str(number)))
    # The poller may see a commit before the thread that made it has passed it on.
    assert len(read) < 5


def has_twice(hub: FakeHub, uri: str) -> bool:
    return hub.uris().count(uri) == 2


async def identity() -> int:
    return threading.get_ident()


async def test_recorded_content_is_sent_inline_without_a_callback(tmp_path: Path, hub: FakeHub):
    # While a feed begins, it reads changes from the journal, which has no content.
    small = [BASE + str(number) for number in range(20)]
    async with quick_publisher(tmp_path, hub.url) as publisher:
        for uri in small:
            await publisher.aupdated(uri, content=b"small", type="text/plain")
            await hub.has(uri)
        await publisher.aupdated(BASE + "large", content=b"x" * 20_000)
        await hub.has(BASE + "large")
    links = {entry.uri: entry.links for f in hub.fragments for entry in f.resources}
    inline = {link.href for uri in small for link in links[uri]}
    assert inline == {"data:text/plain;base64,c21hbGw="}
    assert links[BASE + "large"] == ()


async def test_a_source_may_hold_the_lock_that_its_callback_needs(tmp_path: Path, hub: FakeHub):
    lock = threading.Lock()

    def content(uri: str) -> bytes:
        with lock:
            return b"of the callback"

    def update(publisher: Publisher, name: str) -> None:
        with lock:
            publisher.updated(BASE + name, hash=HASH)

    async with quick_publisher(tmp_path, hub.url, content=content) as publisher:
        for name in ("a", "b"):
            await asyncio.to_thread(update, publisher, name)
        await hub.has(BASE + "a", BASE + "b")
    chain_of(hub.fragments)


def fail(uri: str) -> bytes:
    raise ZeroDivisionError(uri)


@pytest.mark.parametrize("content", [lambda uri: 5, lambda uri: "text", fail])
async def test_a_failing_callback_prevents_only_inline_content(
    tmp_path: Path, hub: FakeHub, caplog: pytest.LogCaptureFixture, content: Any
):
    async with quick_publisher(tmp_path, hub.url, content=content) as publisher:
        for name in ("a", "b"):
            await publisher.aupdated(BASE + name, hash=HASH)
            await hub.has(BASE + name)
    assert "without inline content" in caplog.text
    assert all(a[1] == b[0] for a, b in pairwise(chain_of(hub.fragments)))


async def test_no_heartbeat_passes_a_change_whose_content_is_being_read(
    tmp_path: Path, hub: FakeHub
):
    go = threading.Event()
    promises = 0
    promise = Journal.promise

    def content(uri: str) -> bytes:
        go.wait(PATIENCE)
        return CONTENT

    def count(self: Journal) -> JournalState:
        nonlocal promises
        promises += 1
        if promises == 3:
            go.set()
        return promise(self)

    publisher = quick_publisher(
        tmp_path, hub.url, content=content, heartbeat=0.05, resource_list_every=900
    )
    with pytest.MonkeyPatch.context() as patch:
        async with publisher:
            await publisher.await_published()
            patch.setattr(Journal, "promise", count)
            change = await publisher.aupdated(BASE + "a", hash=HASH)
            await hub.has(BASE + "a")
    chain_of(hub.fragments)
    before = hub.fragments[: hub.fragments.index(next(f for f in hub.fragments if f.resources))]
    assert all(fragment.until < change.datetime for fragment in before)


# Changes that arrive as fast as lists are closed.


MANY = 50


class Flood:
    """A clock that records more changes each time it is read."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.reads = 0

    def __call__(self) -> int:
        if self.recorder is not None and threading.current_thread() is threading.main_thread():
            self.reads += 1
            assert self.reads < MANY, "it goes on for ever"
            self.record(self.recorder)
        return time.time_ns() // 1000

    def record(self, recorder: Recorder) -> None:
        change = Record(update("a"))
        recorder.submit(lambda journal: journal.record([change] * 4)).result()


def test_a_flood_does_not_prevent_writing_the_other_documents(tmp_path: Path):
    flood = Flood()
    source = SourceContext(tmp_path, BASE, (), Options(rotate="4 changes"), flood)
    recorder = Recorder(source.open_journal, lambda _: None, ThreadPoolExecutor(1))
    recorder.start()
    flood.record(recorder)
    library = DocumentStore(source, recorder)
    flood.recorder = recorder
    library.write_change_lists()
    flood.recorder = None
    library.write_change_lists()
    recorder.close()
    change_list = read_document((source.documents_folder / "changelist.xml").read_bytes())
    assert 2 <= len(change_list.resources) < 4
