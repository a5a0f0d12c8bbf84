"""The documents over HTTP: always fresh, conditional, and found where they belong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.links import parse_links
from rsnotify.reading import read_document
from rsnotify_publisher import Publisher, application, routes
from tests.publisher.helpers import BASE, PATIENCE, QUICK, serving

NAMES = [
    "capabilitylist.xml",
    "resourcelist.xml",
    "changelist.xml",
    "changelist-archive.xml",
    "channel.xml",
    ".well-known/resourcesync",
]
# The folder is written once, so that what is fresh can only come from the journal.
SLOW = replace(QUICK, refresh=900, resource_list_every=900, grace=0)


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path, BASE, options=SLOW, hubs=["http://hub.invalid/"])


@pytest.fixture
async def site(publisher: Publisher) -> AsyncIterator[str]:
    async with serving(application(publisher)) as url:
        assert await asyncio.to_thread(publisher.wait_published, PATIENCE)
        yield url + "/"


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize("name", NAMES)
async def test_every_document_is_xml_and_answers_get_head_and_conditions(
    site: str, client: aiohttp.ClientSession, name: str
) -> None:
    async with client.get(site + name) as answer:
        assert answer.status == 200
        assert answer.content_type == "application/xml"
        read_document(await answer.read())
        tag = answer.headers["ETag"]
        length = answer.headers["Content-Length"]
    assert not tag.startswith("W/")
    async with client.head(site + name) as answer:
        assert (answer.status, answer.headers["ETag"]) == (200, tag)
        assert answer.headers["Content-Length"] == length
    async with client.get(site + name, headers={"If-None-Match": tag}) as answer:
        assert (answer.status, await answer.read()) == (304, b"")


@pytest.mark.parametrize("name", ["changelist.xml", "channel.xml"])
async def test_the_open_list_shows_every_durable_change(
    publisher: Publisher, site: str, client: aiohttp.ClientSession, name: str
) -> None:
    tags = set()
    for number in range(5):
        await publisher.aupdated(BASE + str(number))
        async with client.get(site + name) as answer:
            document = read_document(await answer.read())
            tags.add(answer.headers["ETag"])
        assert [entry.uri for entry in document.resources][-1] == BASE + str(number)
        assert len(document.resources) == number + 1
    assert len(tags) == 5


async def test_a_change_makes_a_known_list_be_sent_again(
    publisher: Publisher, site: str, client: aiohttp.ClientSession
) -> None:
    async with client.get(site + "channel.xml") as answer:
        tag = answer.headers["ETag"]
    await publisher.aupdated(BASE + "a")
    async with client.get(site + "channel.xml", headers={"If-None-Match": tag}) as answer:
        assert answer.status == 200


async def test_the_channel_names_itself_and_its_hubs(
    site: str, client: aiohttp.ClientSession
) -> None:
    for method in ("GET", "HEAD"):
        async with client.request(method, site + "channel.xml") as answer:
            assert parse_links(answer.headers.getall("Link")) == [
                ("self", BASE + "channel.xml"),
                ("hub", "http://hub.invalid/websub"),
                ("hub", "ws://hub.invalid/ws"),
            ]


async def test_closed_lists_are_served_and_join_the_fresh_open_one(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    options = replace(QUICK, max_open=4)
    publisher = Publisher(tmp_path, BASE, options=options)
    with publisher:
        for number in range(20):
            publisher.updated(BASE + str(number))
    async with serving(application(publisher)) as url:
        async with client.get(f"{url}/changelist-archive.xml") as answer:
            archive = read_document(await answer.read())
        closed = []
        for entry in archive.resources:
            async with client.get(entry.uri.replace(BASE, url + "/")) as answer:
                closed.append(read_document(await answer.read()))
        async with client.get(f"{url}/changelist.xml") as answer:
            opened = read_document(await answer.read())
    assert opened.from_ == archive.resources[-1].until == closed[-1].until
    names = [entry.uri for document in [*closed, opened] for entry in document.resources]
    assert names == [BASE + str(number) for number in range(20)]


@pytest.mark.parametrize(
    "path",
    [
        "resourcesync/..%2f..%2fjournal.sqlite3",
        "resourcesync/../../journal.sqlite3",
        "..%2fjournal.sqlite3",
        "resourcesync/.changelist.xml.tmp",
        "resourcesync/none.xml",
        "journal.sqlite3",
        "",
    ],
)
async def test_nothing_but_documents_is_served(
    publisher: Publisher, site: str, client: aiohttp.ClientSession, path: str
) -> None:
    reader, writer = await asyncio.open_connection(*site[7:-1].split(":"))
    writer.write(f"GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 404")


async def test_the_application_can_be_mounted_at_the_base_url(
    publisher: Publisher, client: aiohttp.ClientSession
) -> None:
    app = web.Application()
    app.add_subapp("/data/", application(publisher))
    async with serving(app) as url:
        await publisher.aupdated(BASE + "a")
        async with client.get(f"{url}/data/changelist.xml") as answer:
            assert b"/data/a<" in await answer.read()


async def test_routes_bring_the_well_known_uri_of_the_host(
    publisher: Publisher, client: aiohttp.ClientSession
) -> None:
    app = web.Application()
    app.add_routes(routes(publisher, "/data/"))
    async with publisher, serving(app) as url:
        assert await asyncio.to_thread(publisher.wait_published, PATIENCE)
        for place in ("/", "/data/"):
            async with client.get(f"{url}{place}.well-known/resourcesync") as answer:
                assert read_document(await answer.read()).capability == "description"
