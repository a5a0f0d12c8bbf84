"""A server of simulated topics and callbacks, to which the hub under test sends requests."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import chain
from urllib.parse import parse_qsl

from aiohttp import web
from msgspec import Struct
from multidict import CIMultiDictProxy

from rsnotify.format.links import format_links
from rsnotify.runtime.listening import address, listen
from rsnotify.runtime.serving import serving


class ReceivedVerification(Struct, frozen=True):
    """A GET request to a callback, with the parameters that the hub appended."""

    target: str
    appended: dict[str, str]

    @property
    def challenge(self) -> str:
        return self.appended.get("hub.challenge", "")


class ReceivedDelivery(Struct, frozen=True):
    target: str
    headers: CIMultiDictProxy[str]
    body: bytes


class CallbackReply(Struct, frozen=True):
    status: int = 200
    body: str = ""
    headers: dict[str, str] = {}


def echo(verification: ReceivedVerification) -> CallbackReply:
    """Confirm the intent by returning the challenge."""
    return CallbackReply(body=verification.challenge)


def decline(verification: ReceivedVerification) -> CallbackReply:
    """Answer that the subscriber disagrees (WebSub §5.3.1)."""
    return CallbackReply(status=404)


class SimulatedCallback:
    """A subscriber's callback, which records and answers verifications and deliveries.

    Attributes:
        target: The callback's path and query.
        reply: A function that returns the answer to a verification.
        answers: The answers to the next deliveries, in order.
        answer: The answer to all later deliveries.
        drops: Whether to close connections without an answer.
        open: An event that must be set before the callback answers.
        subscribed: The topics that the callback is subscribed to, according to its answers.
    """

    def __init__(self, base: str, token: str, query: str, path: str) -> None:
        self.token = token
        self.target = f"/callback/{self.token}{path}" + (f"?{query}" if query else "")
        self.url = base + self.target
        self.reply: Callable[[ReceivedVerification], CallbackReply] = echo
        self.answers: list[CallbackReply] = []
        self.answer = CallbackReply()
        self.drops = False
        self.open = asyncio.Event()
        self.open.set()
        self.verifications: list[ReceivedVerification] = []
        self.deliveries: list[ReceivedDelivery] = []
        self.subscribed: set[str] = set()

    def parse(self, target: str) -> ReceivedVerification:
        """Parse the parameters that the hub appended to the target of a verification."""
        added = target[len(self.target) :] if target.startswith(self.target) else target
        query = added.lstrip("?&") if added is not target else target.partition("?")[2]
        return ReceivedVerification(target, dict(parse_qsl(query, keep_blank_values=True)))

    def verify(self, verification: ReceivedVerification) -> CallbackReply:
        self.verifications.append(verification)
        reply = self.reply(verification)
        if 200 <= reply.status < 300 and reply.body == verification.challenge:
            begins = verification.appended.get("hub.mode") == "subscribe"
            change = self.subscribed.add if begins else self.subscribed.discard
            change(verification.appended.get("hub.topic", ""))
        return reply


#: Maximum size of a request body from the hub.
_MAX_BODY_BYTES = 64 * 1024 * 1024


def html(words: str) -> bytes:
    return f"<!doctype html>\n<title>A topic</title>\n<p>{words}</p>\n".encode()


class SimulatedTopic:
    """A publisher's resource. `versions` has the content of each version, the newest last."""

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
    """A server of callbacks, and of topics that advertise a hub."""

    def __init__(self, base: str, hub: str) -> None:
        self.base = base
        self._hub = hub
        self._callbacks: dict[str, list[SimulatedCallback]] = {}
        self._topics: dict[str, SimulatedTopic] = {}
        self._received = asyncio.Condition()

    def callback(
        self, query: str = "", path: str = "", *, beside: SimulatedCallback | None = None
    ) -> SimulatedCallback:
        """Add a callback. Its path begins like that of `beside`, if given."""
        token = beside.token if beside else secrets.token_hex(12)
        callback = SimulatedCallback(self.base, token, query, path)
        self._callbacks.setdefault(token, []).append(callback)
        return callback

    def topic(
        self, content_type: str = "text/html", write: Callable[[str], bytes] = html
    ) -> SimulatedTopic:
        """Add a topic. `write` returns a body that contains the given words."""
        topic = SimulatedTopic(self.base, content_type, write)
        self._topics[topic.token] = topic
        return topic

    def links(self, topic: SimulatedTopic) -> str:
        return format_links([("self", topic.url), ("hub", self._hub)])

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until `holds` returns true, and return whether it did in time."""
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
            return callback.verify(callback.parse(request.raw_path))
        body = await request.read()
        callback.deliveries.append(ReceivedDelivery(request.raw_path, request.headers, body))
        return callback.answers.pop(0) if callback.answers else callback.answer

    def subscribed(self) -> list[tuple[SimulatedCallback, str]]:
        """Return the callback and topic of each subscription, according to the callbacks."""
        callbacks = chain.from_iterable(self._callbacks.values())
        return [(each, topic) for each in callbacks for topic in each.subscribed]

    def release(self) -> None:
        """Set `open` of all callbacks, so that they send their pending answers."""
        for callback in chain.from_iterable(self._callbacks.values()):
            callback.open.set()


@asynccontextmanager
async def serve_endpoints(
    hub: str, *, host: str = "127.0.0.1", port: int = 0, base: str | None = None
) -> AsyncIterator[SimulatedEndpoints]:
    """Serve callbacks, and topics that advertise a hub, while the context is active.

    `base` is the URL at which the hub reaches this server. By default, it has the host and port.
    """
    with listen(host, port, "another --listen") as listener:
        endpoints = SimulatedEndpoints((base or address(host, listener)).rstrip("/"), hub)
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{any:.*}", endpoints.handle)
        async with serving(app, listener, shutdown_timeout=0.1):
            yield endpoints
            endpoints.release()
