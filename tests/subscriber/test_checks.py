"""Deciding whether a change still has to be applied, by the method of its `check`."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import ContentMismatch, NotFound, RsnotifyError
from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from rsnotify.runtime.tasks import Tasks
from rsnotify.selection import Selection
from rsnotify.sync.progress import Progress
from rsnotify.sync.retry import Retry
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.following.applier import Applier
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.resource_state import ResourceState
from tests.subscriber.destination import PATIENCE
from tests.wild.documents import sha256
from tests.wild.running import Recorder
from tests.wild.source import Source as WildSource

CREATED, UPDATED, DELETED = ChangeType.CREATED, ChangeType.UPDATED, ChangeType.DELETED


class Copy:
    """A copy to which one change after the other is applied; an `Outcome`."""

    def __init__(
        self, source: WildSource, state: DestinationState, fetcher: Fetcher, worker: Any
    ) -> None:
        self.source = source
        self.state = state
        self.handler = Recorder(source.base, Path())
        self.tasks = Tasks(self._ended)
        self._worker = worker
        self._bringer = ContentResolver(fetcher)
        self._answer: asyncio.Future[RsnotifyError | None]
        self.select(Selection())

    def select(self, selection: Selection) -> None:
        arguments = (self._bringer, self.state, self.handler, self, self._worker, self.tasks)
        self.applier = Applier(*arguments, selection, Retry())
        self.tasks.spawn(self.applier.run())

    def _ended(self, error: BaseException | None) -> None:
        self._answer.set_exception(error or AssertionError())

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        return None

    def applied(self, changes: Sequence[Change]) -> None:
        self._answer.set_result(None)

    def committed(self, changes: Sequence[Change]) -> None:
        pass

    def failed(self, change: Change, error: RsnotifyError) -> None:
        self._answer.set_result(error)

    def find_lost(self) -> None: ...

    def resumed(self) -> None: ...

    async def apply(self, change: Change) -> RsnotifyError | None:
        """Apply a change; return why it failed, if it did."""
        self._answer = asyncio.get_running_loop().create_future()
        self.source.forget()
        self.handler.calls.clear()
        self.applier.submit([change])
        async with asyncio.timeout(PATIENCE):
            return await self._answer

    async def have(self, content: bytes | None, at: float = 100, **fields: Any) -> None:
        """Store content in the copy as of a change at an instant."""
        kind = UPDATED if content is not None else DELETED
        told = {} if content is None else {"content": content, "hash": sha256(content)}
        assert await self.apply(change(self.source, kind, at, **told, **fields)) is None
        self.handler.calls.clear()

    def held(self) -> ResourceState:
        held = self.state.find(self.source.uri("a"))
        assert held is not None
        return held

    async def check(
        self, change: Change, *calls: str, at: float | None = None, gets: int | None = None
    ) -> None:
        """Apply a change; check what the handler received, and the instant and GETs it took."""
        assert await self.apply(change) is None
        assert self.handler.calls == [(call, "a") for call in calls]
        assert at is None or self.at == self.source.t(at)
        assert gets is None or len(self.source.log) == gets

    @property
    def at(self) -> datetime:
        return from_microseconds(self.held().changed_at)


def change(
    source: WildSource,
    kind: ChangeType,
    at: float,
    check: CheckMethod = CheckMethod.DATE,
    content: bytes | None = None,
    **fields: Any,
) -> Change:
    moment = source.t(at)
    if content is not None:
        data = f"data:;base64,{b64encode(content).decode()}"
        fields["links"] = (Link(Rel.DUPLICATE, data),)
    entry = Resource(source.uri("a"), change=kind, datetime=moment, **fields)
    return Change(entry.uri, kind, moment, entry, check=check)


@pytest.fixture
async def copy(source: WildSource, tmp_path: Path) -> AsyncIterator[Copy]:
    with closing(DestinationState(tmp_path / "state")) as state, ThreadPoolExecutor(1) as worker:
        async with Sessions(source.url) as sessions:
            copy = Copy(source, state, Fetcher(sessions, state.make_incoming()), worker)
            yield copy
            await copy.tasks.cancel()


@pytest.fixture
async def source() -> AsyncIterator[WildSource]:
    source = WildSource()
    async with source.server:
        yield source


# Compare


async def test_a_later_change_is_applied_as_announced(copy: Copy, source: WildSource) -> None:
    await copy.have(b"1")
    later = change(source, UPDATED, 101, CheckMethod.COMPARE, b"2", hash=sha256(b"2"))
    assert await copy.apply(later) is None
    assert copy.handler.held == {"a": b"2"}
    assert source.log == []


@pytest.mark.parametrize(
    ("held", "entry"),
    [
        (b"1", {"hash": sha256(b"1")}),
        (b"1", {}),  # of a state that does not know when it was fetched nothing else is known
        (b"1", {"length": 1}),
        (None, {"kind": DELETED}),
    ],
)
async def test_an_entry_that_agrees_with_the_copy_has_no_effect(
    copy: Copy, source: WildSource, held: bytes | None, entry: dict[str, Any]
) -> None:
    await copy.have(held)
    kind = entry.pop("kind", UPDATED)
    await copy.check(change(source, kind, 50, CheckMethod.COMPARE, **entry), at=100, gets=0)


async def test_a_deletion_of_an_unknown_resource_has_no_effect(
    copy: Copy, source: WildSource
) -> None:
    await copy.check(change(source, DELETED, 50, CheckMethod.COMPARE))


@pytest.mark.parametrize(
    ("entry", "known", "fetched"),
    [
        ({"hash": sha256(b"2")}, {}, True),
        ({"length": 2}, {}, True),
        ({"lastmod": 50}, {"lastmod": 40}, True),
        ({}, {"fetched_at": 52}, False),
        ({}, {"fetched_at": 51}, True),  # within a second of it
        ({}, {"fetched_at": 20}, True),
        ({"lastmod": 10, "length": 1}, {"fetched_at": 20, "lastmod": 10}, False),
        ({"lastmod": 10}, {"fetched_at": 20, "lastmod": 10}, True),
        ({"lastmod": 20, "length": 1}, {"fetched_at": 20, "lastmod": 20}, True),
        ({"lastmod": 10, "length": 1}, {"fetched_at": 20, "lastmod": 9}, True),
        ({"kind": DELETED}, {}, True),
    ],
)
async def test_an_older_entry_that_contradicts_the_copy_is_verified_by_a_get(
    copy: Copy, source: WildSource, entry: dict[str, Any], known: dict[str, Any], fetched: bool
) -> None:
    def in_microseconds(offset: float) -> int:
        return to_microseconds(source.t(offset))

    known = {name: in_microseconds(offset) for name, offset in known.items()}
    hash = sha256(b"1")
    at = in_microseconds(100)
    copy.state.commit([ResourceState(source.uri("a"), at, UPDATED, hash, 1, **known)], None)
    if "lastmod" in entry:
        entry = {**entry, "lastmod": source.t(entry["lastmod"])}
    kind = entry.pop("kind", UPDATED)
    source.file("a", b"22" if entry.get("hash") == sha256(b"22") else b"1")
    await copy.apply(change(source, kind, 50, CheckMethod.COMPARE, **entry))
    assert [one.path for one in source.log] == (["/set/a"] if fetched else [])
    if fetched:
        assert copy.at == source.t(50)  # a wrong later date does not block later changes
        assert copy.handler.calls == []  # it is what it was


async def test_a_deletion_that_the_server_contradicts_is_verified_each_time_it_is_listed(
    copy: Copy, source: WildSource
) -> None:
    await copy.have(b"1")
    source.file("a", b"1")
    for _ in range(2):
        await copy.check(change(source, DELETED, 50, CheckMethod.COMPARE), gets=1)
    source.remove("a")
    await copy.check(change(source, DELETED, 50, CheckMethod.COMPARE), "deleted", gets=1)


# Fetch


async def test_the_version_of_the_source_wins_whatever_the_dates(
    copy: Copy, source: WildSource
) -> None:
    await copy.have(b"invented", at=3600)
    source.file("a", b"genuine")
    genuine = change(source, UPDATED, 50, CheckMethod.FETCH, hash=sha256(b"genuine"))
    await copy.check(genuine, "updated", at=50)
    assert copy.handler.held == {"a": b"genuine"}
    (request,) = source.log
    assert request.past_caches
    assert request.headers["Pragma"] == "no-cache"
    assert not request.conditional


async def test_a_verification_uses_neither_mirrors_nor_inline_content(
    copy: Copy, source: WildSource
) -> None:
    source.file("a", b"genuine")
    await copy.check(change(source, UPDATED, 50, CheckMethod.FETCH, b"forged"), "created")
    assert copy.handler.held == {"a": b"genuine"}


async def test_an_unchanged_resource_is_only_recorded(copy: Copy, source: WildSource) -> None:
    await copy.have(b"1")
    source.file("a", b"1")
    for kind in (UPDATED, DELETED):
        await copy.check(change(source, kind, 50, CheckMethod.FETCH), at=50)
        assert copy.held().exists
        assert copy.held().fetched_at


async def test_content_that_is_neither_held_nor_announced_is_tried_again(
    copy: Copy, source: WildSource
) -> None:
    await copy.have(b"1")
    source.file("a", b"3")
    told = change(source, UPDATED, 200, CheckMethod.FETCH, hash=sha256(b"2"))
    assert isinstance(await copy.apply(told), ContentMismatch)
    assert copy.handler.held == {"a": b"1"}


@pytest.mark.parametrize("status", [404, 410])
async def test_a_deletion_is_applied_if_the_source_answers_404(
    copy: Copy, source: WildSource, status: int
) -> None:
    await copy.have(b"1", at=3600)
    source.put("a", b"", status=status)
    await copy.check(change(source, DELETED, 50, CheckMethod.FETCH), "deleted", at=50)
    assert not copy.held().exists
    await copy.check(change(source, DELETED, 40, CheckMethod.FETCH))


@pytest.mark.parametrize(("held", "called"), [(None, "created"), (b"1", "updated")])
async def test_a_deletion_of_a_resource_that_exists_fetches_it(
    copy: Copy, source: WildSource, held: bytes | None, called: str
) -> None:
    await copy.have(held)
    source.file("a", b"2")
    await copy.check(change(source, DELETED, 50, CheckMethod.FETCH), called)
    assert copy.handler.held == {"a": b"2"}


async def test_an_update_of_a_missing_resource_fails(copy: Copy, source: WildSource) -> None:
    await copy.have(b"1")
    assert isinstance(await copy.apply(change(source, UPDATED, 50, CheckMethod.FETCH)), NotFound)
    assert copy.handler.held == {"a": b"1"}


async def test_resources_that_are_not_selected_are_not_fetched(
    copy: Copy, source: WildSource
) -> None:
    await copy.have(b"1")
    copy.select(Selection(excluded=("*/a",)))
    source.file("a", b"2")
    assert await copy.apply(change(source, UPDATED, 200, CheckMethod.FETCH)) is None
    assert source.log == []
    assert copy.handler.held == {}
    assert await copy.apply(change(source, UPDATED, 201, CheckMethod.FETCH)) is None
    assert source.log == []


# Equal content


@pytest.mark.parametrize(
    ("kind", "announced", "gets"),
    [
        (CREATED, {"content": b"1", "hash": sha256(b"1")}, 0),
        (CREATED, {"hash": sha256(b"1")}, 0),
        (UPDATED, {}, 1),
    ],
    ids=["inline", "by its hash", "by a GET"],
)
async def test_content_that_is_held_is_not_handed_over_again(
    copy: Copy, source: WildSource, kind: ChangeType, announced: dict[str, Any], gets: int
) -> None:
    await copy.have(b"1")
    source.file("a", b"1", source.t(101))
    await copy.check(change(source, kind, 101, **announced), at=101, gets=gets)
    assert bool(copy.held().fetched_at) == bool(gets)


# Inline content


async def test_inline_content_without_a_hash_is_fetched(copy: Copy, source: WildSource) -> None:
    source.file("a", b"1")
    forged = change(source, UPDATED, 100, content=b"2", length=1)
    assert await copy.apply(forged) is None
    assert copy.handler.held == {"a": b"1"}


async def test_content_that_a_list_confirms_without_a_hash_is_verified_once(
    copy: Copy, source: WildSource
) -> None:
    precise = 100.000001
    await copy.have(b"forged", at=precise)
    source.file("a", b"genuine")
    confirmed = change(source, UPDATED, precise)
    assert await copy.apply(confirmed) is None
    assert copy.handler.held == {"a": b"genuine"}
    assert await copy.apply(confirmed) is None
    assert source.log == []


async def test_answers_of_a_server_without_a_clock_are_accepted(
    copy: Copy, source: WildSource
) -> None:
    source.put("a", b"1", headers={"Date": None})
    precise = change(source, UPDATED, 100.000001)
    assert await copy.apply(precise) is None
    assert copy.held().fetched_at == 0
    assert await copy.apply(precise) is None
    assert source.log == []
