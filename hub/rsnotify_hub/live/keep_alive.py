"""The open connections, and regular checks of them, with one timer for all."""

from __future__ import annotations

import asyncio
from itertools import cycle

from rsnotify_hub.live.connection import LiveConnection

#: A round of checks is made in so many parts, so that pings are not all sent at once.
_PARTS = 30


class KeepAlive:
    def __init__(self, seconds: float) -> None:
        self._interval = seconds / _PARTS
        self._parts: list[dict[LiveConnection, None]] = [{} for _ in range(_PARTS)]
        self._part_of: dict[LiveConnection, dict[LiveConnection, None]] = {}
        # New connections are spread over the parts; the parts are checked in the same order.
        self._next_to_join, self._next_to_check = cycle(self._parts), cycle(self._parts)
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._part_of)

    def connections(self) -> list[LiveConnection]:
        return list(self._part_of)

    def add(self, connection: LiveConnection) -> None:
        part = next(self._next_to_join)
        part[connection] = None
        self._part_of[connection] = part
        self._empty.clear()
        if self._timer is None:
            self._schedule()

    def remove(self, connection: LiveConnection) -> None:
        part = self._part_of.pop(connection, None)
        if part is not None:
            del part[connection]
        if not self._part_of:
            self._empty.set()

    async def wait_until_empty(self) -> None:
        await self._empty.wait()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._check_part)

    def _check_part(self) -> None:
        self._timer = None
        for connection in list(next(self._next_to_check)):
            if not connection.has_ended:
                connection.check()
        if self._part_of:
            self._schedule()
