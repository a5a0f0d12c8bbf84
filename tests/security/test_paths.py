"""Paths: a URI leads to one file of a copy, and a request to one file of a Source, or to none."""

from __future__ import annotations

import asyncio
import os
import unicodedata
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from msgspec import Struct
from yarl import URL

from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.uris import normalize
from rsnotify_publisher import Publisher, asgi_application, routes, wsgi_application
from rsnotify_publisher.folder.file_names import FileNames
from rsnotify_publisher.folder.folder_publishing import PublishedFolder
from rsnotify_publisher.folder.server import folder_application
from rsnotify_relay.republisher import RelayNaming
from rsnotify_subscriber import FolderMirror, Received, audit
from rsnotify_subscriber.mirror import MirrorTree
from rsnotify_subscriber.mirror.paths import MirrorLayout, PathNames
from tests.hub.raw_sockets import answer_to
from tests.publisher.helpers import serving
from tests.relay.running import Running
from tests.security.corpus import vectors
from tests.subscriber.destination import Destination, files_of
from tests.subscriber.source import SmallSource
from tests.web_servers import serving_asgi, serving_wsgi

BASE = "http://example.com/data/"


class UriVector(Struct, frozen=True, forbid_unknown_fields=True):
    """A vector of `uris.toml`, where the fields are explained."""

    why: str
    uri: str = ""
    times: int = 1
    absolute: str | None = None
    path: str | None = None
    portable: str | None = None
    planted: str | None = None
    spelling_of: str | None = None

    @property
    def whole(self) -> str:
        return self.absolute or BASE + self.uri * self.times


URIS = vectors("uris", UriVector)


@pytest.mark.parametrize("is_portable", [False, True])
def test_every_uri_has_its_path(is_portable: bool):
    layout, wrong = MirrorLayout(BASE, is_portable), {}
    for vector in URIS:
        expected = vector.path
        if is_portable and vector.portable is not None:
            expected = vector.portable or None
        names = layout.natural(vector.whole)
        found = None if names is None else "/".join(names)
        safe = not any(name in ("", ".", "..") or {"/", "\0"} & set(name) for name in names or ())
        if found != expected or not safe:
            wrong[vector.why] = found
    assert not wrong


def folded(names: PathNames) -> PathNames:
    return tuple(unicodedata.normalize("NFC", name.casefold()) for name in names)


@pytest.mark.parametrize("is_portable", [False, True])
def test_no_two_uris_share_a_path(is_portable: bool):
    layout = MirrorLayout(BASE, is_portable)
    found: dict[PathNames, str] = {}
    for uri in {vector.whole for vector in URIS}:
        for names in (layout.natural(uri), layout.fallback(uri)):
            if names is not None:
                key = folded(names) if is_portable else names
                assert found.setdefault(key, uri) == uri, (uri, found[key])


def test_the_spellings_of_one_uri_are_those_with_one_normal_form():
    found: dict[str, str] = {}
    for vector in URIS:
        first = found.setdefault(normalize(vector.whole), vector.uri)
        assert vector.spelling_of == (None if first == vector.uri else first), vector


def test_a_relay_names_each_uri_in_one_way():
    naming = RelayNaming(BASE, "https://relay.example/r/")
    ours = {naming.relay_uri(vector.whole): vector.whole for vector in URIS}
    assert len(ours) == len({vector.whole for vector in URIS})
    for uri, theirs in ours.items():
        assert uri is not None
        assert naming.source_uri(uri) == theirs
        # A client that resolves dots stays below the relay.
        assert str(URL(uri)).startswith("https://relay.example/r/")


def plant(copy: Path, outside: Path) -> None:
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    for vector in URIS:
        if vector.planted is not None:
            link = copy / vector.planted
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(outside / "secret" if vector.planted == vector.uri else outside)


def received(uri: str, content: Path | None) -> Received:
    change = ChangeType.DELETED if content is None else ChangeType.UPDATED
    return Received(change, uri, datetime.now(UTC), Resource(uri), content)


async def test_all_are_in_one_copy_and_nothing_is_outside_of_it(tmp_path: Path):
    copy, incoming, outside = (tmp_path / name for name in ("copy", "incoming", "outside"))
    incoming.mkdir()
    plant(copy, outside)
    mirror = FolderMirror(copy)
    mirror.prepare(BASE, incoming)
    uris = list(dict.fromkeys(vector.whole for vector in URIS))
    changes = []
    for number, uri in enumerate(uris):
        (incoming / str(number)).write_text(uri)
        changes.append(received(uri, incoming / str(number)))
    await asyncio.to_thread(mirror.apply, changes)
    tree = MirrorTree(copy, BASE)
    for uri in uris:
        path = Path(tree.find(uri))
        assert path.read_text() == uri
        assert path.resolve().is_relative_to(copy.resolve())
    assert sorted(os.listdir(tmp_path)) == ["copy", "incoming", "outside"]
    assert files_of(outside) == {"secret": b"secret"}
    assert len(files_of(copy)) == len(uris)

    await asyncio.to_thread(mirror.apply, [received(uri, None) for uri in uris])
    assert files_of(copy) == {}
    assert files_of(outside) == {"secret": b"secret"}


class AnySource(SmallSource):
    """A Source whose resources are at any targets, which are compared as they are sent."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.raw_path.removeprefix("/data/")
        if name in self.contents:
            return web.Response(body=self.contents[name])
        return await super().answer(request)


@pytest.fixture
async def source() -> AsyncIterator[AnySource]:
    source = AnySource()
    await source.server.start()
    yield source
    await source.server.stop()


@pytest.fixture
def listed(source: AnySource) -> AnySource:
    put_all(source)
    return source


def put_all(source: AnySource) -> None:
    for vector in URIS:
        # A client sends other characters than these in another spelling.
        plain = vector.uri.isascii() and "\\" not in vector.uri
        if vector.absolute is None and vector.spelling_of is None and plain:
            source.put(vector.uri * vector.times, vector.whole.encode())


async def test_a_copy_of_all_of_them_is_right(
    source: AnySource, destination: Destination, tmp_path: Path
):
    await destination.catch_up()
    plant(destination.folder, tmp_path / "outside")
    put_all(source)
    await destination.catch_up()
    tree = MirrorTree(destination.folder, source.base)
    held = {name: Path(tree.find(source.base + name)).read_bytes() for name in source.contents}
    assert held == source.contents
    assert len(destination.files()) == len(held)
    assert files_of(tmp_path / "outside") == {"secret": b"secret"}
    found = await audit(source.url, destination.folder)
    assert (found.equal, found.created, found.updated) == (len(held), (), ())
    assert found.deleted == found.foreign == ("link", "sub/link"), "the links are no part of it"


async def test_a_relay_of_all_of_them_serves_each(listed: AnySource, tmp_path: Path):
    relay = Running(listed.url, tmp_path / "copy")
    await relay.start()
    try:
        await relay.until_level()
        naming = RelayNaming(listed.base, relay.url)
        async with ClientSession() as session:
            for name, content in listed.contents.items():
                ours = naming.relay_uri(listed.base + name)
                assert ours is not None
                async with session.get(URL(ours, encoded=True)) as answer:
                    assert (answer.status, await answer.read()) == (200, content), name
    finally:
        await relay.stop()


# -- requests to a Source -------------------------------------------------------------------------


class TargetVector(Struct, frozen=True, forbid_unknown_fields=True):
    """A vector of `targets.toml`, where the fields are explained."""

    target: str
    why: str
    file: str | None = None
    optional: bool = False


TARGETS = vectors("targets", TargetVector)
FILES = ("a.txt", "a b.txt", "é.txt", "100%.txt", "sub/b.txt", ".hidden", ".git/config")


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    folder = tmp_path / "folder"
    for name in (*FILES, "sub/.hidden", "../secret"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"the content of {name}")
    (folder / "inside").symlink_to("a.txt")
    (folder / "out.txt").symlink_to("../secret")
    (folder / "hidden.txt").symlink_to(".hidden")
    (folder / "folder").symlink_to("..")
    (folder / "inner").symlink_to("sub")
    base = "http://127.0.0.1/data/"
    with Publisher(tmp_path / "state", base) as publisher:
        published = PublishedFolder(FileNames(folder, base), publisher)
        published.ready.set()
        documents = web.Application()
        documents.add_routes(routes(publisher))
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            yield {
                "folder": await enter(serving(folder_application(publisher, [published]))),
                "documents": await enter(serving(documents)),
                "asgi": await enter(serving_asgi(asgi_application(publisher), lifespan="off")),
                "wsgi": await enter(serving_wsgi(wsgi_application(publisher))),
            }


async def status_and_body(site: str, target: str) -> tuple[int, bytes]:
    """Send a target as it is, which no client library would."""
    request = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    head, _, body = (await answer_to(site, request.encode())).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_a_request_leads_to_a_published_file_or_to_none(sites: dict[str, str]):
    for kind, site in sites.items():
        for vector in TARGETS:
            status, body = await status_and_body(site, vector.target)
            expected = f"the content of {vector.file}".encode()
            if kind == "folder" and vector.file is not None and status == 200:
                assert body == expected, vector
            elif kind == "folder" and vector.file is not None:
                assert vector.optional, (vector, status)
                assert status in (400, 404), vector
            else:
                assert status in (400, 404, 405), (kind, vector, body)
                assert b"content of" not in body
