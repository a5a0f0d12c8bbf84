"""A listener that records what a transport reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rsnotify_subscriber import Transport
from tests.subscriber.source import PATIENCE


class RecordingListener:
    """A `TransportListener` that records "up", "gap" and each fragment.

    Attributes:
        failure: What to raise for each fragment, or None.
        task: The task in which the transport runs, if a test has set it.
    """

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.events: list[str | bytes] = []
        self.documents: list[bytes] = []
        self.failure: Exception | None = None
        self._changed = asyncio.Event()

    @property
    def ups(self) -> int:
        return self.events.count("up")

    def up(self, hub: str | None = None) -> None:
        self._record("up")

    def audience(self, listeners: int) -> None:
        raise AssertionError("only a WebSocket states the number of subscribers")

    def gap(self) -> None:
        self._record("gap")

    def fragment(self, document: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.documents.append(document)
        self._record(document)

    def _record(self, event: str | bytes) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_recorded(self, *events: str | bytes) -> None:
        await self.until(lambda: set(events) <= set(self.events))

    async def more_than(self, count: int) -> None:
        await self.until(lambda: len(self.events) > count)

    async def ended(self) -> None:
        """Wait until the transport has ended, and raise its error."""
        async with asyncio.timeout(PATIENCE):
            await self.task


@asynccontextmanager
async def receiving(transport: Transport) -> AsyncIterator[RecordingListener]:
    recorder = RecordingListener()
    task = asyncio.create_task(transport.receive(None, recorder))
    try:
        yield recorder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
