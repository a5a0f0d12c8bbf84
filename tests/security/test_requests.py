"""Requests: what two servers could read differently is refused, and what never ends is ended."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web
from msgspec import Struct

from rsnotify.runtime import serving as runtime_serving
from rsnotify.runtime.serving import serving
from rsnotify_publisher import Publisher
from rsnotify_publisher.folder.file_names import FileNames
from rsnotify_publisher.folder.folder_publishing import PublishedFolder
from rsnotify_publisher.folder.server import folder_application
from rsnotify_subscriber import Callbacks, listening
from rsnotify_subscriber.push.websub_callbacks import DeliveryInbox, HubSilence
from tests.hub.helpers import PATIENCE, RunHub
from tests.hub.raw_sockets import answer_to
from tests.security.corpus import vectors


class RequestVector(Struct, frozen=True, forbid_unknown_fields=True):
    """A vector of `requests.toml`, where the fields are explained."""

    why: str
    fields: str = ""
    body: str = ""
    head: str | None = None
    long: int = 0
    answers: int = 1


VECTORS = vectors("requests", RequestVector)
POST = (
    "POST {post} HTTP/1.1\r\nHost: localhost\r\n"
    "Content-Type: application/x-www-form-urlencoded\r\n%s\r\n%s"
)
GET = "GET {get} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Site(Struct):
    """A server, and two targets that it answers."""

    url: str
    post: str
    get: str

    async def answers(self, request: str) -> bytes:
        """Send a request and the GET after it, and return all that comes."""
        text = (request + GET).replace("{post}", self.post).replace("{get}", self.get)
        return await answer_to(self.url, text.encode())


@pytest.fixture
async def sites(tmp_path: Path, run_hub: RunHub) -> AsyncIterator[dict[str, Site]]:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("content")
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    of_source, of_callbacks = (listener.getsockname()[1] for listener in listeners)
    base = f"http://127.0.0.1:{of_source}/data/"
    callbacks_url = f"http://127.0.0.1:{of_callbacks}/cb/"
    callbacks = Callbacks(callbacks_url)
    callback = callbacks.open("http://topic.example/", DeliveryInbox(HubSilence(0, 1)))
    path = "/cb/" + callback.subscription.callback.rpartition("/")[2]
    async with AsyncExitStack() as stack:
        publisher = stack.enter_context(Publisher(tmp_path / "state", base))
        folder = PublishedFolder(FileNames(tmp_path / "folder", base), publisher)
        folder.ready.set()
        app = folder_application(publisher, [folder])
        await stack.enter_async_context(serving(app, listeners[0], shutdown_timeout=1))
        await stack.enter_async_context(listening(callbacks, listeners[1]))
        hub = await stack.enter_async_context(run_hub())
        yield {
            "hub": Site(hub.url, "/websub", "/healthz"),
            "source": Site(base, "/data/a.txt", "/data/a.txt"),
            "callbacks": Site(callbacks_url, path, path),
        }


async def test_what_is_ambiguous_is_refused_and_nothing_after_it_is_answered(
    sites: dict[str, Site],
):
    wrong = {}
    for name, site in sites.items():
        for vector in VECTORS:
            request = vector.head or POST % (vector.fields, vector.body)
            found = await site.answers(request.replace("{long}", "x" * vector.long))
            statuses = re.findall(rb"HTTP/1\.[01] (\d{3}) ", found)
            if len(statuses) != vector.answers or (vector.answers == 1 and statuses != [b"400"]):
                wrong[name, vector.why] = statuses
    assert not wrong


#: The beginnings of requests that never end.
SLOW = {
    "nothing": b"",
    "a word": b"GET",
    "half a head": b"GET {get} HTTP/1.1\r\nHost: localhost\r\n",
    "empty lines": b"\r\n\r\n",
}


@pytest.mark.parametrize("name", ["source", "callbacks"])
async def test_a_client_that_is_slow_from_the_beginning_is_disconnected(
    name: str, sites: dict[str, Site], monkeypatch: pytest.MonkeyPatch
):
    """The hub's own timeouts are in `tests/hub/test_connection_guard.py`."""
    monkeypatch.setattr(runtime_serving, "_FIRST_REQUEST_TIMEOUT", 0.1)
    for sent in SLOW.values():
        assert (
            await answer_to(sites[name].url, sent.replace(b"{get}", sites[name].get.encode()))
            == b""
        )


async def test_a_client_that_stops_reading_a_download_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(runtime_serving, "_STALL_TIMEOUT", 0.1)

    ended = asyncio.Event()

    async def download(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:  # until the connection is closed
                await response.write(bytes(100_000))
        finally:
            ended.set()

    app = web.Application()
    app.router.add_get("/", download)
    listener = socket.create_server(("127.0.0.1", 0))
    async with serving(app, listener, shutdown_timeout=1):
        reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=4096)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readexactly(1)
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
        writer.close()


async def test_beyond_the_most_connections_a_new_one_is_closed():
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="answered")

    app = web.Application()
    app.router.add_get("/", answer)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    async def answered() -> bytes:
        get = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        return await answer_to(f"http://127.0.0.1:{port}", get)

    async with serving(app, listener, shutdown_timeout=1, most=2):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert await answered() == b""
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(PATIENCE):
            while not await answered():  # noqa: ASYNC110 - once the ends are noticed
                await asyncio.sleep(0)
