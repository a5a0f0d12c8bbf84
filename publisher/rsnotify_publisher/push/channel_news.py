"""What is new on one channel, for the feeds of all its hubs."""

from __future__ import annotations

import asyncio

from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds


class ChannelNews:
    """Resumes the feeds of a channel; used in one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[bool]] = set()
        self._documented = 0
        self._more_documented = asyncio.Event()

    def notify(self) -> None:
        for waiting in self._waiting:
            _resume(waiting, notified=True)

    async def notified(self, due: float) -> bool:
        """Wait for the next `notify`, or until the time of the loop is `due`; return which came."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_at(due, _resume, waiting)
        self._waiting.add(waiting)
        try:
            return await waiting
        finally:
            self._waiting.discard(waiting)
            timer.cancel()

    def set_documented(self, through: int) -> None:
        """Note that the documents show every change through an instant (µs)."""
        self._documented = through
        self._more_documented.set()
        self._more_documented = asyncio.Event()

    async def documented(self, until: Instant) -> Instant:
        """Wait until the documents show every change through `until`; return how far they go."""
        while self._documented < to_microseconds(until):
            await self._more_documented.wait()
        return from_microseconds(self._documented)


def _resume(waiting: asyncio.Future[bool], *, notified: bool = False) -> None:
    if not waiting.done():
        waiting.set_result(notified)
