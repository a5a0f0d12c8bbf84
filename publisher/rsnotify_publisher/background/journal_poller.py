"""Detects writes to journals by other processes, by polling SQLite's data versions."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from rsnotify_publisher.journal import Journal

#: Maximum fraction of the time to spend on polling, regardless of the number of journals.
_MAX_TIME_FRACTION = 0.05


class _PolledJournal(Struct, eq=False):
    journal: Journal
    interval: float
    on_write: Callable[[], None]
    version: int | None

    def poll(self) -> None:
        try:
            version = self.journal.data_version()
        except sqlite3.Error:  # the journal's owner gets the same error when it reads
            version = None
        if version is None or version != self.version:
            self.version = version
            self.on_write()


class JournalPoller:
    """Polls any number of journals in one event loop.

    This is needed only for writes by other processes: `Recorder` reports those of its own process,
    and sooner.
    """

    def __init__(self) -> None:
        self._polled: dict[_PolledJournal, None] = {}
        self._not_empty = asyncio.Event()

    @contextmanager
    def watch(
        self, journal: Journal, interval: float, on_write: Callable[[], None]
    ) -> Iterator[None]:
        """Call `on_write` when another process has written, while the context is active.

        It is also called when the journal cannot be read. `interval` is in seconds.
        """
        polled = _PolledJournal(journal, interval, on_write, journal.data_version())
        self._polled[polled] = None
        self._not_empty.set()
        try:
            yield
        finally:
            del self._polled[polled]

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            if not self._polled:
                self._not_empty.clear()
                await self._not_empty.wait()
            began = clock()
            for polled in self._polled:
                polled.poll()
            shortest = min(polled.interval for polled in self._polled)
            await asyncio.sleep(max(shortest, (clock() - began) / _MAX_TIME_FRACTION))
