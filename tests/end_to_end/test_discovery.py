"""A Destination finds a Source by each of the ways that a Source offers (core §6.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from rsnotify.errors import ConfigurationError
from rsnotify_publisher import (
    Publisher,
    SourceDescription,
    html_link,
    link_header,
    robots_lines,
    routes,
)
from rsnotify_subscriber.discovery.discovery import discover
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from tests.publisher.helpers import PATIENCE, QUICK, serving


@pytest.fixture
def host(unused_tcp_port: int) -> str:
    return f"http://127.0.0.1:{unused_tcp_port}/"


@pytest.fixture
async def fetcher(host: str, tmp_path: Path) -> AsyncIterator[Fetcher]:
    async with Sessions(host) as sessions:
        yield Fetcher(sessions, tmp_path)


@asynccontextmanager
async def serving_sets(app: web.Application, host: str, *sets: Publisher) -> AsyncIterator[None]:
    async with serving(app, int(host[:-1].rpartition(":")[2])):
        for publisher in sets:
            assert await asyncio.to_thread(publisher.wait_published, PATIENCE)
        try:
            yield
        finally:
            for publisher in sets:
                await asyncio.to_thread(publisher.close)


def text(body: str, kind: str, **headers: str) -> web.Response:
    return web.Response(text=body, content_type=kind, headers=headers)


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("well-known URI", ""),
        ("well-known URI", "data/any/resource"),
        ("Link header", "data/plain"),
        ("HTML link", "data/page.html"),
        ("robots.txt", ""),
    ],
)
async def test_each_way_alone_leads_to_the_capability_list(
    tmp_path: Path, host: str, fetcher: Fetcher, way: str, name: str
):
    publisher = Publisher(tmp_path / "state", f"{host}data/", options=QUICK)

    async def offered(request: web.Request) -> web.Response:
        if way == "robots.txt" and request.path == "/robots.txt":
            return text(robots_lines(publisher), "text/plain")
        if way == "Link header":
            return text("plain", "text/plain", Link=link_header(publisher))
        if way == "HTML link":
            return text(f"<html><head>{html_link(publisher)}</head></html>", "text/html")
        raise web.HTTPNotFound

    app = web.Application()
    for route in routes(publisher):
        if way == "well-known URI" or "well-known" not in route.path:
            app.add_routes([route])
    app.router.add_get("/{name:.*}", offered)
    async with serving_sets(app, host, publisher):
        found = await discover(fetcher, host + name)
    assert found.capability_list == f"{host}data/capabilitylist.xml"
    assert found.source_description == f"{host}data/.well-known/resourcesync"
    assert found.resource_list == f"{host}data/resourcelist.xml"


async def test_a_source_of_several_sets_asks_which_and_each_is_found_below_its_place(
    tmp_path: Path, host: str, fetcher: Fetcher
):
    sets = [Publisher(tmp_path / name, f"{host}{name}/", options=QUICK) for name in "ab"]
    app = web.Application()
    app.add_routes(routes(SourceDescription(host, sets)))
    async with serving_sets(app, host, *sets):
        with pytest.raises(ConfigurationError, match="several sets of resources"):
            await discover(fetcher, host)
        for name in "ab":
            found = await discover(fetcher, f"{host}{name}/")
            assert found.capability_list == f"{host}{name}/capabilitylist.xml"
            assert found.source_description == f"{host}.well-known/resourcesync"
