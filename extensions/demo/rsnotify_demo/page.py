"""Serves the demo's page over HTTP: its files, its events, and its buttons."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web

from rsnotify.runtime.listening import address, listen
from rsnotify.runtime.serving import PAGE_HEADERS, page_files, serving
from rsnotify.runtime.tasks import first_completed
from rsnotify_demo.monitor import DemoMonitor, Frame, LoggedEvent, Point

_STATIC = Path(__file__).with_name("static")
_LOCAL = ("127.0.0.1", "localhost")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Facts(msgspec.Struct, frozen=True):
    """Facts that do not change: the addresses of the Source, hub and copy, and the rate."""

    source: str
    hub: str
    copy: str
    rate: float


class PageMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message to a page. The first one has all data, and later ones only new data."""

    frame: Frame
    events: list[LoggedEvent] = msgspec.field(name="told", default_factory=list)
    past: list[Point] = []
    facts: Facts | None = None


@asynccontextmanager
async def serve_page(monitor: DemoMonitor, facts: Facts, port: int) -> AsyncIterator[str]:
    """Serve the page while the context is active, and yield its URL."""
    with listen("127.0.0.1", port) as listener:
        ended = asyncio.Event()
        app = web.Application(middlewares=[_only_this_machine])
        app.add_routes(page_files(_STATIC))
        app.router.add_get("/events", _events(monitor, facts, ended))
        app.router.add_post("/do/{action}", _action(monitor))
        async with serving(app, listener, shutdown_timeout=1):
            try:
                yield address("127.0.0.1", listener)
            finally:
                ended.set()


@web.middleware
async def _only_this_machine(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Refuse requests that another site makes a browser send (CSRF, DNS rebinding)."""
    host, own = request.host.rpartition(":")[0], f"http://{request.host}"
    if host not in _LOCAL or request.headers.get("Origin", own) != own:
        raise web.HTTPForbidden(text="only the demo's own page may send requests\n")
    return await handler(request)


def _action(monitor: DemoMonitor) -> _Handler:
    async def answer(request: web.Request) -> web.Response:
        action = monitor.actions.get(request.match_info["action"])
        if action is None:
            raise web.HTTPNotFound
        action()
        return web.Response(status=204)

    return answer


def _events(monitor: DemoMonitor, facts: Facts, ended: asyncio.Event) -> _Handler:
    """Return a handler that sends frames as Server-Sent Events. Slow pages get fewer frames."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={**PAGE_HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        async with first_completed(_send(monitor, facts, response), ended.wait()):
            return response

    return answer


async def _send(monitor: DemoMonitor, facts: Facts, response: web.StreamResponse) -> None:
    last = 0
    while True:
        frame, events = await monitor.next_frame()
        new = [event for event in events if event.number > last]
        first = last == 0
        last = events[-1].number if events else last
        message = PageMessage(
            frame, new, list(monitor.past) if first else [], facts if first else None
        )
        await response.write(b"data: " + msgspec.json.encode(message) + b"\n\n")
