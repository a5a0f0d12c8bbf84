"""Datetimes in documents stay consistent, whichever process records, whatever the clocks show.

Destinations check the documents of a Source against each other and against the `Date` of answers.
Ours must never give them a reason to doubt.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from email.utils import parsedate_to_datetime
from itertools import pairwise
from pathlib import Path
from random import Random

import aiohttp
import pytest
from aiohttp import web

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import ChangeType, Document, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Options, Publisher
from tests.fork_server import forked
from tests.publisher.helpers import (
    BASE,
    PATIENCE,
    FakeHub,
    chain_of,
    quick_publisher,
    serving,
    serving_documents,
)
from tests.publisher.published import read, recorded

Clock = Callable[[], int]


def steady() -> int:
    return time.time_ns() // 1000


def jumping(random: Random) -> Clock:
    """A clock that is repeatedly set back and ahead by up to an hour."""
    return lambda: steady() + random.randrange(-3_600, 3_600) * 1_000_000


class Reader:
    """Reads the documents while they change, and stores them."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.open: dict[Instant, tuple[Resource, ...]] = {}
        self.baselines: list[Document] = []
        #: Datetimes later than the `Date` of their response: their names, and the difference.
        self.ahead: list[tuple[str, timedelta]] = []

    async def get(self, name: str) -> Document:
        async with self._session.get(self._url + "/" + name.removeprefix(BASE)) as answer:
            body, date = await answer.read(), parsedate_to_datetime(answer.headers["Date"])
        document = read_document(body, source=name)
        instants = [
            ("at", document.at),
            ("completed", document.completed),
            ("until", document.until),
        ]
        instants += [("from", document.from_)]
        instants += [("entry", entry.changed_at) for entry in document.resources]
        for what, instant in instants:
            if instant is not None and instant > date + timedelta(seconds=1):
                self.ahead.append((what, instant - date))
        return document

    async def read_documents(self) -> None:
        await self._look_at_changes(await self.get("changelist.xml"))
        self.baselines.append(await self.get("resourcelist.xml"))

    async def _look_at_changes(self, document: Document) -> None:
        if document.index:
            document = await self.get(document.resources[-1].uri)
        assert document.from_ is not None
        assert document.until is None
        before = self.open.get(document.from_, ())
        assert document.resources[: len(before)] == before, "what was read already is another"
        self.open[document.from_] = document.resources


def change_lists(publisher: Publisher) -> list[Document]:
    """Return all Change Lists, of the archive and of the open period."""
    last, archive = read(publisher, "changelist.xml"), read(publisher, "changelist-archive.xml")
    lists = [read(publisher, entry.uri) for entry in archive.resources]
    if archive.index:
        lists = [read(publisher, entry.uri) for part in lists for entry in part.resources]
    return lists + ([read(publisher, one.uri) for one in last.resources] if last.index else [last])


def check_joined(lists: list[Document], recorded: list[Resource], opened: set[Instant]) -> None:
    """Check that lists contain each change once, in order, and that each begins where one ends."""
    instants = [entry for document in lists for entry in document.resources]
    assert [(one.uri, one.datetime) for one in instants] == [(o.uri, o.datetime) for o in recorded]
    for document in lists:
        for entry in document.resources:
            assert document.from_ < entry.datetime
            assert document.until is None or entry.datetime <= document.until
    for one, other in pairwise(lists):
        assert one.until == other.from_
    assert opened <= {document.from_ for document in lists}


def check_baseline(baseline: Document, recorded: list[Resource]) -> None:
    """Check that a Resource List is the set as of `at`, except for changes until `completed`."""
    state: dict[str, Resource] = {}
    since: set[str] = set()
    for change in recorded:
        if change.datetime > baseline.at:
            if change.datetime <= baseline.completed:
                since.add(change.uri)
        elif change.change is ChangeType.DELETED:
            state.pop(change.uri, None)
        else:
            state[change.uri] = change
    listed = {entry.uri: entry.length for entry in baseline.resources if entry.uri not in since}
    assert listed == {uri: one.length for uri, one in state.items() if uri not in since}


def write(publisher: Publisher, name: str, random: Random, count: int) -> list[Resource]:
    recorded = []
    for number in range(count):
        uri = f"{BASE}{name}{random.randrange(20)}"
        if random.random() < 0.2:
            recorded.append(publisher.deleted(uri))
        else:
            recorded.append(publisher.updated(uri, length=number))
    return recorded


@pytest.mark.parametrize(
    ("clocks", "hosting"),
    [
        ("steady", "our application"),
        ("steady", "static files"),
        ("jumping", "our application"),
    ],
)
async def test_no_document_contradicts_another_or_the_clock(
    tmp_path: Path, clocks: str, hosting: str
):
    random = Random(1)
    publishers = [
        quick_publisher(
            tmp_path,
            clock=steady if clocks == "steady" else jumping(Random(number)),
            rotate="60 changes",
            max_entries=25,
            grace=0,
        )
        for number in range(3)
    ]
    try:
        for publisher in publishers:
            publisher.start()
        hosted = serving_documents(publishers[0])
        if hosting == "static files":
            app = web.Application()
            app.router.add_static("/", publishers[0].source.documents_folder)
            hosted = serving(app)
        async with hosted as url, aiohttp.ClientSession() as session:
            assert await publishers[0].await_published(60)
            reader = Reader(session, url)
            writing = [
                asyncio.to_thread(write, publisher, "abc"[n], Random(n), 150)
                for n, publisher in enumerate(publishers)
            ]
            done = asyncio.gather(*writing)
            while not done.done():
                await reader.read_documents()
                await asyncio.sleep(random.random() / 100)
            recorded = sorted(
                (change for changes in done.result() for change in changes),
                key=lambda change: change.datetime,
            )
            await reader.read_documents()
    finally:
        for publisher in publishers:
            publisher.close()
    check_joined(change_lists(publishers[0]), recorded, set(reader.open))
    for baseline in reader.baselines:
        if not baseline.index:
            check_baseline(baseline, recorded)
    if clocks == "steady":
        assert reader.ahead == []


def test_a_change_dated_a_day_ahead_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    ahead = steady() + 86_400_000_000
    with quick_publisher(tmp_path, clock=lambda: ahead) as publisher:
        publisher.updated(BASE + "a")
        publisher.wait_published()
    assert "the clock has not reached" not in caplog.text
    with quick_publisher(tmp_path) as publisher:
        publisher.updated(BASE + "b")
        publisher.wait_published()
    assert caplog.text.count("the clock has not reached") == 1


# A Source that is killed while it records a change: before its flush, and at each later step.
#
# The last step applies changes to the current set.


KILLED = """
import asyncio, os, signal, sys, threading
from rsnotify_publisher import Options, Publisher

folder, hub, instant = sys.argv[1:]
base = "http://source.example/data/"
digest = "sha-256:" + "0" * 64
now = False

def let_others_run():
    # Anything already on its way to the hub is sent now.
    for _ in range(20):
        read = threading.Event()
        publisher._pool.threads.readers.submit(read.set)
        read.wait()
        publisher._pool.spawn(asyncio.sleep(0)).result()

def die():
    let_others_run()
    os.kill(os.getpid(), signal.SIGKILL)

def content(uri):
    if now and instant == "contents":
        os.kill(os.getpid(), signal.SIGKILL)
    return b""

def trace(statement):
    global recording
    recording = recording or statement.startswith("INSERT INTO changes")
    if instant == "flush" and recording and statement == "COMMIT":
        die()

options = Options(heartbeat=900, resource_list_every=900)
publisher = Publisher(folder, base, hubs=[hub], options=options, content=content)
publisher.start()
publisher.wait_published()
publisher.updated(base + "before", hash=digest, length=0)
print("before", flush=True)
sys.stdin.readline()
now, recording = True, False
recorder = publisher._recorder
recorder._journal._db.set_trace_callback(trace)
if instant == "recorded":
    recorder.on_recorded = lambda recorded: recorded and os.kill(os.getpid(), signal.SIGKILL)
publisher.updated(base + "after", hash=digest, length=0)
publisher.close()
"""


@pytest.mark.parametrize("instant", ["flush", "recorded", "contents"])
async def test_only_flushed_changes_are_sent(tmp_path: Path, hub: FakeHub, instant: str):
    killed = await asyncio.create_subprocess_exec(
        *(*forked(KILLED), str(tmp_path), hub.url, instant),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        assert await killed.stdout.readline() == b"before\n"
        await hub.has(BASE + "before")
        killed.stdin.write(b"go on\n")
        assert await killed.wait() == -signal.SIGKILL
        await hub.until_disconnected()
    if instant == "flush":
        assert hub.uris() == [BASE + "before"]
    hub.through = hub.fragments[-1].until
    publisher = quick_publisher(tmp_path, hub.url)
    kept = [change.uri for change in recorded(publisher)]
    assert kept == [BASE + "before"] + ([] if instant == "flush" else [BASE + "after"])
    async with publisher:
        await publisher.aupdated(BASE + "last")
        await hub.has(*kept, BASE + "last")
    chain_of(hub.fragments)


KILLED_WHILE_APPLYING = """
import os, signal, sys
from rsnotify.format.model import Resource
from rsnotify_publisher import Options, Publisher

folder, commits = sys.argv[1], int(sys.argv[2])
base = "http://source.example/data/"
publisher = Publisher(folder, base, options=Options(resource_list_every=900))
publisher.start()
publisher.wait_published()
publisher.record(Resource(f"{base}{number % 900}", change="updated") for number in range(1_200))
publisher.record([Resource(f"{base}7", change="deleted")])

def trace(statement):
    global commits
    commits -= statement == "COMMIT"
    if commits == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with publisher.source.open_journal() as journal:
    journal._db.set_trace_callback(trace)
    journal.bring_up_to_date()
"""


@pytest.mark.parametrize("commits", [1, 2, 3])
async def test_a_source_killed_while_changes_are_applied_offers_the_same_set(
    tmp_path: Path, commits: int
):
    killed = await asyncio.create_subprocess_exec(
        *forked(KILLED_WHILE_APPLYING), str(tmp_path), str(commits)
    )
    async with asyncio.timeout(PATIENCE):
        assert await killed.wait() == -signal.SIGKILL
    publisher = Publisher(tmp_path, BASE, options=Options(resource_list_every=900))
    async with publisher:
        assert await publisher.await_published(PATIENCE)
    listed = read_document((tmp_path / "documents/resourcelist.xml").read_bytes()).resources
    expected = {f"{BASE}{number}" for number in range(900)} - {f"{BASE}7"}
    assert {resource.uri for resource in listed} == expected
    with publisher.source.open_journal() as journal:
        assert journal.count() == 899
        assert journal.state().sum.startswith("899 ")
