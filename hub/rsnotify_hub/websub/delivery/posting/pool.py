"""Connections that wait for the next request: not for long, and not many."""

from __future__ import annotations

import asyncio

from rsnotify_hub.websub.delivery.posting.connection import CallbackConnection
from rsnotify_hub.websub.delivery.posting.request_head import CallbackOrigin

#: How long a connection waits for the next request, in seconds.
IDLE_SECONDS = 30.0

#: How long what remains of an answer may take, in seconds.
DRAIN_SECONDS = 2.0

#: How many connections wait in all, and how many of one origin.
IDLE = 1000
IDLE_PER_ORIGIN = 50

_SWEEP_SECONDS = 1.0


class ConnectionPool:
    """All connections that nobody uses just now.

    Args:
        most: How many there may be in all.
        per_origin: How many of one origin.
        seconds: How long each waits.
    """

    def __init__(
        self,
        *,
        most: int = IDLE,
        per_origin: int = IDLE_PER_ORIGIN,
        seconds: float = IDLE_SECONDS,
    ) -> None:
        self._most = most
        self._per_origin = per_origin
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._origins: dict[CallbackOrigin, list[CallbackConnection]] = {}
        # In the order in which they end, with when that is.
        self._idle: dict[CallbackConnection, float] = {}
        self._draining: dict[CallbackConnection, float] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        """Count those that wait for a request."""
        return len(self._idle)

    def take(self, origin: CallbackOrigin) -> CallbackConnection | None:
        """Return the connection to an origin that was used last; None when there is none."""
        found = self._origins.get(origin)
        if not found:
            return None
        connection = found.pop()
        if not found:
            del self._origins[origin]
        del self._idle[connection]
        return connection

    def keep(self, connection: CallbackConnection) -> None:
        """Keep one for the next request (`Keeper.keep`)."""
        self._draining.pop(connection, None)
        others = self._origins.setdefault(connection.origin, [])
        others.append(connection)
        self._idle[connection] = self._loop.time() + self._seconds
        self._sweep_later()
        if self._closed or len(others) > self._per_origin:
            self._end(connection)
        elif len(self._idle) > self._most:
            self._end(next(iter(self._idle)))

    def drain(self, connection: CallbackConnection) -> None:
        """Give one a little time to end its answer (`Keeper.drain`)."""
        self._draining[connection] = self._loop.time() + DRAIN_SECONDS
        self._sweep_later()

    def lost(self, connection: CallbackConnection) -> None:
        """Forget one that has ended (`Keeper.lost`)."""
        self._draining.pop(connection, None)
        if self._idle.pop(connection, None) is not None:
            others = self._origins[connection.origin]
            others.remove(connection)
            if not others:
                del self._origins[connection.origin]

    def _end(self, connection: CallbackConnection) -> None:
        self.lost(connection)
        connection.abort()

    def _sweep_later(self) -> None:
        if self._sweeping is None and not self._closed:
            self._sweeping = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        now = self._loop.time()
        for group in (self._idle, self._draining):
            while group and (oldest := next(iter(group))) and group[oldest] <= now:
                self._end(oldest)
        if self._idle or self._draining:
            self._sweep_later()

    def close(self) -> None:
        """End all, and keep none from now on."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in [*self._idle, *self._draining]:
            self._end(connection)
