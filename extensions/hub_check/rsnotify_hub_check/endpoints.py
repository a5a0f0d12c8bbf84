"""A server of topics, which the hub fetches, and of callbacks, which it sends requests to."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import chain

from aiohttp import web

from rsnotify.format.links import format_links
from rsnotify.runtime.listening import address, listen
from rsnotify.runtime.serving import serving
from rsnotify_hub_check.callback import CallbackReply, ReceivedDelivery, SimulatedCallback

#: The largest body that is accepted from a hub.
_MAX_BODY_BYTES = 64 * 1024 * 1024


def html(words: str) -> bytes:
    return f"<!doctype html>\n<title>A topic</title>\n<p>{words}</p>\n".encode()


class SimulatedTopic:
    """A publisher's resource, with a different content in each version; the newest is the last."""

    def __init__(self, base: str, content_type: str, write: Callable[[str], bytes]) -> None:
        self.token = secrets.token_hex(12)
        self.url = f"{base}/topic/{self.token}"
        self.content_type = content_type
        self._write = write
        self.versions: list[bytes] = []
        self.gets = 0
        self.change()

    def change(self) -> bytes:
        self.versions.append(self._write(f"version {len(self.versions)} of {self.token}"))
        return self.versions[-1]


class SimulatedEndpoints:
    """A server of topics, which advertise a hub, and of callbacks."""

    def __init__(self, base: str, hub: str) -> None:
        self.base = base
        self._hub = hub
        self._callbacks: dict[str, list[SimulatedCallback]] = {}
        self._topics: dict[str, SimulatedTopic] = {}
        self._received = asyncio.Condition()

    def callback(
        self, query: str = "", path: str = "", *, beside: SimulatedCallback | None = None
    ) -> SimulatedCallback:
        """Add a callback, maybe with a path that begins as that of another (`beside`)."""
        token = beside.token if beside else secrets.token_hex(12)
        callback = SimulatedCallback(self.base, token, query, path)
        self._callbacks.setdefault(token, []).append(callback)
        return callback

    def topic(
        self, content_type: str = "text/html", write: Callable[[str], bytes] = html
    ) -> SimulatedTopic:
        """Add a topic; `write` returns a body with the given words."""
        topic = SimulatedTopic(self.base, content_type, write)
        self._topics[topic.token] = topic
        return topic

    def links(self, topic: SimulatedTopic) -> str:
        return format_links([("self", topic.url), ("hub", self._hub)])

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until requests make a condition true, and return whether that was in time."""
        try:
            async with asyncio.timeout(seconds), self._received:
                await self._received.wait_for(holds)
        except TimeoutError:
            return holds()
        return True

    async def handle(self, request: web.Request) -> web.StreamResponse:
        kind, _, rest = request.raw_path.lstrip("/").partition("/")
        token = rest[:24]
        if kind == "topic" and token in self._topics:
            return self._content(self._topics[token])
        if kind == "callback" and token in self._callbacks:
            these = self._callbacks[token]
            named = (each for each in these if request.raw_path.startswith(each.target))
            return await self._call(next(named, these[0]), request)
        return web.Response(status=404)

    def _content(self, topic: SimulatedTopic) -> web.Response:
        topic.gets += 1
        headers = {"Content-Type": topic.content_type, "Link": self.links(topic)}
        return web.Response(body=topic.versions[-1], headers=headers)

    async def _call(self, callback: SimulatedCallback, request: web.Request) -> web.StreamResponse:
        reply = await self._record(callback, request)
        async with self._received:
            self._received.notify_all()
        await callback.open.wait()
        if callback.drops and request.transport is not None:
            request.transport.abort()
        return web.Response(status=reply.status, text=reply.body, headers=reply.headers)

    async def _record(self, callback: SimulatedCallback, request: web.Request) -> CallbackReply:
        if request.method == "GET":
            return callback.verify(callback.read(request.raw_path))
        body = await request.read()
        callback.deliveries.append(ReceivedDelivery(request.raw_path, request.headers, body))
        return callback.answers.pop(0) if callback.answers else callback.answer

    def subscribed(self) -> list[tuple[SimulatedCallback, str]]:
        """Return the subscribed callbacks, as far as they know, each with its topic."""
        callbacks = chain.from_iterable(self._callbacks.values())
        return [(each, topic) for each in callbacks for topic in each.subscribed]

    def release(self) -> None:
        """Release the answers that callbacks hold back."""
        for callback in chain.from_iterable(self._callbacks.values()):
            callback.open.set()


@asynccontextmanager
async def serve_endpoints(
    hub: str, *, host: str = "127.0.0.1", port: int = 0, base: str | None = None
) -> AsyncIterator[SimulatedEndpoints]:
    """Serve topics that advertise a hub, and callbacks, within the context.

    `base` is the URL of this server for the hub; by default it has the host and port.
    """
    with listen(host, port, "another --listen") as listener:
        endpoints = SimulatedEndpoints((base or address(host, listener)).rstrip("/"), hub)
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{any:.*}", endpoints.handle)
        async with serving(app, listener, shutdown_timeout=0.1):
            yield endpoints
            endpoints.release()
