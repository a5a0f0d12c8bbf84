"""The documents over HTTP: current, with conditional requests, at the right paths."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from random import Random
from zipfile import ZipFile

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.format.links import parse_links
from rsnotify.format.model import Document, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import (
    Publisher,
    SourceDescription,
    application,
    asgi_application,
    html_link,
    link_header,
    robots_lines,
    wsgi_application,
)
from tests.cases import case
from tests.publisher.helpers import (
    BASE,
    PATIENCE,
    QUICK,
    Start,
    WaitingCallback,
    eventually,
    quick_publisher,
    serving,
    serving_documents,
    update,
)
from tests.publisher.published import uris
from tests.web_servers import KINDS, serving_asgi, serving_wsgi

NAMES = [
    "capabilitylist.xml",
    "resourcelist.xml",
    "changelist.xml",
    "changelist-archive.xml",
    "channel.xml",
    ".well-known/resourcesync",
]

# The folder is written once, so later changes can only come from the journal.
SLOW = replace(QUICK, refresh=900, resource_list_every=900, grace=0)


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path, BASE, options=SLOW, hubs=["http://hub.invalid/"])


def served(publisher: Publisher, kind: str) -> AbstractAsyncContextManager[str]:
    if kind == "asgi":
        return serving_asgi(asgi_application(publisher))
    if kind == "wsgi":
        return serving_wsgi(wsgi_application(publisher))
    return serving(application(publisher))


@pytest.fixture(params=KINDS)
async def site(
    publisher: Publisher, client: aiohttp.ClientSession, request: pytest.FixtureRequest
) -> AsyncIterator[str]:
    async with served(publisher, request.param) as url:
        # Over WSGI the first request starts the Publisher.
        await (await client.get(f"{url}/data/capabilitylist.xml")).read()
        assert await publisher.await_published(PATIENCE)
        yield f"{url}/data/"


async def test_every_document_supports_get_head_and_conditional_requests(
    site: str, client: aiohttp.ClientSession
):
    for name in NAMES:
        with case(name):
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


async def test_the_open_list_shows_every_durable_change(
    publisher: Publisher, site: str, client: aiohttp.ClientSession
):
    for number in range(5):
        tags = {}
        for name in ("changelist.xml", "channel.xml"):
            async with client.get(site + name) as answer:
                tags[name] = answer.headers["ETag"]
        await publisher.aupdated(BASE + str(number))
        for name, tag in tags.items():
            async with client.get(site + name, headers={"If-None-Match": tag}) as answer:
                document = read_document(await answer.read())
                assert answer.headers["ETag"] != tag
            assert uris(document)[-1] == BASE + str(number)
            assert len(document.resources) == number + 1


async def test_the_channel_links_to_itself_and_its_hubs(site: str, client: aiohttp.ClientSession):
    async with client.get(site + "channel.xml") as answer:
        known = {"If-None-Match": answer.headers["ETag"]}
        dated = {"If-Modified-Since": answer.headers["Last-Modified"]}
    for method, headers in (("GET", {}), ("HEAD", {}), ("GET", known), ("GET", dated)):
        async with client.request(method, site + "channel.xml", headers=headers) as answer:
            assert (answer.status == 304) == (headers == known) or headers == dated
            assert parse_links(answer.headers.getall("Link")) == [
                ("self", BASE + "channel.xml"),
                ("hub", "http://hub.invalid/websub"),
                ("hub", "ws://hub.invalid/ws"),
            ]


async def test_an_unwritten_document_results_in_503(tmp_path: Path, client: aiohttp.ClientSession):
    resources = WaitingCallback(BASE + "a")
    publisher = Publisher(tmp_path, BASE, options=SLOW, resources=resources)
    async with serving_documents(publisher) as url:
        async with client.get(f"{url}/resourcelist.xml") as answer:
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) > 0
            assert "has not been written yet" in await answer.text()
        resources.go.set()
        assert await publisher.await_published(PATIENCE)
        async with client.get(f"{url}/resourcelist.xml") as answer:
            assert answer.status == 200


async def test_the_documents_are_added_to_an_application(
    publisher: Publisher, client: aiohttp.ClientSession
):
    app = web.Application()

    async def home(_: web.Request) -> web.Response:
        return web.Response(text="home")

    app.router.add_get("/", home)

    async def recording(_: web.Application) -> None:
        assert publisher.is_running
        await publisher.aupdated(BASE + "a")

    app.on_startup.append(recording)
    assert application(publisher, app) is app
    async with serving(app) as url:
        assert await publisher.await_published(PATIENCE)
        async with client.get(f"{url}/data/changelist.xml") as answer:
            assert b"/data/a<" in await answer.read()
        for parent in ("/", "/data/"):
            async with client.get(f"{url}{parent}.well-known/resourcesync") as answer:
                assert read_document(await answer.read()).capability == "description"
        for path, status in (("/", 200), ("/robots.txt", 404)):
            async with client.get(url + path) as answer:
                assert answer.status == status
    assert not publisher.is_running


async def test_closed_documents_are_cached_and_live_ones_revalidated(
    tmp_path: Path, client: aiohttp.ClientSession
):
    publisher = quick_publisher(tmp_path, rotate="4 changes", max_entries=9)
    publisher.load(Resource(f"{BASE}base{number}") for number in range(20))
    with publisher:
        for number in range(20):
            publisher.updated(BASE + str(number))
    async with serving_documents(publisher) as url:

        async def get(uri: str, caching: str) -> Document:
            async with client.get(uri.replace(BASE, url + "/")) as answer:
                assert caching in answer.headers["Cache-Control"]
                return read_document(await answer.read())

        assert await publisher.await_published(PATIENCE)
        live = {name: await get(BASE + name, "no-cache") for name in NAMES}
        archive, opened = live["changelist-archive.xml"], live["changelist.xml"]
        closed = [await get(entry.uri, "immutable") for entry in archive.resources]
        for entry in live["resourcelist.xml"].resources:
            await get(entry.uri, "immutable")
    assert opened.from_ == archive.resources[-1].until == closed[-1].until
    names = [entry.uri for document in [*closed, opened] for entry in document.resources]
    assert names == [BASE + str(number) for number in range(20)]


async def test_an_interrupted_download_of_a_package_is_resumed(
    tmp_path: Path, client: aiohttp.ClientSession
):
    contents = {f"{BASE}{number}": Random(number).randbytes(100_000) for number in range(5)}
    publisher = quick_publisher(tmp_path, content=contents.get, resource_dump_every=900)
    publisher.load(Resource(uri, length=len(body)) for uri, body in contents.items())
    async with serving_documents(publisher) as url:
        assert await publisher.await_published(PATIENCE)
        dump = publisher.source.documents_folder / "resourcedump.xml"
        await asyncio.to_thread(eventually, dump.exists)
        async with client.get(f"{url}/resourcedump.xml") as answer:
            (package,) = read_document(await answer.read()).resources
        there = package.uri.replace(BASE, url + "/")
        async with client.get(there) as answer:
            assert answer.content_type == "application/zip"
            assert "Content-Encoding" not in answer.headers
            tag = answer.headers["ETag"]
            whole = await answer.read()
        requested = {"Range": "bytes=300000-", "If-Range": tag}
        async with client.get(there, headers=requested) as answer:
            assert answer.status == 206
            rest = await answer.read()
    with ZipFile(BytesIO(whole[:300_000] + rest)) as found:
        assert found.testzip() is None


async def test_a_long_list_is_compressed_for_clients_that_accept_it(
    publisher: Publisher, site: str, client: aiohttp.ClientSession
):
    await publisher.arecord(map(update, range(500)))
    for name in ("changelist.xml", "channel.xml"):
        async with client.get(site + name) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert len(read_document(await answer.read()).resources) == 500
            tag = answer.headers["ETag"]
        plain = {"Accept-Encoding": "identity"}
        async with client.get(site + name, headers=plain) as answer:
            assert "Content-Encoding" not in answer.headers
            assert len(read_document(await answer.read()).resources) == 500
            assert answer.headers["ETag"] != tag
        async with client.get(site + name, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304


async def test_an_unreadable_journal_results_in_503(
    publisher: Publisher, site: str, client: aiohttp.ClientSession
):
    publisher.close()
    (publisher.source.folder / "journal.sqlite3").write_bytes(b"no database" * 1000)
    for name in ("changelist.xml", "resourcesync/changes"):
        async with client.get(site + name) as answer:
            assert answer.status == 503
            assert "sqlite" not in await answer.text()


# How a Source is discovered: the well-known URI, links of resources, robots.txt (core §6.3).


async def links_of(url: str, method: str = "GET", **headers: str) -> list[tuple[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, headers=headers) as answer,
    ):
        assert answer.status == (304 if headers else 200)
        return parse_links(answer.headers.getall("Link", []))


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        assert answer.headers.get_content_type() == "text/plain"
        return answer.read().decode()


def sitemaps(robots: str) -> list[str]:
    lines = (line.partition(":") for line in robots.splitlines())
    return [value.strip() for name, _, value in lines if name == "Sitemap"]


async def test_every_resource_of_a_folder_links_to_its_capability_list(folder: Path, source: Start):
    (folder / "page.html").write_text("<html></html>")
    os.utime(folder / "page.html", (10**9, 10**9))
    process = await asyncio.to_thread(source, folder, "--port", "0")
    links = [("resourcesync", process.url + "capabilitylist.xml")]
    async with aiohttp.ClientSession() as session, session.get(process.url + "page.html") as answer:
        date = answer.headers["Last-Modified"]
    assert await links_of(process.url + "page.html") == links
    assert await links_of(process.url + "page.html", "HEAD") == links
    assert await links_of(process.url + "page.html", **{"If-Modified-Since": date}) == links
    # A document is not a resource of the set that the Capability List describes.
    assert await links_of(process.url + "resourcelist.xml") == []
    assert sitemaps(text_of(process.url + "robots.txt")) == [process.url + "resourcelist.xml"]


def test_a_robots_txt_in_the_folder_is_a_resource(folder: Path, source: Start):
    (folder / "robots.txt").write_text("User-agent: *\nDisallow:\n")
    process = source(folder, "--port", "0")
    assert text_of(process.url + "robots.txt") == "User-agent: *\nDisallow:\n"
    (entry,) = read_document(process.get("resourcelist.xml")).resources
    assert entry.uri == process.url + "robots.txt"


def test_robots_txt_is_at_the_root_of_the_host(folder: Path, source: Start, unused_tcp_port: int):
    (folder / "robots.txt").write_text("no robots.txt, as it is not at the host")
    host = f"http://127.0.0.1:{unused_tcp_port}"
    source(folder, "--port", str(unused_tcp_port), "--base-url", f"{host}/data/")
    assert sitemaps(text_of(f"{host}/robots.txt")) == [f"{host}/data/resourcelist.xml"]


def test_the_header_and_the_element_link_to_the_capability_list(tmp_path: Path):
    publisher = Publisher(tmp_path, "https://source.example/a&b/")
    there = "https://source.example/a&b/capabilitylist.xml"
    assert parse_links([link_header(publisher)]) == [("resourcesync", there)]
    found: list[dict[str, str | None]] = []

    class Finder(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag == "link"
            found.append(dict(attrs))

    Finder().feed(html_link(publisher))
    assert found == [{"rel": "resourcesync", "href": there}]


def test_robots_lines_list_every_set(tmp_path: Path):
    sets = [Publisher(tmp_path / name, f"https://x.example/{name}/") for name in "ab"]
    urls = ["https://x.example/a/resourcelist.xml", "https://x.example/b/resourcelist.xml"]
    assert sitemaps(robots_lines(sets[0])) == urls[:1]
    assert sitemaps(robots_lines(SourceDescription("https://x.example/", sets))) == urls


@pytest.mark.parametrize(("base", "served"), [("https://x.example/", True), (BASE, False)])
async def test_the_application_serves_robots_txt_only_at_the_root_of_its_host(
    tmp_path: Path, base: str, served: bool
):
    sets = [Publisher(tmp_path / name, f"{base}{name}/") for name in "ab"]
    app = application(SourceDescription(base, sets))
    async with (
        serving(app) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/robots.txt") as answer,
    ):
        assert answer.status == (200 if served else 404)
        assert len(sitemaps(await answer.text())) == (2 if served else 0)
