"""Shared by the tests of the publisher: a hub that stores fragments, a Source process, options."""

from __future__ import annotations

import asyncio
import select
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Hub, Options, Publisher, application
from tests.ports import port_for

BASE = "http://source.example/data/"
QUICK = Options(heartbeat=30, refresh=0.02, resource_list_every=0.05, grace=5)
#: Seconds. On a busy machine, even starting a process takes long.
PATIENCE = 120.0
#: Any free port.
PORT = ("--port", "0")


def quick_publisher(folder: Path, *hubs: str | Hub, **settings: Any) -> Publisher:
    """Return a Publisher with short intervals. `settings` are its arguments, or options."""
    fields = settings.keys() & set(Options.__struct_fields__)
    options = {name: settings.pop(name) for name in fields}
    return Publisher(folder, BASE, hubs=hubs, options=replace(QUICK, **options), **settings)


def update(name: object) -> Resource:
    return Resource(f"{BASE}{name}", change=ChangeType.UPDATED)


class Clock:
    """Returns the time of day, which a test can advance."""

    def __init__(self) -> None:
        self._ahead = 0

    def __call__(self) -> int:
        return time.time_ns() // 1000 + self._ahead

    def pass_seconds(self, seconds: float) -> None:
        self._ahead += round(seconds * 1_000_000)


class FakeHub:
    """A hub that speaks the protocol of docs/protocol.md, and stores every fragment."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.fragments: list[Document] = []
        #: The notices of documents, from the second channel.
        self.notices: list[Document] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.through: Instant | None = None
        self.refuse_with: int | None = None
        self.retry_after: str | None = None
        self.location: str | None = None
        #: The response to `publish`; by default, that publishing may begin.
        self.answer_with: str | None = None
        self.refuse_notices = False
        self.refused = 0
        self.answering = asyncio.Event()
        self.answering.set()
        self._news = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._sockets: set[web.WebSocketResponse] = set()
        self.host, self.port = host, port_for(self, host, port)

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/websub", self._websub)
        app.router.add_get("/ws", self._ws)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, reuse_address=True)
        await site.start()
        self._server = site._server

    async def stop(self) -> None:
        self.answering.set()
        for socket in list(self._sockets):
            await socket.close()
        if self._runner is not None:
            # A server that is closed between the acceptance of a connection and its transport
            # leaves the connection open (`asyncio.Server._attach`).
            loop = asyncio.get_running_loop()
            for listening in self._server.sockets:
                loop.remove_reader(listening)
            await asyncio.sleep(0)
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/"

    async def keep(self, body: bytes) -> Document:
        fragment = read_document(body)
        async with self._news:
            is_notice = fragment.capability == Capability.FRAMEWORK_NOTIFICATION
            (self.notices if is_notice else self.fragments).append(fragment)
            self._news.notify_all()
        return fragment

    async def _note(self, request: web.Request) -> None:
        async with self._news:
            self.headers.append(dict(request.headers))
            self._news.notify_all()

    async def until(self, happened: Callable[[], object]) -> None:
        async with self._news, asyncio.timeout(PATIENCE):
            await self._news.wait_for(happened)

    async def until_disconnected(self) -> None:
        await self.until(lambda: not self._sockets)

    async def has(self, *uris: str) -> None:
        await self.until(lambda: set(uris) <= set(self.uris()))

    def uris(self) -> list[str]:
        return [entry.uri for fragment in self.fragments for entry in fragment.resources]

    def _refusal(self, status: int) -> web.Response:
        headers = {} if self.retry_after is None else {"Retry-After": self.retry_after}
        if self.location is not None:
            headers["Location"] = self.location
        return web.Response(status=status, text="not now", headers=headers)

    async def _websub(self, request: web.Request) -> web.Response:
        await self._note(request)
        await self.answering.wait()
        if self.refuse_with is not None:
            return self._refusal(self.refuse_with)
        body = await request.read()
        if self.refuse_notices and Capability.FRAMEWORK_NOTIFICATION.encode() in body:
            self.refused += 1
            return web.Response(status=403, text="not on this topic")
        await self.keep(body)
        return web.Response(status=202)

    async def _ws(self, request: web.Request) -> web.StreamResponse:
        await self._note(request)
        if self.refuse_with is not None:
            return self._refusal(self.refuse_with)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            await self._receive(socket)
        finally:
            async with self._news:
                self._sockets.discard(socket)
                self._news.notify_all()
        return socket

    async def _receive(self, socket: web.WebSocketResponse) -> None:
        """Store the fragments from a Source until it closes the socket, at any time."""
        greeting = await socket.receive()
        if greeting.type is not WSMsgType.TEXT:
            return
        opening = greeting.json()
        assert opening["type"] == "publish"
        topic = opening["topic"]
        of_changes = topic.endswith("/channel.xml")
        self.connections += of_changes
        known = self.through if of_changes else None
        through = format_datetime(known) if known else None
        with suppress(ConnectionError):
            if self.answer_with is not None:
                await socket.send_str(self.answer_with)
                await socket.receive()
                return
            await socket.send_json({"type": "publishing", "topic": topic, "through": through})
            async for message in socket:
                assert message.type is WSMsgType.TEXT
                fragment = await self.keep(message.data.encode())
                until = format_datetime(fragment.until)
                if self.answering.is_set():
                    await socket.send_json({"type": "accepted", "topic": topic, "until": until})


async def push(publisher: Publisher, name: str, hub: FakeHub) -> Resource:
    """Record an update, wait until a hub has received it, and return it."""
    change = await publisher.aupdated(BASE + name)
    await hub.has(BASE + name)
    return change


class WaitingCallback:
    """A callback `resources` that waits until the test sets `go`."""

    def __init__(self, *uris: str) -> None:
        self._uris = uris
        self.go = threading.Event()

    def __call__(self) -> list[Resource]:
        self.go.wait(PATIENCE)
        return [Resource(uri) for uri in self._uris]


@asynccontextmanager
async def serving(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """Serve an application on loopback. Yield its URL, without a slash at the end."""
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving_documents(publisher: Publisher) -> AsyncIterator[str]:
    """Serve the documents of a Publisher. Yield the base URL, without a slash at the end."""
    async with serving(application(publisher)) as url:
        yield url + urlsplit(publisher.source.base_url).path.rstrip("/")


def chain_of(fragments: list[Document]) -> list[tuple[Instant, Instant]]:
    """Check that fragments join without a gap, and return their intervals."""
    intervals = []
    through = fragments[0].from_
    for fragment in fragments:
        assert fragment.from_ <= through, "a gap between two fragments"
        for entry in fragment.resources:
            assert fragment.from_ < entry.datetime <= fragment.until
        through = max(through, fragment.until)
        intervals.append((fragment.from_, fragment.until))
    return intervals


def eventually(happened: Callable[[], bool]) -> None:
    """Wait until a condition is true that no event reports."""
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


class SourceProcess:
    """`rsnotify source` as a process, started by the command `by` if given."""

    def __init__(self, folder: Path | None, *arguments: str, by: Sequence[str] = ()) -> None:
        named = () if folder is None else (str(folder),)
        command = [*by, sys.executable, "-m", "rsnotify", "source", *named, *arguments]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.ready = self.next_line()
        self.url = self.ready.split()[3] if self.ready else ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> str:
        return self.url.rstrip("/").rpartition(":")[2]

    def next_line(self) -> str:
        readable, _, _ = select.select([self._process.stdout], [], [], PATIENCE * 2)
        assert readable, "the source did not become ready"
        return self._process.stdout.readline().strip()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> tuple[int, str]:
        if self._process.poll() is None:
            self._process.terminate()
        _, errors = self._process.communicate(timeout=PATIENCE)
        return self._process.returncode, errors

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)

    def get(self, name: str) -> bytes:
        with urllib.request.urlopen(self.url + name, timeout=PATIENCE) as answer:
            return answer.read()

    def changes(self) -> list[tuple[str, str]]:
        """Return the changes in the open Change List, as (change, name relative to the base)."""
        document = read_document(self.get("changelist.xml"))
        return [
            (str(entry.change), entry.uri.removeprefix(self.url)) for entry in document.resources
        ]

    def wait_for_change(self, change: str, name: str) -> None:
        eventually(lambda: (change, name) in self.changes())


#: Starts `rsnotify source` over a folder.
Start = Callable[..., SourceProcess]


def put(path: Path, text: str) -> None:
    """Write a file atomically. Otherwise, it could be read while it is empty."""
    hidden = path.with_name("." + path.name)
    hidden.write_text(text)
    hidden.rename(path)
