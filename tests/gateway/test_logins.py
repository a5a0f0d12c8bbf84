"""Users and passwords in URLs, of the settings and of what an origin names, for every adapter."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify_gateway import Gateway, OriginSettings
from rsnotify_publisher.outbox import Outbox
from rsnotify_subscriber.fetching.credentials import basic
from tests.gateway.checking import BASE, CONTACT, Checking, origin
from tests.gateway.event_server import EVENT, EventServer, change
from tests.gateway.generators import BEGIN, Activities, EventStream, PullOnlySource, at
from tests.gateway.origin_server import Site, atom, index, sitemap
from tests.gateway.repositories import Items, RepositoryServer, pyoai
from tests.gateway.running import RunningGateway
from tests.ports import free_port
from tests.reader import ROOT

#: What must not leave the process: logins of the settings, and those that origins publish.
SECRETS = ("secret", "hidden")
FOREIGN = "https://other:hidden@other.example/b"
NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)

Case = Callable[[], AbstractAsyncContextManager[OriginSettings]]


def with_login(url: str, login: str = "user:secret") -> str:
    return url.replace("://", f"://{login}@")


@asynccontextmanager
async def a_sitemap() -> AsyncIterator[OriginSettings]:
    async with Site() as site:
        part = with_login(site.url("/part.xml"), "other:hidden")
        site.pages["/sitemap.xml"] = index([part])
        site.pages["/part.xml"] = sitemap({"a": None, FOREIGN: "2026-11-02T10:00:00Z"})
        yield origin("sitemap", with_login(site.url("/sitemap.xml")))


@asynccontextmanager
async def a_site_with_robots() -> AsyncIterator[OriginSettings]:
    async with Site() as site:
        named = with_login(site.url("/named.xml"), "other:hidden")
        site.pages["/robots.txt"] = f"Sitemap: {named}".encode()
        site.pages["/named.xml"] = sitemap({FOREIGN: None})
        yield origin("sitemap", with_login(site.url("/")))


@asynccontextmanager
async def a_repository() -> AsyncIterator[OriginSettings]:
    async with RepositoryServer(Items(), pyoai) as server:
        server.items.put("b")
        yield origin("oai-pmh", with_login(server.url))


@asynccontextmanager
async def a_repository_with_a_template() -> AsyncIterator[OriginSettings]:
    async with RepositoryServer(Items("no"), pyoai) as server:
        server.items.put("b")
        template = "https://other:hidden@other.example/{identifier}"
        yield origin("oai-pmh", with_login(server.url), uri=template)


@asynccontextmanager
async def a_feed() -> AsyncIterator[OriginSettings]:
    async with Site() as site:
        older = with_login(site.url("/older"), "other:hidden")
        feed = atom([("b", "B")], older).replace(b"https://site.example/", b"")
        site.pages["/feed"] = feed
        other = atom([("c", "C")]).replace(b"https://site.example/c", FOREIGN.encode())
        site.pages["/older"] = other
        yield origin("feed", with_login(site.url("/feed")))


@asynccontextmanager
async def a_source() -> AsyncIterator[OriginSettings]:
    async with Site() as site:
        source = PullOnlySource(site)
        changed = Resource(FOREIGN, at(1), change=ChangeType.UPDATED, datetime=at(1))
        changes = Document(Capability.CHANGE_LIST, (changed,), from_=BEGIN)
        source.set("changelist.xml", changes)
        listed = (Resource(FOREIGN, at(0)), Resource(FOREIGN.replace("/b", "/c"), at(0)))
        source.set("resourcelist.xml", Document(Capability.RESOURCE_LIST, listed, at=BEGIN))
        yield origin("resourcesync", with_login(source.url()))


@asynccontextmanager
async def a_collection() -> AsyncIterator[OriginSettings]:
    async with Site() as site:
        stream = Activities(site)
        for number, uri in enumerate(["b", FOREIGN] * 4):
            stream.add("Update", None, at(number), object={"id": uri}, id=FOREIGN)
        yield origin("iiif", with_login(stream.url()))


@asynccontextmanager
async def a_stream_of_members() -> AsyncIterator[OriginSettings]:
    async with Site() as site:
        stream = EventStream(site)
        for number in range(7):
            name = "b" if number % 2 else FOREIGN
            stream.members.append(
                f"<{name}#v{number}> a as:Update ; dct:isVersionOf <{name}> ; "
                f'dct:created "{at(number).isoformat()}"^^xsd:dateTime .'
            )
        stream.write()
        yield origin("ldes", with_login(stream.url()))


@asynccontextmanager
async def a_stream_of_events() -> AsyncIterator[OriginSettings]:
    async with EventServer() as server:
        await server.send(change("/b", NOON), change(FOREIGN, NOON))
        yield origin("events", with_login(server.url), event=EVENT)


@asynccontextmanager
async def a_database(url: str) -> AsyncIterator[OriginSettings]:
    entries = [{"uri": FOREIGN, "change": "created"}, {"uri": FOREIGN + " ", "change": "created"}]
    with psycopg.connect(url) as connection:
        connection.execute(Outbox().ddl.encode())
        for entry in entries:
            values = (json.dumps(entry),)
            connection.execute("INSERT INTO rsnotify_outbox (entry) VALUES (%s)", values)
    yield origin("postgresql", url.replace("//owner@", "//owner:secret@"))


CASES = (
    a_sitemap,
    a_site_with_robots,
    a_repository,
    a_repository_with_a_template,
    a_feed,
    a_source,
    a_collection,
    a_stream_of_members,
    a_stream_of_events,
    a_database,
)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    if request.param is a_database:
        return partial(a_database, request.getfixturevalue("postgresql"))
    made: Case = request.param
    return made


def assert_nothing_leaks(folder: Path, log: str) -> None:
    texts = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert any(b"<loc>" in text for text in texts.values())
    for secret in SECRETS:
        assert secret not in log
        assert [file.name for file, text in texts.items() if secret.encode() in text] == []


async def test_no_login_is_published_stored_or_logged(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG", "rsnotify")
    async with case() as settings, RunningGateway(tmp_path, [settings]) as running:
        await running.until_ready()
        (watch,) = running.gateway.watches
        listed = await running.document("one/resourcelist.xml")
        assert any(one.uri.endswith("b") for one in listed.resources)
        answers = [await running.get(f"one/{name}") for name in ("origin.json", "changelist.xml")]
        assert watch.problem is None
    assert_nothing_leaks(tmp_path, caplog.text)
    for _, body in answers:
        assert not any(secret.encode() in body for secret in SECRETS)


async def test_the_error_of_an_origin_that_is_away_has_no_login(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with case() as settings:
        pass
    nowhere = re.sub(r":\d+/", f":{free_port()}/", settings.url)
    async with Checking(tmp_path, replace(settings, url=nowhere, poll_most=3600)) as checking:
        with pytest.raises((RsnotifyError, OSError)) as caught:
            await checking.check()
    assert not any(secret in str(caught.value) + caplog.text for secret in SECRETS)
    if settings.type == "postgresql":
        assert "127.0.0.1" not in str(caught.value) + caplog.text
        assert "rsnotify_outbox: connection refused; check the port" in caplog.text


def test_every_reference_of_an_origin_is_resolved_in_one_place():
    modules = (ROOT / "extensions/gateway/rsnotify_gateway").rglob("*.py")
    resolving = [
        path.name for path in modules if re.search(r"\b(resolve|urljoin)\(", path.read_text())
    ]
    assert resolving == ["adapter.py"]


async def test_only_the_login_of_the_settings_is_sent(tmp_path: Path):
    async with Site() as site:
        part = with_login(site.url("/part.xml"), "other:hidden")
        site.pages["/sitemap.xml"] = index([part])
        site.pages["/part.xml"] = sitemap({FOREIGN: None})
        settings = origin("sitemap", with_login(site.url("/sitemap.xml")))
        async with Checking(tmp_path, settings) as checking:
            assert list(await checking.check()) == ["https://other.example/b"]
        sent = {site.seen[path].headers["Authorization"] for path in site.pages}
        assert sent == {basic("user:secret")}


@pytest.mark.parametrize(
    "login", ["user:se/cret", "user:sec@ret", "us er:secret", "user:%zzsecret", "user:secret@[::1"]
)
def test_a_database_url_whose_password_is_not_escaped_is_refused_without_it(
    login: str, tmp_path: Path
):
    origins = [origin("postgresql", f"postgresql://{login}@host/db")]
    with pytest.raises(ConfigurationError, match="percent-encode") as caught:
        Gateway(tmp_path, BASE, origins, contact=CONTACT)
    assert "cret" not in str(caught.value)
