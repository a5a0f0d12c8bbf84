"""Who waits for what, and since when; who waits for too long is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from rsnotify_hub.http.connection_limit import ConnectionLimit

#: How often it is looked who waits for too long, in seconds, and that as a part of the shortest.
_LOOK_SECONDS = 1.0
_LOOK_PART = 0.25


class AwaitedStep(Enum):
    """What a connection waits for."""

    HEAD = auto()
    BODY = auto()
    TAKE = auto()
    IDLE = auto()


class WatchedConnection(Protocol):
    """A connection that may wait."""

    def still_waits(self, wait: AwaitedStep) -> bool:
        """Tell whether what was waited for has not come after all."""
        ...

    def cut_off(self) -> None:
        """End it at once, and free its seat for others."""
        ...


class TimeoutWatch:
    """Who waits for what, and since when.

    Args:
        seconds: How long each may take.
        seats: The places for connections.
        refused: Called for each connection that gets none, or that is cut off.
    """

    def __init__(
        self, seconds: dict[AwaitedStep, float], seats: ConnectionLimit, refused: Callable[[], None]
    ) -> None:
        self.seats = seats
        self.refused = refused
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        # One order for each: who came first has waited longest, and nobody is sorted.
        self._waiting: dict[AwaitedStep, dict[WatchedConnection, float]] = {
            wait: {} for wait in AwaitedStep
        }
        self._every = min(_LOOK_SECONDS, *(each * _LOOK_PART for each in seconds.values()))
        self._look_later()

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def begin(self, waiter: WatchedConnection, wait: AwaitedStep) -> None:
        """Take note that a connection waits."""
        self._waiting[wait].pop(waiter, None)
        self._waiting[wait][waiter] = self._loop.time() + self._seconds[wait]

    def end(self, waiter: WatchedConnection, *waits: AwaitedStep) -> None:
        """Take note that it does not."""
        for wait in waits:
            self._waiting[wait].pop(waiter, None)

    def has_room(self, address: str) -> bool:
        """Tell whether an address gets a seat, for which another may have to leave."""
        if self.seats.has_enough(address):
            return False
        if self.seats.full:
            self._cut_off_longest()
        return not self.seats.full

    def _cut_off_longest(self) -> None:
        """Cut off who has sent nothing useful for the longest time, if anybody has not."""
        for wait in (AwaitedStep.HEAD, AwaitedStep.IDLE):
            waiter = next(iter(self._waiting[wait]), None)
            if waiter is not None:
                waiter.cut_off()
                return

    def _look_later(self) -> None:
        due = self._loop.time() + self._every
        self._timer = self._loop.call_at(due, self._look, due)

    def _look(self, due: float) -> None:
        now = self._loop.time()
        # Where this comes late, it is the hub that was slow: what is waited for may be there.
        if now - due <= self._every / 2:
            self._cut_off_late(now)
        self._look_later()

    def _cut_off_late(self, now: float) -> None:
        for wait, waiters in self._waiting.items():
            late = []
            for waiter, until in waiters.items():
                if until > now:
                    break
                late.append(waiter)
            for waiter in late:
                del waiters[waiter]
                if waiter.still_waits(wait):
                    waiter.cut_off()
