"""What a transport has told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rsnotify_subscriber import Transport
from tests.mosquitto import PATIENCE


class Heard:
    """A `Listener` that remembers."""

    def __init__(self) -> None:
        self.events: list[str | bytes] = []
        self._news = asyncio.Event()

    def up(self, hub: str | None = None) -> None:
        self._note("up")

    def audience(self, listeners: int) -> None:
        raise AssertionError("no broker tells")

    def gap(self) -> None:
        self._note("gap")

    def fragment(self, document: bytes) -> None:
        self._note(document)

    def _note(self, event: str | bytes) -> None:
        self.events.append(event)
        self._news.set()

    async def until(self, *events: str | bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            while not set(events) <= set(self.events):
                self._news.clear()
                await self._news.wait()

    async def more_than(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.events) <= count:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def receiving(transport: Transport) -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(transport.receive(None, heard))
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
