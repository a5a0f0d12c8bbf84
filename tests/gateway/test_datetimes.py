"""The datetimes of changes, for every adapter: never before a change happened, or its lastmod."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Resource
from rsnotify_gateway import OriginSettings
from rsnotify_gateway.adapters.event_streams import EventMapping
from rsnotify_publisher.outbox import Outbox
from tests.gateway.checking import Reading, origin
from tests.gateway.event_server import MAPPING, EventServer, change
from tests.gateway.generators import Activities, EventStream, Origin, PullOnlySource, at
from tests.gateway.origin_server import SITE, Site, atom, sitemap
from tests.gateway.outbox import execute
from tests.gateway.repositories import Items, RepositoryServer, pyoai
from tests.postgresql import running_postgresql

A, B = SITE + "a", SITE + "b"

#: Makes a change at the origin that is dated now.
Change = Callable[[Instant], Awaitable[None] | None]
Case = Callable[[], AbstractAsyncContextManager[tuple[OriginSettings, Change]]]


@asynccontextmanager
async def a_sitemap() -> AsyncIterator[tuple[OriginSettings, Change]]:
    async with Site() as site:
        site.pages["/sitemap.xml"] = sitemap({A: "2026-11-02T10:00:00Z", B: None})

        def change(now: Instant) -> None:
            site.pages["/sitemap.xml"] = sitemap({A: format_datetime(now), SITE + "c": None})

        yield origin("sitemap", site.url("/sitemap.xml")), change


@asynccontextmanager
async def a_repository() -> AsyncIterator[tuple[OriginSettings, Change]]:
    async with RepositoryServer(Items(), pyoai) as server:
        server.items.put("a")
        server.items.put("b")

        def change(now: Instant) -> None:
            server.items.put("a", "other")
            server.items.delete("b")

        yield origin("oai-pmh", server.url), change


@asynccontextmanager
async def a_feed() -> AsyncIterator[tuple[OriginSettings, Change]]:
    async with Site() as site:
        site.pages["/feed"] = atom([("a", "A")])

        def change(now: Instant) -> None:
            body = atom([("b", "B"), ("a", "A")]).decode()
            site.pages["/feed"] = body.replace(
                "2026-11-02T10:00:00Z", format_datetime(now), 1
            ).encode()

        yield origin("feed", site.url("/feed")), change


def a_generated(type_: str, make: Callable[[Site], Origin]) -> Case:
    @asynccontextmanager
    async def case() -> AsyncIterator[tuple[OriginSettings, Change]]:
        async with Site() as site:
            source = make(site)
            source.put("a", at(0))

            def change(now: Instant) -> None:
                source.put("b", now)
                source.delete("a", now)

            yield origin(type_, source.url()), change

    return case


@asynccontextmanager
async def a_stream_of_events() -> AsyncIterator[tuple[OriginSettings, Change]]:
    async with EventServer() as server:
        await server.send(change(A, at(0)))

        async def add(now: Instant) -> None:
            await server.send(change(B, now), change(A, now, "delete"))

        mapping = EventMapping(**{**MAPPING, "deleted": ("delete",)})
        yield origin("events", server.url, event=mapping), add


@asynccontextmanager
async def a_database() -> AsyncIterator[tuple[OriginSettings, Change]]:
    with running_postgresql() as server:
        url = server.database()
        insert = 'INSERT INTO rsnotify_outbox (entry) VALUES (\'{"uri": "%s", "change": "%s"}\')'
        execute(url, Outbox().ddl, insert % (A, "created"))

        def change(now: Instant) -> None:
            execute(url, insert % (B, "created"), insert % (A, "deleted"))

        yield origin("postgresql", url), change


#: An origin of each type that has one resource or two, and a function that changes it.
CASES: dict[str, Case] = {
    "sitemap": a_sitemap,
    "oai-pmh": a_repository,
    "feed": a_feed,
    "resourcesync": a_generated("resourcesync", PullOnlySource),
    "iiif": a_generated("iiif", Activities),
    "ldes": a_generated("ldes", EventStream),
    "events": a_stream_of_events,
    "postgresql": a_database,
}


async def recorded(folder: Path, settings: OriginSettings, streamed: str) -> list[Resource]:
    """Check the origin, or read its stream until there is one resource; return the changes."""
    async with Reading(folder, settings) as reading:
        if settings.type in ("events", "postgresql"):
            await reading.until_there(streamed)
        else:
            await reading.check()
        with reading.journal() as journal:
            return journal.changes(0)


def datetimes(found: Iterable[Resource]) -> list[datetime]:
    return [one.datetime for one in found if one.datetime is not None]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_no_change_is_dated_before_it_happened(case: Case, tmp_path: Path):
    async with case() as (settings, make_change):
        before = await recorded(tmp_path, settings, A)
        happened = datetime.now(UTC)
        pending = make_change(happened)
        if pending is not None:
            await pending
        found = await recorded(tmp_path, settings, B)
    new = found[len(before) :]
    assert new
    assert min(datetimes(new)) >= happened
    assert all(
        one.lastmod is None or one.lastmod <= at
        for one, at in zip(new, datetimes(new), strict=True)
    )
    assert datetimes(found) == sorted(set(datetimes(found)))
    assert max(datetimes(found)) <= datetime.now(UTC)
