"""A small hub that speaks docs/protocol.md, forwards fragments, and can be stopped."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Self

import aiohttp
from aiohttp import web

from rsnotify.format.datetimes import Instant, format_datetime, parse_datetime
from tests.subscriber.source import PATIENCE, Server, SmallSource


class SmallHub:
    """Keeps what is published, and replays it from `since`."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.log: list[tuple[Instant, Instant, str]] = []
        self.sockets: set[web.WebSocketResponse] = set()
        self.subscriptions: list[dict[str, object]] = []
        self.audience = 1
        self.changed = asyncio.Condition()
        application = web.Application()
        application.router.add_get("/ws", self._serve)
        self.server = Server(application, host, port)

    async def __aenter__(self) -> Self:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.server.port}/ws"

    async def publish(self, fragment: bytes, from_: Instant, until: Instant) -> None:
        """Keep a fragment and send it to all."""
        self.log.append((from_, until, fragment.decode()))
        for socket in list(self.sockets):
            with suppress(ConnectionResetError):  # it was just closed
                await socket.send_str(fragment.decode())

    async def stop(self) -> None:
        """Go away, without a word."""
        for socket in list(self.sockets):
            if socket._req is not None and socket._req.transport is not None:
                socket._req.transport.abort()
        await self.server.stop()

    async def subscribed(self, count: int = 1) -> None:
        """Wait for so many subscriptions, counted from the beginning."""
        async with asyncio.timeout(PATIENCE), self.changed:
            await self.changed.wait_for(lambda: len(self.subscriptions) >= count)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    await self._subscribe(socket, json.loads(message.data))
        finally:
            self.sockets.discard(socket)
        return socket

    async def _subscribe(self, socket: web.WebSocketResponse, frame: dict[str, str]) -> None:
        topic, since = frame["topic"], frame["since"]
        through = format_datetime(self.log[-1][1]) if self.log else None
        await socket.send_json(
            {"type": "subscribed", "topic": topic, "through": through, "audience": self.audience}
        )
        if since is not None:
            await self._replay(socket, topic, parse_datetime(since))
        self.sockets.add(socket)
        async with self.changed:
            self.subscriptions.append(frame)
            self.changed.notify_all()

    async def _replay(self, socket: web.WebSocketResponse, topic: str, since: Instant) -> None:
        if self.log and self.log[0][0] > since:
            begin = format_datetime(self.log[0][0])
            await socket.send_json({"type": "gap", "topic": topic, "from": begin})
        for _, until, text in self.log:
            if until > since:
                await socket.send_str(text)


async def push(source: SmallSource, *hubs: SmallHub, count: int = 1) -> None:
    """Push the last changes as one fragment through each of these hubs."""
    for hub in hubs:
        await hub.publish(*source.latest(count))


async def anywhere(host: str | None) -> bool:
    return True


async def nowhere(host: str | None) -> bool:
    return False
