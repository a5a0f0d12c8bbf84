"""Which WebSockets are open, and whether they live: one timer for all of them."""

from __future__ import annotations

import asyncio
from itertools import cycle

from rsnotify_hub.websocket.connection import WebSocketConnection

#: A round of pings is made in so many parts, so that they do not all go out at once.
_PARTS = 30


class KeepAlive:
    """Checks every connection once a round.

    Args:
        seconds: How long a round takes.
    """

    def __init__(self, seconds: float) -> None:
        self._every = seconds / _PARTS
        self._parts: list[dict[WebSocketConnection, None]] = [{} for _ in range(_PARTS)]
        self._part_of: dict[WebSocketConnection, dict[WebSocketConnection, None]] = {}
        # A newcomer joins another part than the one before; each part has its turn in order.
        self._joining, self._turns = cycle(self._parts), cycle(self._parts)
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        """Return how many connections there are."""
        return len(self._part_of)

    def connections(self) -> list[WebSocketConnection]:
        """Return every connection."""
        return list(self._part_of)

    def add(self, connection: WebSocketConnection) -> None:
        """Keep a connection."""
        part = next(self._joining)
        part[connection] = None
        self._part_of[connection] = part
        self._empty.clear()
        if self._timer is None:
            self._begin()

    def remove(self, connection: WebSocketConnection) -> None:
        """Forget a connection."""
        part = self._part_of.pop(connection, None)
        if part is not None:
            del part[connection]
        if not self._part_of:
            self._empty.set()

    async def emptied(self) -> None:
        """Wait until there is no connection."""
        await self._empty.wait()

    def _begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every, self._turn)

    def _turn(self) -> None:
        self._timer = None
        for connection in list(next(self._turns)):
            if not connection.has_ended:
                connection.check()
        if self._part_of:
            self._begin()
