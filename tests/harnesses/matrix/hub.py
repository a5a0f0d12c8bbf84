"""A hub in virtual time that speaks docs/protocol.md, and can withhold, repeat and invent."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from rsnotify_hub.websub.callback_requests import open_client
from rsnotify_subscriber.push_options import Via
from tests.harnesses.matrix.source import Listing
from tests.harnesses.simulation.loop import Machine
from tests.subscriber.hub import SmallHub
from tests.wild.documents import entry, fragment

if TYPE_CHECKING:
    from tests.harnesses.matrix.run import Run

_PORT = 8010
#: After how many seconds a delivery to a callback is repeated.
_RETRIES = (1.0, 5.0, 25.0)
#: After how many seconds a callback counts as not reachable.
_PATIENCE = 10.0


class Hub(SmallHub):
    """A hub of a run.

    Attributes:
        callbacks: The secrets of the WebSub subscriptions, by callback; they survive a restart.
        withholds: Whether it delivers nothing.
        repeats: Whether it delivers each fragment twice.
        joins: When Destinations subscribed, in seconds of the run.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(port=_PORT)
        self._run = run
        self.machine: Machine | None = None
        self.callbacks: dict[str, str | None] = {}
        self.withholds = self.repeats = False
        self.joins: list[float] = []
        self._published = 0
        self._through: datetime | None = None

    @property
    def url(self) -> str:
        if self._run.way.via is Via.WEBSUB:
            return f"http://127.0.0.1:{_PORT}/websub"
        return f"ws://127.0.0.1:{_PORT}/ws"

    def start(self) -> None:
        if not self._run.way.pushes:
            return
        self.machine = Machine(self._run.loop, "hub")
        self._run.network.register(self.machine)
        self.machine.spawn(self._listen(self.machine))

    async def _listen(self, machine: Machine) -> None:
        application = web.Application()
        application.router.add_get("/ws", self._serve)
        application.router.add_post("/websub", self._accept)
        await self._run.network.serve(machine, _PORT, application)

    def stop(self) -> None:  # type: ignore[override]
        assert self.machine is not None
        self.machine.kill()
        self.machine = None
        self.sockets.clear()

    async def _subscribe(self, socket: web.WebSocketResponse, frame: dict[str, str]) -> None:
        self.joins.append(self._run.loop.now)
        await super()._subscribe(socket, frame)

    async def _accept(self, request: web.Request) -> web.Response:
        """Accept a request for a WebSub subscription, or for the end of one."""
        self.joins.append(self._run.loop.now)
        assert self.machine is not None
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.machine.spawn(self._verify(form))
        return web.Response(status=202)

    async def _verify(self, form: dict[str, str]) -> None:
        callback, mode = form["hub.callback"], form["hub.mode"]
        query = {"hub.mode": mode, "hub.topic": form["hub.topic"], "hub.challenge": "challenge"}
        if mode == "subscribe":
            query["hub.lease_seconds"] = form["hub.lease_seconds"]
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._client() as client, client.get(callback, params=query) as answer:
                if answer.status != 200 or await answer.text() != "challenge":
                    return
        if mode == "subscribe":
            self.callbacks[callback] = form.get("hub.secret")
        else:
            self.callbacks.pop(callback, None)

    async def _deliver(self, callback: str, text: str) -> None:
        secret, body = self.callbacks[callback], text.encode()
        headers = {"Content-Type": "application/xml"}
        if secret is not None:
            digest = hmac.digest(secret.encode(), body, "sha256").hex()
            headers["X-Hub-Signature"] = f"sha256={digest}"
        for delay in (*_RETRIES, 0.0):
            with suppress(aiohttp.ClientError, TimeoutError):
                async with (
                    self._client() as client,
                    client.post(callback, data=body, headers=headers) as answer,
                ):
                    if answer.status == 410:
                        self.callbacks.pop(callback, None)
                    return
            await asyncio.sleep(delay)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[aiohttp.ClientSession]:
        async with asyncio.timeout(_PATIENCE), open_client(allow_private_addresses=True) as client:
            yield client

    async def publish(self) -> None:  # type: ignore[override]
        source = self._run.source
        published = min(self._published, len(source.changes))  # fewer after a restore
        changes, self._published = source.changes[published:], len(source.changes)
        if changes:
            news = Listing("change-notification", [source.changed(one) for one in changes])
            for trouble in source.troubles:
                trouble.document(source, "", news)
            await self.push(news.entries, until=changes[-1].at)

    async def push(self, entries: Sequence[dict[str, Any]], until: datetime | None = None) -> None:
        """Deliver entries, true or not."""
        source = self._run.source
        until = until or source.now
        begin = self._through or source.begins
        self._through = until
        dated = source.shape.dated
        interval = dated({"from_": begin, "until": until})
        text = fragment([entry(**dated(one)) for one in entries], **interval).decode()
        self.log.append((begin, until, text))
        if not self.withholds:
            await self.send(text)
            if self.repeats:
                await self.send(text)

    async def send(self, text: str) -> None:
        machine = self.machine
        if machine is not None:
            await machine.spawn(self._send_all(text))

    async def _send_all(self, text: str) -> None:
        for socket in list(self.sockets):
            with suppress(ConnectionError):
                await socket.send_str(text)
        await asyncio.gather(*(self._deliver(each, text) for each in self.callbacks))
