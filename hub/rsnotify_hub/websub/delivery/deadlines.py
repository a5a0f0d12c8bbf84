"""Time limits of many requests, which all have the same time: one timer for all of them."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Limited(Protocol):
    """What may take so long."""

    def expire(self) -> None:
        """End it: its time is up."""


class Deadlines:
    """When the time of each is up.

    Args:
        seconds: How long each may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._due: dict[Limited, float] = {}  # in the order in which they are due
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, limited: Limited) -> None:
        """Count the time of one from now on."""
        self._due[limited] = due = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._expire)

    def end(self, limited: Limited) -> None:
        """Let one be: it has ended."""
        self._due.pop(limited, None)

    def _expire(self) -> None:
        self._timer = None
        while self._due:
            first, due = next(iter(self._due.items()))
            if due > self._loop.time():
                self._timer = self._loop.call_at(due, self._expire)
                return
            del self._due[first]
            first.expire()

    def close(self) -> None:
        """Let all be."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
