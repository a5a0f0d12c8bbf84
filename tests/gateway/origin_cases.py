"""An origin of each type, with a change that it can make."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import pytest

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify_gateway import OriginSettings
from rsnotify_publisher.outbox import Outbox
from tests.gateway.checking import origin
from tests.gateway.event_server import EVENT, EventServer, change
from tests.gateway.generators import Activities, EventStream, Origin, PullOnlySource, at
from tests.gateway.origin_server import SITE, Site, atom, sitemap
from tests.gateway.outbox import execute
from tests.gateway.repositories import Items, RepositoryServer, pyoai

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

        yield origin("events", server.url, event=EVENT), add


@asynccontextmanager
async def a_database(url: str) -> AsyncIterator[tuple[OriginSettings, Change]]:
    insert = 'INSERT INTO rsnotify_outbox (entry) VALUES (\'{"uri": "%s", "change": "%s"}\')'
    execute(url, Outbox().ddl, insert % (A, "created"))

    def change(now: Instant) -> None:
        execute(url, insert % (B, "created"), insert % (A, "deleted"))

    yield origin("postgresql", url), change


#: An origin of each type that has one resource or two, and a function that changes it.
CASES: dict[str, Callable[..., AbstractAsyncContextManager[tuple[OriginSettings, Change]]]] = {
    "sitemap": a_sitemap,
    "oai-pmh": a_repository,
    "feed": a_feed,
    "resourcesync": a_generated("resourcesync", PullOnlySource),
    "iiif": a_generated("iiif", Activities),
    "ldes": a_generated("ldes", EventStream),
    "events": a_stream_of_events,
    "postgresql": a_database,
}


def case_of(kind: str, request: pytest.FixtureRequest) -> Case:
    make = CASES[kind]
    return partial(make, request.getfixturevalue("postgresql")) if kind == "postgresql" else make
