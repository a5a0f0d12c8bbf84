"""The views: the same changes as IIIF Change Discovery and as a Linked Data Event Stream."""

from __future__ import annotations

import asyncio
import errno
import re
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import ChangeType, Link, Resource
from rsnotify_publisher import Options, Record
from rsnotify_publisher.documents.document_store import DocumentStore
from rsnotify_publisher.documents.open_change_list import OpenChangeList
from rsnotify_publisher.journal import Journal, Recorder
from rsnotify_publisher.source_context import SourceContext
from tests.fork_server import forked
from tests.publisher.helpers import (
    BASE,
    PATIENCE,
    PORT,
    Clock,
    Start,
    eventually,
    put,
    serving_documents,
    update,
)
from tests.publisher.published import QUIET, Published
from tests.publisher.view_consumers import Fetch, History, LDESReader, read_iiif, state_of

COLLECTION, LAST = "resourcesync/iiif.json", "resourcesync/iiif-last.json"
ROOT = "resourcesync/ldes.ttl"
VIEWS = replace(QUIET, views=("iiif", "ldes"), rotate="4 changes")
ACTIVITIES = {"created": "Create", "updated": "Update", "deleted": "Delete"}


def files_of(folder: Path, base: str = BASE) -> Fetch:
    return lambda uri: (folder / "documents" / uri.removeprefix(base)).read_bytes()


def get(uri: str) -> bytes:
    with urllib.request.urlopen(uri, timeout=PATIENCE) as answer:
        return answer.read()


def read_both(fetch: Fetch, base: str = BASE) -> History:
    """Read both views from the beginning, and return their common history."""
    reader = LDESReader(base + ROOT, fetch)
    reader.synchronize()
    history = read_iiif(base + COLLECTION, fetch)
    assert_dated(reader.history, history)
    return history


def assert_dated(found: History, recorded: History) -> None:
    """Assert that LDES has the changes of each resource, each dated in a later millisecond."""
    by_uri: dict[str, tuple[History, History]] = defaultdict(lambda: ([], []))
    for number, history in enumerate((found, plain(recorded))):
        for uri, activity, at in history:
            by_uri[unquote(uri)][number].append((uri, activity, at))
    for dated, changes in by_uri.values():
        assert [one[1] for one in dated] == [one[1] for one in changes]
        dates = [at for _, _, at in dated]
        milliseconds = [at.replace(microsecond=at.microsecond // 1000 * 1000) for at in dates]
        assert milliseconds == sorted(set(milliseconds))
        for date, (_, _, at) in zip(dates, changes, strict=True):
            assert at <= date <= at + timedelta(seconds=1)


def plain(history: History) -> History:
    """Return a history with decoded URIs, because LDES encodes what RFC 3986 does not allow."""
    return [(unquote(uri), activity, at) for uri, activity, at in history]


class Steps:
    """A Source whose documents are written when the test calls `write`."""

    def __init__(self, folder: Path, options: Options, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self._source = SourceContext(folder, BASE, (), options, self.clock)
        self._source.check_folders()
        self._fetch = files_of(folder)
        self._changes: list[Resource] = []
        self._shown: History = []
        self._reader = LDESReader(BASE + ROOT, self._fetch)
        self._expected: History = []
        self.start()

    def start(self) -> None:
        self._threads = ThreadPoolExecutor(1)
        self._recorder = Recorder(self._source.open_journal, lambda _: None, self._threads)
        self._recorder.start()
        self._store = DocumentStore(self._source, self._recorder)
        self.write()

    def close(self) -> None:
        self._store.close()
        self._recorder.close()
        self._threads.shutdown()

    def restart(self) -> None:
        self.close()
        self.start()

    def record(self, changes: list[Resource]) -> None:
        with self._source.open_journal() as journal, journal.transaction():
            self._changes += journal.record(list(map(Record, changes)))

    def write(self) -> None:
        self._store.write_change_lists()
        self._store.delete_discarded()
        self._shown = self._kept(self._changes)

    def drop(self) -> None:
        self._store.drop_expired()
        self._store.delete_discarded()
        through = self._shown[-1][2] if self._shown else None
        kept = self._kept(self._changes)
        self._shown = [one for one in kept if through is not None and one[2] <= through]

    def read(self) -> None:
        if self._shown:
            assert read_iiif(BASE + COLLECTION, self._fetch) == self._shown
            last = self._shown[-1]
            assert read_iiif(BASE + COLLECTION, self._fetch, last[2]) == [last]
        else:
            with pytest.raises(FileNotFoundError):
                self._fetch(BASE + COLLECTION)
        fresh = LDESReader(BASE + ROOT, self._fetch)
        fresh.synchronize()
        assert_dated(fresh.history, self._shown)
        self._reader.synchronize()
        self._expected += [one for one in self._shown if one not in self._expected]
        assert_dated(self._reader.history, self._expected)
        # Changes that were read before are the same now.
        assert set(fresh.history) <= set(self._reader.history)

    def _kept(self, changes: list[Resource]) -> History:
        with self._source.open_journal() as journal:
            closed = journal.finished("changelist")
            begin = from_microseconds(closed[0].begin if closed else journal.state().closed)
        return [
            (one.uri, ACTIVITIES[one.change], one.datetime)
            for one in changes
            if one.change is not None and one.datetime is not None and one.datetime > begin
        ]


_NAMES = st.text(st.sampled_from("aB.~/%2F?#=&;:@!$'()*+,[]-_"), min_size=1, max_size=8)
_CHANGES = st.builds(
    Resource,
    _NAMES.map(lambda name: BASE + "x" + name),
    change=st.sampled_from(ChangeType),
    type=st.sampled_from([None, "text/turtle", 'text/html; title="ü\\"']),
)
_STEPS = st.lists(
    st.lists(_CHANGES, min_size=1, max_size=6)
    | st.sampled_from(["write", "write", "drop", "restart", "read"]),
    max_size=20,
)


@settings(max_examples=30, deadline=None)
@given(_STEPS, st.sampled_from(["2 lists", "1000 lists"]), st.booleans())
def test_views_contain_every_history(steps: list[list[Resource] | str], keep: str, gzip: bool):
    options = replace(VIEWS, keep=keep, gzip=gzip, linger=0)
    with (
        tempfile.TemporaryDirectory() as name,
        closing(Steps(Path(name), options)) as source,
    ):
        for step in [*steps, "write", "read"]:
            if isinstance(step, list):
                source.record(step)
            else:
                getattr(source, step)()


class StoppedClock(Clock):
    def __call__(self) -> int:
        return 10**15


def test_members_within_a_millisecond_keep_their_dates_across_pages_and_restarts(tmp_path: Path):
    options = replace(VIEWS, keep="2 lists", linger=0)
    with closing(Steps(tmp_path, options, StoppedClock())) as source:
        for names in ("aaaaaaa", "bccddee", "ffgghhii", "jjaj", "a"):
            source.record(list(map(update, names)))
            source.write()
            source.read()
            source.restart()
            source.read()
            source.drop()
            source.read()
    pages = (tmp_path / "documents/resourcesync").glob("*.ttl")
    dates = [
        at for page in pages for at in re.findall(r"/a> ; as:published \"(.*?)\"", page.read_text())
    ]
    assert max(dates) == "2001-09-09T01:46:40.008001Z", "nine changes, all within a millisecond"


def test_views_cover_earlier_lists_and_are_removed_when_disabled(tmp_path: Path):
    with Published(tmp_path, replace(VIEWS, views=(), linger=0)) as source:
        source.update(*range(20))
        source.wait_written()
    folder = source.folder / "resourcesync"
    assert not [*folder.glob("*.json"), *folder.glob("*.ttl")]
    with Published(tmp_path, replace(VIEWS, views=("ldes",), linger=0)) as source:
        source.update(20)
        source.wait_written()
    assert not list(folder.glob("*.json"))
    with Published(tmp_path, replace(VIEWS, linger=0)):
        pass
    history = read_both(files_of(tmp_path))
    assert [uri for uri, _, _ in history] == [f"{BASE}{number}" for number in range(21)]
    with Published(tmp_path, replace(VIEWS, views=(), linger=0)):
        eventually(lambda: not [*folder.glob("*.json"), *folder.glob("*.ttl")])


def test_the_change_list_links_to_the_enabled_views(tmp_path: Path):
    with Published(tmp_path, replace(VIEWS, views=("ldes",))) as source:
        (entry,) = (
            entry
            for entry in source.read("capabilitylist.xml").resources
            if entry.capability == "changelist"
        )
    assert entry.links == (Link("alternate", BASE + ROOT, type="text/turtle"),)
    with Published(tmp_path) as source:
        assert not any(entry.links for entry in source.read("capabilitylist.xml").resources)


def test_the_size_of_a_closed_list_includes_its_pages(tmp_path: Path):
    with Published(tmp_path, VIEWS) as source:
        source.update(*range(5))
        source.wait_written()
    with source.publisher.source.open_journal() as journal:
        (closed,) = journal.finished("changelist")
    assert len(closed.files) == 3
    assert closed.size == sum((source.folder / name).stat().st_size for name in closed.files)


def test_a_collection_reappears_after_all_pages_were_dropped(tmp_path: Path):
    options = replace(VIEWS, rotate="1 changes", keep="1 s", linger=0)
    with closing(Steps(tmp_path, options)) as source:
        for name in "ab":
            source.record([Resource(BASE + name, change=ChangeType.CREATED)])
            source.write()
            source.read()
            source.clock.pass_seconds(2)
            source.drop()
            source.read()


def test_a_write_that_failed_after_a_list_was_closed_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    refresh = OpenChangeList.refresh

    def fail_once_closed(self: OpenChangeList, journal: Journal, limit: int = -1) -> list[Resource]:
        changes = refresh(self, journal, limit)
        if journal.state().closed > begun:
            monkeypatch.undo()
            raise OSError(errno.ENOSPC, "No space left on device")
        return changes

    with closing(Steps(tmp_path, VIEWS)) as source:
        source.record([Resource(BASE + "first", change=ChangeType.CREATED)])
        source.write()
        with Journal(tmp_path / "journal.sqlite3", BASE) as journal:
            begun = journal.state().closed
        monkeypatch.setattr(OpenChangeList, "refresh", fail_once_closed)
        source.record([Resource(f"{BASE}{name}", change=ChangeType.CREATED) for name in range(4)])
        with pytest.raises(OSError, match="No space"):
            source.write()
        source.write()
        source.read()


def test_an_object_has_the_class_in_its_type_link(tmp_path: Path):
    with Published(tmp_path, VIEWS) as source:
        for href in ("http://iiif.io/api/presentation/3#Manifest", "http://schema.org/Book"):
            source.publisher.updated(BASE + "a", links=[Link("type", href)], type="text/turtle")
        source.publisher.deleted(BASE + "b")
        source.wait_written()
    text = (source.folder / LAST).read_text()
    assert '{"id":"http://source.example/data/a","type":"Manifest","format":"text/turtle"}' in text
    assert '"type":"http://schema.org/Book"' in text
    assert '{"id":"http://source.example/data/b","type":"Document"}' in text


async def test_views_are_served_with_their_types_and_caching(tmp_path: Path):
    source = Published(tmp_path, VIEWS)
    types = {
        COLLECTION: 'application/ld+json;profile="http://iiif.io/api/discovery/1/context.json"',
        LAST: 'application/ld+json;profile="http://iiif.io/api/discovery/1/context.json"',
        ROOT: "text/turtle",
    }

    def read(url: str) -> tuple[int, dict[str, str]]:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return answer.status, dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers)

    async with serving_documents(source.publisher) as url:
        assert await source.publisher.await_published(PATIENCE)
        below = f"{url}/"
        # A page has an activity, so there is no collection before the first change.
        assert (await asyncio.to_thread(read, below + COLLECTION))[0] == 503
        await asyncio.to_thread(source.update, *range(5))
        await asyncio.to_thread(source.wait_written)
        for name, type_ in types.items():
            status, headers = await asyncio.to_thread(read, below + name)
            assert (status, headers["Content-Type"]) == (200, type_)
            assert headers["Access-Control-Allow-Origin"] == "*"
            assert headers["Cache-Control"] == "no-cache"
        pages = {path.suffix: path for path in source.folder.glob("resourcesync/changelist-2*")}
        caching = {}
        for suffix in (".json", ".ttl"):
            _, headers = await asyncio.to_thread(read, below + f"resourcesync/{pages[suffix].name}")
            caching[suffix] = headers["Cache-Control"]
        assert caching[".json"] == "no-cache"  # the links of a page may change
        assert "immutable" in caching[".ttl"]


def test_consumers_that_poll_during_changes_end_with_the_set(folder: Path, source: Start):
    options = ("--views", "iiif", "--views", "ldes", "--rotate", "4 changes")
    process = source(folder, *PORT, *options)
    base = process.url
    reader = LDESReader(base + ROOT, get)
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            reader.synchronize()

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        for number in range(12):
            put(folder / f"{number % 5}", f"version {number}")
            process.wait_for_change("created" if number < 5 else "updated", f"{number % 5}")
        (folder / "3").unlink()
        process.wait_for_change("deleted", "3")
        eventually(lambda: reader.history[-1:] != [] and reader.history[-1][1] == "Delete")
    finally:
        stop.set()
        polling.join()
    crawled = state_of(read_iiif(base + COLLECTION, get))
    assert crawled == state_of(reader.history)
    assert set(crawled) == {f"{base}{number}" for number in (0, 1, 2, 4)}
    assert [at for _, _, at in reader.history] == sorted(at for _, _, at in reader.history)


RECORDING = """
import sys
from rsnotify_publisher import Options, Publisher

options = Options(views=("iiif", "ldes"), rotate="4 changes", refresh=0.001, linger=0)
with Publisher(sys.argv[1], {BASE!r}, options=options) as publisher:
    number = 0
    while True:
        change = publisher.updated(f"{BASE}{number % 7}")
        number += 1
        print(number, flush=True)
"""


def test_views_of_a_killed_source_are_readable(tmp_path: Path):
    script = RECORDING.replace("{BASE!r}", repr(BASE)).replace("{BASE}", BASE)
    count = 0
    for lines in (20, 3, 31, 8):
        command = [*forked(script), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
            for _ in range(lines):
                assert killed.stdout.readline()
            killed.kill()
            count += lines + len(killed.stdout.readlines())
        if all((tmp_path / "documents" / name).exists() for name in (COLLECTION, ROOT)):
            reader = LDESReader(BASE + ROOT, files_of(tmp_path))
            reader.synchronize()
            # LDES dates the second change of a resource within a millisecond later.
            found = Counter(uri for uri, *_ in reader.history)
            crawled = Counter(uri for uri, *_ in read_iiif(BASE + COLLECTION, files_of(tmp_path)))
            # One of them may have been written before the other.
            assert found <= crawled or crawled <= found
    with Published(tmp_path, replace(VIEWS, linger=0)) as source:
        source.wait_written()
    # The last change may have been recorded but not printed.
    assert len(read_both(files_of(tmp_path))) - count in range(5)
