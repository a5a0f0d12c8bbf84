"""A Destination's callbacks, mounted in an application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar

import aiohttp
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from rsnotify.errors import FetchError
from rsnotify_subscriber import Callbacks, WebSubTerms
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.websub_transport import WebSubTransport
from tests.subscriber.recording import RecordingListener
from tests.subscriber.source import PATIENCE
from tests.web_servers import serving_asgi, serving_wsgi

E = TypeVar("E", bound=FetchError)
#: As in life, but in a hurry.
TERMS = WebSubTerms(settle=0.02, patience=30, shortest_lease=1)


class Desk:
    """An application that has callbacks, and keeps what it answered to hubs."""

    def __init__(self, callbacks: Callbacks, session: aiohttp.ClientSession) -> None:
        self.callbacks = callbacks
        self.session = session
        self.answers: list[tuple[str, str, int]] = []  # method, URL, status

    def statuses(self, method: str) -> list[int]:
        return [status for one, _, status in self.answers if one == method]

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        status = 500
        try:
            response = await handler(request)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            self.answers.append((request.method, str(request.url), status))

    async def send(self, url: str, body: bytes, **headers: str) -> int:
        """POST content, as who knows a callback could."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(url, data=body, headers=named) as response:
            return response.status

    async def ask(self, url: str, **query: str) -> tuple[int, str]:
        """GET a callback, as who knows it could."""
        named = {"hub." + name: value for name, value in query.items()}
        async with self.session.get(url, params=named) as response:
            return response.status, await response.text()

    async def publish_at(
        self, hub: str, topic: str, body: bytes, content_type: str = "text/plain"
    ) -> None:
        """Publish content at the real hub."""
        headers = {"Content-Type": content_type, "Link": f'<{topic}>; rel="self"'}
        async with self.session.post(hub + "websub", data=body, headers=headers) as response:
            assert response.status == 202, await response.text()

    async def ping_at(self, hub: str, topic: str) -> None:
        """Make the real hub fetch a topic."""
        form = {"hub.mode": "publish", "hub.url": topic}
        async with self.session.post(hub + "websub", data=form) as response:
            assert response.status == 202, await response.text()

    async def subscriptions_at(self, hub: str, count: int) -> list[dict[str, Any]]:
        """Ask the real hub for its subscriptions until there are so many."""
        async with asyncio.timeout(PATIENCE):
            while len(found := await self.any_subscriptions_at(hub)) != count:
                pass
        return found

    async def all_left(self) -> None:
        """Ask a callback that there never was, until none is answered any more."""
        async with asyncio.timeout(PATIENCE):
            while len(self.callbacks):
                await self.ask(self.callbacks.url + "A" * 43)

    async def any_subscriptions_at(self, hub: str) -> list[dict[str, Any]]:
        """Ask the real hub for its subscriptions."""
        async with self.session.get(hub + "admin/subscriptions") as response:
            found: list[dict[str, Any]] = (await response.json())["subscriptions"]
        return found

    @asynccontextmanager
    async def receiving(
        self, topic: str, hubs: tuple[str, ...] = (), *, named: str | None = None
    ) -> AsyncIterator[RecordingListener]:
        """Subscribe, from the moment the subscription is there."""
        recorder = RecordingListener()
        async with Sessions(topic if named is None else named) as sessions:
            transport = WebSubTransport(topic, hubs, sessions=sessions, callbacks=self.callbacks)
            task = recorder.task = asyncio.create_task(transport.receive(None, recorder))
            try:
                up = asyncio.create_task(recorder.until(lambda: recorder.ups))
                await asyncio.wait({up, task}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    up.cancel()
                    task.result()
                await up
                yield recorder
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError, FetchError, ZeroDivisionError):
                    await task

    async def fails_to_receive(self, topic: str, error: type[E], told: str) -> E:
        """Check that a subscription ends with an error before it is there, and return that."""
        with pytest.raises(error, match=told) as caught:
            async with self.receiving(topic):
                raise AssertionError("it is subscribed")
        return caught.value


OpenDesk = Callable[..., AbstractAsyncContextManager[Desk]]


@asynccontextmanager
async def open_desk(terms: WebSubTerms = TERMS, kind: str = "aiohttp") -> AsyncIterator[Desk]:
    """Mount callbacks in an application of their user."""
    opening = {"aiohttp": _in_aiohttp, "asgi": _in_asgi, "wsgi": _in_wsgi}[kind]
    async with aiohttp.ClientSession() as session, opening(terms, session) as desk:
        yield desk


@asynccontextmanager
async def _in_aiohttp(terms: WebSubTerms, session: aiohttp.ClientSession) -> AsyncIterator[Desk]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/deep/inner"
        desk = Desk(Callbacks(url, terms), session)
        app, inner = web.Application(middlewares=[desk.note]), web.Application()
        inner.add_routes(desk.callbacks.routes("/inner/"))
        app.add_subapp("/deep", inner)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        try:
            yield desk
        finally:
            await runner.cleanup()


@asynccontextmanager
async def _in_asgi(terms: WebSubTerms, session: aiohttp.ClientSession) -> AsyncIterator[Desk]:
    mounted: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await mounted[0](scope, receive, send)

    async with serving_asgi(application, lifespan="off") as url:
        desk = Desk(Callbacks(url + "/deep/inner", terms), session)
        mounted.append(desk.callbacks.asgi_application())
        yield desk


@asynccontextmanager
async def _in_wsgi(terms: WebSubTerms, session: aiohttp.ClientSession) -> AsyncIterator[Desk]:
    mounted: list[Any] = []
    async with serving_wsgi(lambda *request: mounted[0](*request)) as url:
        desk = Desk(Callbacks(url + "/deep/inner", terms), session)
        mounted.append(desk.callbacks.wsgi_application())
        yield desk
