"""Changes that are being applied while others of the same resource arrive."""

from __future__ import annotations

import asyncio
import logging
import threading
from base64 import b64encode
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify import StoreUnavailable
from rsnotify.errors import RsnotifyError, Unavailable
from rsnotify.format.coverage import Change
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from rsnotify.runtime.tasks import Tasks
from rsnotify.selection import Selection
from rsnotify.sync.progress import Progress
from rsnotify.sync.retry import Retry
from rsnotify_subscriber import (
    FolderMirror,
    FollowOptions,
    Received,
    Subscriber,
)
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.fetching.fetcher import Content, Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.following.applier import Applier
from rsnotify_subscriber.storage.destination_state import DestinationState
from tests.publisher.helpers import eventually
from tests.subscriber.destination import PACE, PATIENCE, Destination
from tests.subscriber.source import SmallSource, path_of, sha256

BASE = "http://a.example/"


def written(content: bytes, second: int) -> Change:
    data = Link(Rel.DUPLICATE, f"data:;base64,{b64encode(content).decode()}")
    resource = Resource(BASE + "a", change=ChangeType.UPDATED, hash=sha256(content), links=(data,))
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    return Change(resource.uri, ChangeType.UPDATED, at, resource)


class Late:
    """An `Outcome` that comes with an older change as soon as a newer one is applied."""

    def __init__(self, older: Change) -> None:
        self._older = [older]
        self.left = 2
        self.done = asyncio.Event()
        self.applier: Applier

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        return None

    def applied(self, changes: Sequence[Change]) -> None:
        if self._older:
            self.applier.submit([self._older.pop()])
        self.left -= len(changes)

    def committed(self, changes: Sequence[Change]) -> None:
        if not self.left:
            self.done.set()

    def failed(self, change: Change, error: RsnotifyError) -> None:
        raise error

    def find_lost(self) -> None: ...

    def resumed(self) -> None: ...


async def test_an_older_change_does_not_overtake_a_newer_one_that_has_just_been_applied(
    tmp_path: Path,
) -> None:
    older, newer = written(b"1", 1), written(b"2", 2)
    mirror, outcome = FolderMirror(tmp_path / "mirror"), Late(older)
    with closing(DestinationState(tmp_path / "state")) as state, ThreadPoolExecutor(1) as worker:
        mirror.prepare(BASE, tmp_path)
        async with Sessions("") as sessions:
            tasks = Tasks(lambda error: None)
            bringer = ContentResolver(Fetcher(sessions, state.make_incoming()))
            applier = Applier(
                *(bringer, state, mirror, outcome, worker, tasks), Selection(), PACE.retry
            )
            outcome.applier = applier
            tasks.spawn(applier.run())
            applier.submit([newer])
            async with asyncio.timeout(PATIENCE):
                await outcome.done.wait()
            await tasks.cancel()
        held = state.find(newer.uri)
    assert (tmp_path / "mirror/a").read_bytes() == b"2"
    assert held is not None
    assert held.hash == sha256(b"2")


# Fetching content and handing it over; each kind of source has tests of its own.


async def test_content_without_a_length_may_not_fill_the_disk(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("large", b"x" * 2_000)
    source.put("huge", b"x" * 2_000)
    source.changes[-1] = replace(source.changes[-1], hash=None, length=None)
    with pytest.raises(RsnotifyError, match="more than 1000 bytes"):
        await destination.catch_up(largest=1_000)
    assert destination.files() == {"large": b"x" * 2_000}
    await destination.become_equal()


class Empty:
    """Packages that have nothing."""

    async def member(self, package: str, entry: Resource) -> Content:
        raise Unavailable(entry.uri, f"{package} has no {entry.path}")


async def test_what_a_package_does_not_have_is_fetched(
    source: SmallSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.contents["a"] = b"content"
    entry = Resource(source.base + "a", path="/a", hash=sha256(b"content"))
    change = Change(entry.uri, ChangeType.UPDATED, datetime.now(UTC), entry, "http://p/dump.zip")
    caplog.set_level(logging.INFO, "rsnotify.subscriber")
    async with Sessions(source.url) as sessions:
        bringer = ContentResolver(Fetcher(sessions, tmp_path), packages=Empty())
        content = await bringer.resolve(bringer.wanted(change), None)
    assert content is not None
    assert content.data == b"content"
    assert "http://p/dump.zip has no /a" in caplog.text


class Blocked:
    """A handler in a thread, which cannot take one of the resources at first."""

    def __init__(self) -> None:
        self.applied: dict[str, bytes] = {}
        self.threads: set[int] = set()
        self.failures = 2  # together with others, and alone

    def apply(self, changes: Sequence[Received]) -> None:
        self.threads.add(threading.get_ident())
        for change in changes:
            if change.uri.endswith("bad") and self.failures:
                self.failures -= 1
                raise OSError("the disk is full")
            assert change.content is not None
            self.applied[change.uri] = change.content.read_bytes()


async def test_a_handler_that_blocks_is_called_in_another_thread(
    source: SmallSource, tmp_path: Path
) -> None:
    for name in ("good", "bad"):
        source.put(name, name.encode())
    handler = Blocked()
    options = FollowOptions(pace=PACE)
    await Subscriber(source.url, handler, state=tmp_path / "state", options=options).catch_up()
    assert handler.applied == {source.base + name: name.encode() for name in ("good", "bad")}
    assert handler.failures == 0
    assert threading.get_ident() not in handler.threads


# A handler whose store is away


class Store:
    """A handler whose store is away at first, called in a thread."""

    def __init__(self) -> None:
        self.away = True
        self.calls = 0
        self.applied: dict[str, bytes | None] = {}

    def apply(self, changes: Sequence[Received]) -> Awaitable[None] | None:
        self.calls += 1
        for change in changes:
            self.applied[change.uri] = change.read() if change.content else None
            if self.away:  # in the middle of a batch
                raise StoreUnavailable("http://store.example/ does not answer")
        return None


class AwaitedStore(Store):
    """The same, called on the event loop."""

    async def apply(self, changes: Sequence[Received]) -> None:
        super().apply(changes)


@pytest.fixture(params=[Store, AwaitedStore])
def store(request: pytest.FixtureRequest) -> Store:
    return request.param()


async def test_changes_wait_together_for_a_store_that_is_away(
    source: SmallSource, tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    contents = {f"{number}": b"%d" % number for number in range(20)}
    for name, content in contents.items():
        source.put(name, content)
    options = FollowOptions(pace=replace(PACE, retry=Retry(first=0.1, most=0.1)))
    async with (
        Subscriber(source.url, store, state=tmp_path / "state", options=options) as subscriber,
        asyncio.timeout(PATIENCE),
    ):
        await asyncio.to_thread(eventually, lambda: store.calls >= 10)
        await asyncio.to_thread(eventually, lambda: subscriber.status.pending == 20)
        assert not subscriber.status.level
        assert subscriber.status.error == "http://store.example/ does not answer"
        assert caplog.text.count("waiting for the store") == 1
        store.away = False
        await subscriber.until(lambda status: status.level)
        assert subscriber.status.error is None
    assert store.applied == {source.base + name: content for name, content in contents.items()}
    assert {name: source.gets[path_of(name)] for name in contents} == dict.fromkeys(contents, 1)


async def test_catching_up_ends_if_the_store_stays_away(
    source: SmallSource, tmp_path: Path, store: Store
) -> None:
    for name in ("a", "b"):
        source.put(name, b"content")
    options = FollowOptions(pace=replace(PACE, patience=0.1))
    subscriber = Subscriber(source.url, store, state=tmp_path / "state", options=options)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await subscriber.catch_up()
    assert not subscriber.status.level
    store.away = False
    await subscriber.catch_up()
    assert store.applied == {source.base + name: b"content" for name in ("a", "b")}


async def test_a_subscriber_that_waits_for_its_store_ends_at_once(
    source: SmallSource, tmp_path: Path, store: Store
) -> None:
    for name in ("a", "b"):
        source.put(name, b"content")
    options = FollowOptions(pace=replace(PACE, retry=Retry(first=3_600.0, most=3_600.0)))
    async with asyncio.timeout(PATIENCE):
        async with Subscriber(source.url, store, state=tmp_path / "state", options=options) as one:
            await one.until(lambda status: status.error is not None)
    store.away = False
    source.delete("a")  # part of it may have reached the store before
    await Subscriber(source.url, store, state=tmp_path / "state", options=options).catch_up()
    applied = {uri for uri, content in store.applied.items() if content is not None}
    assert applied == {source.base + "b"}


async def test_an_error_of_a_handler_is_logged_once_with_its_traceback(
    source: SmallSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        source.put(name, b"x")
    failures = iter(range(5))

    def index(change: Received) -> None:
        if next(failures, None) is not None:
            raise KeyError("title")

    options = FollowOptions(pace=PACE)
    await Subscriber(source.url, index, state=tmp_path / "state", options=options).catch_up()
    (logged,) = (record for record in caplog.records if record.exc_info)
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], KeyError)
    assert next(failures, None) is None


async def test_what_a_handler_could_not_apply_is_named_with_the_type_of_its_error(
    source: SmallSource, tmp_path: Path
) -> None:
    source.put("a", b"x")

    async def index(change: Received) -> None:
        raise KeyError("title")

    options = FollowOptions(pace=PACE)
    with pytest.raises(
        RsnotifyError,
        match=r"/a: it could not be applied: KeyError: 'title'; several attempts failed",
    ) as caught:
        await Subscriber(source.url, index, state=tmp_path / "state", options=options).catch_up()
    assert str(caught.value).count(source.base) == 1
