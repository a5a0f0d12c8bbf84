"""Idle connections, kept for the next request: a bounded number, for a bounded time."""

from __future__ import annotations

import asyncio

from rsnotify.runtime.http.connection import HttpConnection, HttpOrigin

#: How long a connection waits for the next request, in seconds.
IDLE_SECONDS = 30.0

#: How long the rest of a response may take, in seconds.
DRAIN_SECONDS = 2.0

#: How many idle connections are kept, in all and of one origin.
IDLE = 1000
IDLE_PER_ORIGIN = 50

_SWEEP_SECONDS = 1.0


class ConnectionPool:
    """The connections that no request uses (a `ConnectionOwner`)."""

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
        self._origins: dict[HttpOrigin, list[HttpConnection]] = {}
        # In the order of the times, given as values, at which they are closed.
        self._idle: dict[HttpConnection, float] = {}
        self._draining: dict[HttpConnection, float] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._idle)

    def acquire(self, origin: HttpOrigin) -> HttpConnection | None:
        """Remove and return the connection to an origin that was used last, if there is one."""
        found = self._origins.get(origin)
        if not found:
            return None
        connection = found.pop()
        if not found:
            del self._origins[origin]
        del self._idle[connection]
        return connection

    def keep(self, connection: HttpConnection) -> None:
        self._draining.pop(connection, None)
        others = self._origins.get(connection.origin)
        if others is None:
            others = self._origins[connection.origin] = []
        others.append(connection)
        self._idle[connection] = self._loop.time() + self._seconds
        if self._sweep_timer is None:
            self._schedule_sweep()
        if self._closed or len(others) > self._per_origin:
            self._abort(connection)
        elif len(self._idle) > self._most:
            self._abort(next(iter(self._idle)))

    def drain(self, connection: HttpConnection) -> None:
        self._draining[connection] = self._loop.time() + DRAIN_SECONDS
        self._schedule_sweep()

    def lost(self, connection: HttpConnection) -> None:
        self._draining.pop(connection, None)
        if self._idle.pop(connection, None) is not None:
            others = self._origins[connection.origin]
            others.remove(connection)
            if not others:
                del self._origins[connection.origin]

    def _abort(self, connection: HttpConnection) -> None:
        self.lost(connection)
        connection.abort()

    def _schedule_sweep(self) -> None:
        if self._sweep_timer is None and not self._closed:
            self._sweep_timer = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now = self._loop.time()
        for group in (self._idle, self._draining):
            while group and (oldest := next(iter(group))) and group[oldest] <= now:
                self._abort(oldest)
        if self._idle or self._draining:
            self._schedule_sweep()

    def close(self) -> None:
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in [*self._idle, *self._draining]:
            self._abort(connection)
