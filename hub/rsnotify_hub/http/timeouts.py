"""Closes connections whose client is too slow with the next step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from rsnotify_hub.http.connection_limit import ConnectionLimit

#: How often timeouts are checked, in seconds, and as a part of the shortest timeout.
_CHECK_SECONDS = 1.0
_CHECK_PART = 0.25


class AwaitedStep(Enum):
    HEAD = auto()
    BODY = auto()
    DRAIN = auto()
    IDLE = auto()


class WatchedConnection(Protocol):
    def still_waits(self, step: AwaitedStep) -> bool:
        """Return whether the step has not happened after all."""
        ...

    def cut_off(self) -> None:
        """Close the connection at once, and free its place for others."""
        ...


class TimeoutWatch:
    """Knows which connections wait for a step, and closes those that wait too long.

    `refused` is called for each connection that is refused or closed.
    """

    def __init__(
        self,
        seconds: dict[AwaitedStep, float],
        limit: ConnectionLimit,
        refused: Callable[[], None],
    ) -> None:
        self.limit = limit
        self.refused = refused
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        # The insertion order of each is that of the deadlines, so nothing is sorted.
        self._deadlines: dict[AwaitedStep, dict[WatchedConnection, float]] = {
            step: {} for step in AwaitedStep
        }
        self._interval = min(_CHECK_SECONDS, *(each * _CHECK_PART for each in seconds.values()))
        self._schedule_check()

    def close(self) -> None:
        self._timer.cancel()

    def begin(self, connection: WatchedConnection, step: AwaitedStep) -> None:
        self._deadlines[step].pop(connection, None)
        self._deadlines[step][connection] = self._loop.time() + self._seconds[step]

    def end(self, connection: WatchedConnection, *steps: AwaitedStep) -> None:
        for step in steps:
            self._deadlines[step].pop(connection, None)

    def admits(self, address: str) -> bool:
        """Return whether an address may connect, after closing another connection if necessary."""
        if self.limit.is_client_full(address):
            return False
        if self.limit.is_full:
            self._cut_off_longest()
        return not self.limit.is_full

    def _cut_off_longest(self) -> None:
        """Close the connection that has sent nothing useful for longest, if there is one."""
        for step in (AwaitedStep.HEAD, AwaitedStep.IDLE):
            connection = next(iter(self._deadlines[step]), None)
            if connection is not None:
                connection.cut_off()
                return

    def _schedule_check(self) -> None:
        due = self._loop.time() + self._interval
        self._timer = self._loop.call_at(due, self._check, due)

    def _check(self, due: float) -> None:
        now = self._loop.time()
        # If this runs late, the hub was slow: the awaited bytes may have arrived unread.
        if now - due <= self._interval / 2:
            self._cut_off_late(now)
        self._schedule_check()

    def _cut_off_late(self, now: float) -> None:
        for step, deadlines in self._deadlines.items():
            late = []
            for connection, deadline in deadlines.items():
                if deadline > now:
                    break
                late.append(connection)
            for connection in late:
                del deadlines[connection]
                if connection.still_waits(step):
                    connection.cut_off()
