"""Callbacks at many ports, each a shard of its own, that remember what each hub delivered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp import web

from rsnotify.format.links import parse_links
from tests.hub.helpers import seconds_of
from tests.waiting import PATIENCE


class CallbackPorts:
    """The callbacks.

    Attributes:
        urls: Their URLs.
        received: The seconds of all changes that each received, in order, by URL.
        hubs: The hub that made each delivery, by URL.
        overlaps: The callbacks that received a delivery while another one ran.
        open: Cleared to make deliveries wait.
    """

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.received: dict[str, list[float]] = {}
        self.hubs: dict[str, list[str]] = {}
        self.overlaps: set[str] = set()
        self.open = asyncio.Event()
        self.open.set()
        self.waiting: set[str] = set()
        self._running: set[str] = set()
        self._changed = asyncio.Condition()
        self.runner: web.AppRunner

    async def get(self, request: web.Request) -> web.Response:
        return web.Response(text=request.query.get("hub.challenge", ""))

    async def post(self, request: web.Request) -> web.Response:
        body = await request.read()
        url = str(request.url)
        (hub,) = [to for rel, to in parse_links(request.headers.getall("Link")) if rel == "hub"]
        if url in self._running:
            self.overlaps.add(url)
        self._running.add(url)
        try:
            self.waiting.add(url)
            async with self._changed:
                self._changed.notify_all()
            await self.open.wait()
            self.waiting.discard(url)
            async with self._changed:
                self.received.setdefault(url, []).extend(seconds_of(body))
                self.hubs.setdefault(url, []).append(hub)
                self._changed.notify_all()
        finally:
            self._running.discard(url)
        return web.Response(status=204)

    async def add(self) -> str:
        """Listen on one more port, and return its callback."""
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.urls.append(f"http://127.0.0.1:{site.port}/callback")
        return self.urls[-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(condition)

    async def all_have(self, second: float, urls: Iterable[str] | None = None) -> None:
        """Wait until each has received the change of a second."""
        wanted = list(self.urls if urls is None else urls)
        await self.until(lambda: all(second in self.received.get(url, ()) for url in wanted))

    def check(self, last: int, *, first: int = 1) -> None:
        """Check that each has received every change, in order, at least once."""
        for url in self.urls:
            reached = first - 1.0
            for second in self.received[url]:
                assert second <= reached + 1, (url, self.received[url])
                reached = max(reached, second)
            assert reached == last, (url, self.received[url])


@asynccontextmanager
async def callbacks_without_ports() -> AsyncIterator[CallbackPorts]:
    callbacks = CallbackPorts()
    app = web.Application()
    app.router.add_get("/callback", callbacks.get)
    app.router.add_post("/callback", callbacks.post)
    callbacks.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await callbacks.runner.setup()
    try:
        yield callbacks
    finally:
        callbacks.open.set()
        await callbacks.runner.cleanup()


@asynccontextmanager
async def callback_ports(count: int) -> AsyncIterator[CallbackPorts]:
    async with callbacks_without_ports() as callbacks:
        for _ in range(count):
            await callbacks.add()
        yield callbacks
