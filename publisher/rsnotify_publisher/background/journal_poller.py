"""Noticing what other processes write: one look at every journal, again and again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from rsnotify_publisher.journal import Journal

# Looking may take this part of the time, however many journals there are.
_SHARE = 0.05


class _Watched(Struct, eq=False):
    journal: Journal
    every: float
    wake: Callable[[], None]
    seen: int | None


class JournalPoller:
    """Looks at journals as long as there are some; used in one event loop.

    A process hears of its own changes otherwise, and sooner.
    """

    def __init__(self) -> None:
        self._watched: dict[_Watched, None] = {}
        self._some = asyncio.Event()

    @contextmanager
    def watch(self, journal: Journal, every: float, wake: Callable[[], None]) -> Iterator[None]:
        """Look at a journal, within the context.

        Args:
            journal: The journal.
            every: Seconds until what another process wrote is noticed, at best.
            wake: Called then.
        """
        watched = _Watched(journal, every, wake, journal.data_version())
        self._watched[watched] = None
        self._some.set()
        try:
            yield
        finally:
            del self._watched[watched]

    async def run(self) -> None:
        """Look until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            if not self._watched:
                self._some.clear()
                await self._some.wait()
            began = clock()
            for watched in self._watched:
                _look(watched)
            soonest = min(watched.every for watched in self._watched)
            await asyncio.sleep(max(soonest, (clock() - began) / _SHARE))


def _look(watched: _Watched) -> None:
    try:
        version = watched.journal.data_version()
    except sqlite3.Error:  # whose journal it is finds out by reading it; the others go on
        version = None
    if version is None or version != watched.seen:
        watched.seen = version
        watched.wake()
