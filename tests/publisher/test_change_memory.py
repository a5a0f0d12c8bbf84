"""The change memory: pages with the changes since an instant, as standard Change Lists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import ChangeType, Document, Rel, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Options, Publisher
from tests.cases import case
from tests.publisher.helpers import (
    BASE,
    PATIENCE,
    QUICK,
    eventually,
    quick_publisher,
    serving_documents,
)
from tests.publisher.published import read, recorded
from tests.waiting import until

MEMORY = "resourcesync/changes"
SECOND = timedelta(seconds=1)


class Memory:
    def __init__(self, publisher: Publisher, url: str, session: aiohttp.ClientSession) -> None:
        self.publisher = publisher
        self.url = url
        self._session = session

    async def request_page(self, query: str = "") -> tuple[int, str]:
        async with self._session.get(f"{self.url}/{MEMORY}{query}") as answer:
            assert answer.charset or answer.status == 200
            return answer.status, await answer.text()

    async def page(self, query: str = "") -> Document:
        status, text = await self.request_page(query)
        assert status == 200, text
        return read_document(text.encode())

    async def since(self, instant: Instant, **more: int) -> Document:
        rest = "".join(f"&{name}={value}" for name, value in more.items())
        return await self.page(f"?since={format_datetime(instant)}{rest}")

    async def walk(self, page: Document) -> list[Document]:
        pages = [page]
        while following := pages[-1].link(Rel.NEXT):
            assert following.startswith(BASE + MEMORY)
            pages.append(await self.page(following.removeprefix(BASE + MEMORY)))
        return pages

    async def record(self, count: int) -> list[Resource]:
        names = (f"{BASE}{number}" for number in range(count))
        return await self.publisher.arecord(
            Resource(name, change=ChangeType.UPDATED) for name in names
        )


@asynccontextmanager
async def remembering(
    tmp_path: Path, options: Options = QUICK, **settings: object
) -> AsyncIterator[Memory]:
    publisher = Publisher(tmp_path, BASE, options=options, **settings)
    async with serving_documents(publisher) as url, aiohttp.ClientSession() as session:
        yield Memory(publisher, url, session)


def joined(pages: list[Document]) -> list[Resource]:
    """Check that pages join without a gap, and return all their entries."""
    for one, following in pairwise(pages):
        assert following.from_ == (one.until or one.resources[-1].changed_at)
    return [entry for page in pages for entry in page.resources]


async def test_a_page_is_a_change_list_of_later_changes(tmp_path: Path):
    async with remembering(tmp_path) as memory:
        first, second, third = await memory.record(3)
        page = await memory.since(first.datetime)
    assert page.capability == "changelist"
    assert page.link("up") == BASE + "capabilitylist.xml"
    assert page.from_ == first.datetime
    assert page.until is None
    assert [entry.uri for entry in page.resources] == [second.uri, third.uri]
    assert [entry.datetime for entry in page.resources] == [second.datetime, third.datetime]


async def test_the_last_page_links_to_an_empty_one(tmp_path: Path):
    async with remembering(tmp_path) as memory:
        (change,) = await memory.record(1)
        *_, last = await memory.walk(await memory.page())
        assert last.resources == ()
        assert last.from_ == change.datetime
        assert last.link(Rel.NEXT) is None
        await memory.record(2)
        assert len((await memory.since(change.datetime)).resources) == 2


async def test_full_pages_are_closed_and_join(tmp_path: Path):
    async with remembering(tmp_path) as memory:
        changes = await memory.record(7)
        pages = await memory.walk(await memory.page("?limit=3"))
        just_full = await memory.page("?limit=7")
    assert (len(just_full.resources), just_full.until) == (7, None), "it may grow"
    assert [len(page.resources) for page in pages] == [3, 3, 1, 0]
    assert [page.until for page in pages] == [changes[2].datetime, changes[5].datetime, None, None]
    assert [entry.datetime for entry in joined(pages)] == [change.datetime for change in changes]


@pytest.mark.parametrize(
    ("compressed", "profile", "limit"),
    [(False, "1.1", 4), (True, "1.0", 4), (False, "1.0", 1000), (True, "1.1", 1000)],
)
async def test_the_memory_includes_closed_lists(
    tmp_path: Path, compressed: bool, profile: str, limit: int
):
    options = replace(QUICK, rotate="10 changes", gzip=compressed, profile=profile)
    async with remembering(tmp_path, options) as memory:
        changes = []
        for _ in range(5):
            changes += await memory.record(10)
        await pruned(memory.publisher)
        pages = await memory.walk(await memory.page(f"?limit={limit}"))
        rest = await memory.walk(await memory.since(changes[3].datetime, limit=limit))
    assert [entry.changed_at for entry in joined(pages)] == [change.datetime for change in changes]
    assert [entry.changed_at for entry in joined(rest)] == [
        change.datetime for change in changes[4:]
    ]


async def pruned(publisher: Publisher) -> None:
    """Wait until the journal has deleted the closed changes."""
    await asyncio.to_thread(eventually, lambda: len(recorded(publisher)) < 10)


async def test_forgotten_changes_result_in_410_with_an_explanation(tmp_path: Path):
    async with remembering(tmp_path) as memory:
        await memory.record(1)
        beginning = (await memory.page()).from_
        status, text = await memory.request_page(f"?since={format_datetime(beginning - SECOND)}")
    assert status == 410
    assert f"changes before {format_datetime(beginning)} are no longer available" in text
    assert BASE + "resourcelist.xml" in text
    assert text.count("\n") == 1


async def test_dropped_changes_result_in_410(tmp_path: Path):
    options = replace(QUICK, rotate="10 changes", keep="1 lists")
    async with remembering(tmp_path, options) as memory:
        changes = []
        for _ in range(5):
            changes += await memory.record(10)
        await pruned(memory.publisher)
        query = f"?since={format_datetime(changes[0].datetime)}"

        async def is_dropped() -> bool:
            return (await memory.request_page(query))[0] == 410

        await until(is_dropped)
        pages = await memory.walk(await memory.page())
    assert [entry.uri for entry in joined(pages)][-1] == changes[-1].uri


async def test_an_invalid_query_results_in_400_with_an_explanation(tmp_path: Path):
    async with remembering(tmp_path) as memory:
        for query in (
            *("since=yesterday", "since=", "since=2026-13-01"),
            *("limit=0&since=2026-01-01T00:00:00Z", "limit=-1", "limit=many", "limit="),
            f"limit={'9' * 5000}",
        ):
            with case(query):
                status, text = await memory.request_page(f"?{query}")
                assert status == 400
                assert text.startswith(query.partition("=")[0])
                assert text.count("\n") == 1


async def test_every_w3c_datetime_is_accepted(tmp_path: Path):
    async with remembering(tmp_path) as memory:
        (change,) = await memory.record(1)
        for since in ("2100", "2100-01-01", "2100-01-01T00:00:00+01:00", "2100-01-01T00:00Z"):
            assert (await memory.page(f"?since={since}")).resources == ()
            assert (await memory.page(f"?since={quote(since)}")).resources == ()
        begin = (await memory.page()).from_
        assert [e.uri for e in (await memory.since(begin)).resources] == [change.uri]


async def test_a_known_page_results_in_304(tmp_path: Path):
    async with remembering(tmp_path) as memory, aiohttp.ClientSession() as session:
        await memory.record(1)
        url = f"{memory.url}/{MEMORY}"
        async with session.get(url) as answer:
            tag = answer.headers["ETag"]
            assert answer.headers["Cache-Control"] == "no-cache"
        async with session.get(url, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304
        await memory.record(1)
        async with session.get(url, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("offered", [False, True])
async def test_the_capability_list_links_to_it_if_enabled(tmp_path: Path, offered: bool):
    with quick_publisher(tmp_path, change_memory=offered) as publisher:
        assert publisher.wait_published(PATIENCE)
    named = read(publisher, "capabilitylist.xml").link(Rel.CHANGE_SET)
    assert named == (BASE + MEMORY if offered else None)
