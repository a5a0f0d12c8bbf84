"""The other ends of a hub: a Source, a Destination's callback, a clock, and a log to wait on."""

from __future__ import annotations

import asyncio
import logging
import socket as sockets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

import aiohttp
from aiohttp import web

from rsnotify.format.datetimes import format_datetime
from rsnotify.format.model import ChangeType, Document, Link, Resource
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from tests.waiting import PATIENCE

TOPIC = "https://source.example/data/channel.xml"
ADMIN = "the-token-of-the-admin"
START = datetime(2026, 1, 1, tzinfo=UTC)

#: The rows of a list of the admin API.
Rows = list[dict[str, Any]]


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def changes(*seconds: float) -> tuple[Resource, ...]:
    return tuple(
        Resource(
            uri=f"https://source.example/data/{second}",
            change=ChangeType.UPDATED,
            datetime=at(second),
        )
        for second in seconds
    )


def fragment(
    from_: float,
    *seconds: float,
    until: float | None = None,
    capability: str = "change-notification",
    padding: int = 0,
) -> bytes:
    """A fragment with one change at each second; a heartbeat when there are none."""
    return (
        write_document(
            Document(
                capability=capability,
                from_=at(from_),
                until=at(until if until is not None else seconds[-1]),
                links=(Link(rel="up", href="https://source.example/data/capabilitylist.xml"),),
                resources=changes(*seconds),
            )
        )
        + b"\n" * padding
    )


def chain(*span: int, padding: int = 0) -> list[bytes]:
    """Fragments that follow on each other, of one change each second of `range(*span)`."""
    return [fragment(second, second + 1, padding=padding) for second in range(*span)]


def seconds_of(body: bytes | str) -> list[float]:
    document = read_document(body.encode() if isinstance(body, str) else body)
    return [(entry.changed_at - START).total_seconds() for entry in document.resources]


def metrics_in(text: str) -> dict[str, float]:
    """Return the values of the series of a hub, by names without their common prefix."""
    lines = (line.removeprefix("rsnotify_hub_").rpartition(" ") for line in text.splitlines())
    return {name: float(value) for name, _, value in lines if not name.startswith("#")}


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 6, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **interval: float) -> None:
        self.now += timedelta(**interval)


class Time:
    """A clock that counts seconds."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class LogWatch(logging.Handler):
    """Waits for a line of the hub's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._changed = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._changed.set()

    async def line(self, *parts: str) -> str:
        async with asyncio.timeout(PATIENCE):
            while True:
                for line in self.lines:
                    if all(part in line for part in parts):
                        return line
                self._changed.clear()
                await self._changed.wait()


class Callback:
    """A Destination's callback, or a channel: a real server that records its requests."""

    def __init__(self) -> None:
        self.url = ""
        self.confirms = True
        self.echo = "{}"  # the format of its answer to a challenge
        self.answers: list[int] = []  # the statuses of its next answers; then 204
        self.words: str | None = None  # the body of its answer to a delivery
        self.document = b""  # the answer to a GET without hub.mode
        self.headers: dict[str, str] = {}
        self.intents: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.deliveries: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()
        self.open = asyncio.Event()  # cleared to make deliveries wait
        self.open.set()
        self.confirming = asyncio.Event()  # cleared to make verifications wait
        self.confirming.set()
        self.requests = 0

    async def get(self, request: web.Request) -> web.Response:
        self.requests += 1
        if "hub.mode" not in request.query:
            return web.Response(body=self.document, headers=self.headers)
        self.intents.put_nowait({"path": request.path_qs, **request.query})
        await self.confirming.wait()
        if not self.confirms:
            return web.Response(status=404)
        return web.Response(text=self.echo.format(request.query.get("hub.challenge", "")))

    async def post(self, request: web.Request) -> web.Response:
        self.requests += 1
        self.deliveries.put_nowait((dict(request.headers), await request.read()))
        await self.open.wait()
        status = self.answers.pop(0) if self.answers else 204
        return web.Response(status=status, headers=self.headers, text=self.words)

    async def intent(self) -> dict[str, str]:
        async with asyncio.timeout(PATIENCE):
            return await self.intents.get()

    async def delivery(self) -> tuple[dict[str, str], bytes]:
        async with asyncio.timeout(PATIENCE):
            return await self.deliveries.get()


@asynccontextmanager
async def serving(**handlers: Callable[[web.Request], Awaitable[Any]]) -> AsyncIterator[str]:
    """Serve every path, each method by its handler; the URL is without a path."""
    app = web.Application()
    for method, handler in handlers.items():
        app.router.add_route(method, "/{tail:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{site.port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def callback_server() -> AsyncIterator[Callback]:
    callback = Callback()
    async with serving(get=callback.get, post=callback.post) as url:
        callback.url = f"{url}/callback"
        try:
            yield callback
        finally:
            callback.open.set()
            callback.confirming.set()


class Client:
    """A client of a running hub; an async context manager that closes its WebSockets."""

    def __init__(
        self, url: str, session: aiohttp.ClientSession, *, needs_token: bool = False
    ) -> None:
        self.url = url
        self.session = session
        self.needs_token = needs_token  # to administer it
        self.sockets: list[aiohttp.ClientWebSocketResponse] = []

    async def publish(
        self, body: bytes | BinaryIO, *, topic: str = TOPIC, **headers: str
    ) -> tuple[int, str]:
        all_headers = {
            "Content-Type": "application/xml",
            "Link": f'<{topic}>; rel="self", <{self.url}websub>; rel="hub"',
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        async with self.session.post(
            self.url + "websub", data=body, headers=all_headers
        ) as response:
            return response.status, await response.text()

    async def accepted(self, *bodies: bytes, topic: str = TOPIC) -> None:
        for body in bodies:
            assert await self.publish(body, topic=topic) == (202, "")

    async def form(
        self, *, headers: dict[str, str] | None = None, **fields: Any
    ) -> tuple[int, str]:
        data = {"hub." + name: str(value) for name, value in fields.items()}
        url = self.url + "websub"
        async with self.session.post(url, data=data, headers=headers) as response:
            return response.status, await response.text()

    async def subscribe(self, callback: Callback, *, topic: str = TOPIC, **fields: Any) -> None:
        """Subscribe, and wait until the subscription is active."""
        status, reason = await self.form(
            mode="subscribe", topic=topic, callback=callback.url, **fields
        )
        assert (status, reason) == (202, "")
        await callback.intent()
        await self.subscriptions(bool, topic=topic)

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.text()

    async def metrics(self) -> dict[str, float]:
        async with self.session.get(self.url + "metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return metrics_in(await response.text())

    async def subscriptions(
        self, condition: Callable[[Rows], bool] = lambda rows: True, **query: str
    ) -> Rows:
        """Poll the WebSub subscriptions until they fulfil a condition."""
        return await self._rows("subscriptions", condition, query)

    async def topics(
        self, condition: Callable[[Rows], bool] = lambda rows: True, **query: str
    ) -> Rows:
        """Poll the topics until they fulfil a condition."""
        return await self._rows("topics", condition, query)

    async def connections(
        self, condition: Callable[[Rows], bool] = lambda rows: True, **query: str
    ) -> Rows:
        """Poll the open WebSockets and event streams until they fulfil a condition."""
        return await self._rows("connections", condition, query)

    async def _rows(
        self, name: str, condition: Callable[[Rows], bool], query: dict[str, str]
    ) -> Rows:
        page = await self.admin_until(name, lambda page: condition(page[name]), **query)
        return list(page[name])

    async def subscription(
        self, condition: Callable[[dict[str, Any]], bool] = bool, **query: str
    ) -> dict[str, Any]:
        """Poll until the only WebSub subscription fulfils a condition; return it."""
        (row,) = await self.subscriptions(
            lambda rows: len(rows) == 1 and condition(rows[0]), **query
        )
        return row

    async def level(self) -> Rows:
        """Wait until all WebSub subscriptions have received everything; return them."""
        return await self.subscriptions(
            lambda rows: (
                bool(rows) and all(row["behind"] == 0 and row["failures"] == 0 for row in rows)
            )
        )

    async def admin_until(self, path: str, condition: Callable[[Any], bool], **query: Any) -> Any:
        """Poll the admin API until its answer fulfils a condition; return the answer."""
        async with asyncio.timeout(PATIENCE):
            while not condition(answer := await self.admin("GET", path, **query)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return answer

    async def admin(self, method: str, path: str, **query: Any) -> Any:
        """Send a request that succeeds to the admin API, and return the JSON of the answer."""
        status, answer = await self.ask_admin(method, path, params=query)
        assert status in (200, 204), answer
        return answer

    async def admin_pages(self, path: str, **query: Any) -> list[Any]:
        """Return all pages of a list of the admin API."""
        pages = [await self.admin("GET", path, **query)]
        while (after := pages[-1]["next"]) is not None:
            pages.append(await self.admin("GET", path, after=after, **query))
        return pages

    async def ask_admin(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Send a request to the admin API; return the status, and the JSON if there is a body."""
        own = {"Authorization": f"Bearer {ADMIN}"} if self.needs_token else {}
        options = {"headers": own, **options}
        async with self.session.request(method, f"{self.url}admin/{path}", **options) as response:
            if response.status == 204:
                assert await response.read() == b""
                return 204, None
            assert response.content_type == "application/json"
            return response.status, await response.json()

    async def websocket(self, **headers: str) -> aiohttp.ClientWebSocketResponse:
        socket = await self.session.ws_connect(
            self.url + "ws",
            headers=headers,
            max_msg_size=0,
            # The hub may not read the close any more.
            timeout=aiohttp.ClientWSTimeout(ws_receive=PATIENCE, ws_close=1),
        )
        self.sockets.append(socket)
        return socket

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close its WebSockets; the garbage collector warns of those that the session closes."""
        for socket in self.sockets:
            await socket.close()

    async def subscribed(
        self,
        since: float | None = None,
        *,
        topic: str = TOPIC,
        select: Any = None,
        **headers: str,
    ) -> tuple[aiohttp.ClientWebSocketResponse, dict[str, Any]]:
        """Subscribe over WebSocket; return the answer, too."""
        socket = await self.websocket(**headers)
        start = None if since is None else format_datetime(at(since))
        frame = {"type": "subscribe", "topic": topic, "since": start, "select": select}
        await socket.send_json(frame)
        return socket, await socket.receive_json()

    async def listen(
        self, since: float | None = None, *, topic: str = TOPIC, **headers: str
    ) -> aiohttp.ClientWebSocketResponse:
        """Subscribe over WebSocket, from the frame `subscribed` on."""
        socket, answer = await self.subscribed(since, topic=topic, **headers)
        assert answer["type"] == "subscribed"
        return socket

    async def source(
        self, *, topic: str = TOPIC, **headers: str
    ) -> aiohttp.ClientWebSocketResponse:
        """Publish over WebSocket, from the frame `publishing` on."""
        socket = await self.websocket(**headers)
        await socket.send_json({"type": "publish", "topic": topic})
        assert (await socket.receive_json())["type"] == "publishing"
        return socket


def _small_buffers(info: aiohttp.AddrInfoType) -> sockets.socket:
    family, kind, protocol, _, _ = info
    made = sockets.socket(family, kind, protocol)
    made.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    return made


@asynccontextmanager
async def slow_client(hub: Client, **options: Any) -> AsyncIterator[Client]:
    """A client whose system takes little of what the client does not read."""
    connector = aiohttp.TCPConnector(socket_factory=_small_buffers)
    async with (
        aiohttp.ClientSession(connector=connector, **options) as session,
        Client(hub.url, session) as client,
    ):
        yield client


#: The type of the fixture `run_hub`.
RunHub = Callable[..., AbstractAsyncContextManager[Client]]


async def send(socket: aiohttp.ClientWebSocketResponse, *bodies: bytes) -> None:
    for body in bodies:
        await socket.send_str(body.decode())


async def heard(socket: aiohttp.ClientWebSocketResponse, until: float) -> list[float]:
    """Return the seconds of all changes that a subscriber receives, up to the one at `until`."""
    found: list[float] = []
    while not found or found[-1] != until:
        text = await socket.receive_str()
        assert text.startswith("<"), f"no fragment: {text}"
        found += seconds_of(text)
    return found
