"""A topic and a hub to test a subscriber with, which can be told to misbehave.

As those of websub.rocks, the hub asks back before it answers to a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import token_urlsafe

import aiohttp
from aiohttp import web

from rsnotify.format.signatures import signature
from tests.subscriber.source import PATIENCE, Server


class Blog:
    """A topic at `/blog`, and a hub for it at `/hub`.

    Set `answer` to serve the topic otherwise, `hub_answer` to answer requests otherwise, `asks`
    to ask back about something else.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.body, self.type = "posts", "text/plain"
        self.headers: list[tuple[str, str]] = []
        self.moves: dict[str, tuple[int, str]] = {}
        self.gets: list[str] = []
        self.requests: list[dict[str, str]] = []
        self.asks: dict[str, str] = {}
        self.status = 202
        self.lease = 1000
        self.answering = asyncio.Event()  # requests are answered, once asked back about
        self.answering.set()
        self.letting_go = asyncio.Event()  # who wants to leave is asked back
        self.letting_go.set()
        self.reason = ""
        self.confirmed: dict[str, dict[str, str]] = {}  # by callback
        self.changed = asyncio.Condition()
        app = web.Application()
        app.router.add_get("/{path:.*}", self._get)
        app.router.add_post("/{path:.*}", self._post)
        self.server = Server(app)

    @property
    def site(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    @property
    def topic(self) -> str:
        return f"{self.site}/blog"

    @property
    def hub(self) -> str:
        return f"{self.site}/hub"

    def link(self, /, **links: str) -> None:
        """Say links in the headers of the topic."""
        self.headers = [("Link", f'<{target}>; rel="{rel}"') for rel, target in links.items()]

    async def until_requests(self, count: int) -> dict[str, str]:
        async with asyncio.timeout(PATIENCE), self.changed:
            await self.changed.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def until_confirmed(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE), self.changed:
            await self.changed.wait_for(lambda: len(self.confirmed) == count)

    async def _get(self, request: web.Request) -> web.Response:
        self.gets.append(request.path_qs)
        if request.path_qs in self.moves:
            status, target = self.moves[request.path_qs]
            return web.Response(status=status, headers={"Location": target})
        response = web.Response(text=self.body, content_type=self.type)
        for name, value in self.headers:
            response.headers.add(name, value)
        return response

    async def _post(self, request: web.Request) -> web.Response:
        if request.path_qs in self.moves:
            status, target = self.moves[request.path_qs]
            return web.Response(status=status, headers={"Location": target})
        form = {name: str(value) for name, value in (await request.post()).items()}
        if self.status == 202:
            await self._ask_back(form)
        await self.answering.wait()
        async with self.changed:
            self.requests.append({**form, "path": request.path_qs})
            self.changed.notify_all()
        return web.Response(status=self.status, text=self.reason)

    async def _ask_back(self, form: dict[str, str]) -> None:
        if form["hub.mode"] == "unsubscribe":
            await self.letting_go.wait()
        challenge, callback = token_urlsafe(), form["hub.callback"]
        query = {
            "hub.mode": form["hub.mode"],
            "hub.topic": form["hub.topic"],
            "hub.challenge": challenge,
            "hub.lease_seconds": str(self.lease),
            **self.asks,
        }
        async with self.session.get(callback, params=query) as response:
            if response.status // 100 != 2 or await response.text() != challenge:
                return
        async with self.changed:
            if form["hub.mode"] == "subscribe":
                self.confirmed[callback] = form
            else:
                del self.confirmed[callback]
            self.changed.notify_all()

    async def publish(self, body: bytes, *, signed: str = "sha256") -> list[int]:
        """Deliver to all; return what they answered."""
        statuses = []
        for callback, form in list(self.confirmed.items()):
            headers = {"Content-Type": self.type}
            secret = form["hub.secret"] if signed != "wrong" else "not the secret"
            if signed != "not at all":
                method = "sha256" if signed == "wrong" else signed
                headers["X-Hub-Signature"] = signature(secret, body, method)
            async with self.session.post(callback, data=body, headers=headers) as response:
                statuses.append(response.status)
        return statuses


@asynccontextmanager
async def open_blog() -> AsyncIterator[Blog]:
    async with aiohttp.ClientSession() as session:
        blog = Blog(session)
        await blog.server.start()
        blog.link(self=blog.topic, hub=blog.hub)
        try:
            yield blog
        finally:
            await blog.server.stop()
