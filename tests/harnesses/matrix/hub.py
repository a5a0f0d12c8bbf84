"""A hub in virtual time that speaks docs/protocol.md, and can withhold, repeat and invent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.harnesses.matrix.source import Listing
from tests.harnesses.simulation.loop import Machine
from tests.subscriber.hub import SmallHub
from tests.wild.documents import entry, fragment

if TYPE_CHECKING:
    from tests.harnesses.matrix.run import Run

_PORT = 8010


class Hub(SmallHub):
    """A hub of a run.

    Attributes:
        withholds: Whether it delivers nothing.
        repeats: Whether it delivers each fragment twice.
        joins: When Destinations subscribed, in seconds of the run.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(port=_PORT)
        self._run = run
        self.machine: Machine | None = None
        self.withholds = self.repeats = False
        self.joins: list[float] = []
        self._published = 0
        self._through: datetime | None = None

    @property
    def url(self) -> str:
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
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        assert runner.server is not None
        self._run.network.listen(machine, _PORT, runner.server)

    def stop(self) -> None:  # type: ignore[override]
        assert self.machine is not None
        self.machine.kill()
        self.machine = None
        self.sockets.clear()

    async def _subscribe(self, socket: web.WebSocketResponse, frame: dict[str, str]) -> None:
        self.joins.append(self._run.loop.now)
        await super()._subscribe(socket, frame)

    async def publish(self) -> None:  # type: ignore[override]
        source = self._run.source
        changes, self._published = source.changes[self._published :], len(source.changes)
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
