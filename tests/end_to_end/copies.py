"""Subscribers that follow a topic by its fragments alone: callbacks, WebSockets, MQTT clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import lru_cache
from itertools import count
from typing import NoReturn

import aiohttp
from aiohttp import web

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.links import parse_links
from rsnotify.format.model import ChangeType, Document
from rsnotify.format.reader import read_document
from rsnotify.runtime.mqtt_broker import channel_topic, parse_broker
from rsnotify.runtime.mqtt_connection import connect
from tests.publisher.helpers import serving

_LOST = (aiohttp.ClientError, OSError, TimeoutError)


@lru_cache(64)
def _read(body: bytes) -> Document:
    return read_document(body)


class Copy:
    """What a subscriber knows by the fragments that it received."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.through: Instant | None = None
        self.hashes: dict[str, str] = {}
        self.faults: list[str] = []
        self.fragments = 0
        self.repeats = 0

    def receive(self, body: bytes) -> None:
        document = _read(body)
        assert document.from_ is not None
        assert document.until is not None
        self.fragments += 1
        if self.through is None:
            self.through = document.from_
        if document.from_ > self.through:
            self.faults.append(f"gap from {self.through} to {document.from_}")
        if document.until <= self.through:
            self.repeats += 1
        for resource in document.resources:
            assert resource.changed_at is not None
            if resource.changed_at <= self.through:
                continue
            if resource.change is ChangeType.DELETED:
                self.hashes.pop(resource.uri, None)
            else:
                assert resource.hash is not None
                self.hashes[resource.uri] = resource.hash
        self.through = max(self.through, document.until)


class CallbackCopy(Copy):
    """A WebSub callback, at a port of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.url = ""
        self._running: set[str] = set()

    async def get(self, request: web.Request) -> web.Response:
        return web.Response(text=request.query.get("hub.challenge", ""))

    async def post(self, request: web.Request) -> web.Response:
        links = parse_links(request.headers.getall("Link"))
        (hub,) = [to for rel, to in links if rel == "hub"]
        # One node may repeat a delivery that took too long, while the first one is still read here.
        if self._running - {hub}:
            self.faults.append(f"deliveries of {self._running} and {hub} at the same time")
        self._running.add(hub)
        try:
            self.receive(await request.read())
        finally:
            self._running.discard(hub)
        return web.Response(status=204)


@asynccontextmanager
async def callback_copies(number: int) -> AsyncIterator[list[CallbackCopy]]:
    async with AsyncExitStack() as stack:
        copies = [CallbackCopy(f"callback {each}") for each in range(number)]
        for copy in copies:
            app = web.Application(client_max_size=10**8)
            app.router.add_get("/", copy.get)
            app.router.add_post("/", copy.post)
            copy.url = await stack.enter_async_context(serving(app)) + "/"
        yield copies


class SocketCopy(Copy):
    """A WebSocket, which is connected to the next node when it is lost."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.subscribed = asyncio.Event()
        self.connections = 0

    async def run(
        self, session: aiohttp.ClientSession, topic: str, nodes: Sequence[str], first: int
    ) -> NoReturn:
        """Follow a topic at nodes, which are tried in turn."""
        for number in count(first):
            try:
                await self._follow(session, topic, nodes[number % len(nodes)])
            except _LOST:
                await asyncio.sleep(0.1)
        raise AssertionError

    async def _follow(self, session: aiohttp.ClientSession, topic: str, node: str) -> None:
        async with session.ws_connect(node + "ws", max_msg_size=0, heartbeat=10) as socket:
            since = format_datetime(self.through) if self.through is not None else None
            await socket.send_json({"type": "subscribe", "topic": topic, "since": since})
            self.connections += 1
            while True:
                message = await socket.receive()
                if message.type is not aiohttp.WSMsgType.TEXT:
                    raise ConnectionError
                if message.data.startswith("{"):
                    self._control(json.loads(message.data))
                else:
                    self.receive(message.data.encode())

    def _control(self, frame: dict[str, object]) -> None:
        if frame["type"] == "gap":
            self.faults.append(f"the hub reports a gap: {frame}")
        elif frame["type"] == "subscribed":
            self.subscribed.set()
        else:
            raise ConnectionError  # a node that cannot serve at the moment


@asynccontextmanager
async def socket_copies(
    number: int, topic: str, nodes: Sequence[str]
) -> AsyncIterator[list[SocketCopy]]:
    copies = [SocketCopy(f"WebSocket {each}") for each in range(number)]
    timeout = aiohttp.ClientTimeout(sock_connect=5)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        tasks = [
            asyncio.create_task(copy.run(session, topic, nodes, first))
            for first, copy in enumerate(copies)
        ]
        try:
            for copy in copies:
                await copy.subscribed.wait()
            yield copies
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def mqtt_copies(number: int, topic: str, broker: str) -> AsyncIterator[list[Copy]]:
    async with AsyncExitStack() as stack:
        copies = [Copy(f"MQTT client {each}") for each in range(number)]
        for copy in copies:
            connection = await stack.enter_async_context(
                connect(
                    parse_broker(broker),
                    on_message=lambda message, copy=copy: copy.receive(message.payload),
                )
            )
            await connection.subscribe(channel_topic(topic))
        yield copies
