"""Notices what other processes write into the journals, by polling their data versions."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from rsnotify_publisher.journal import Journal

# Largest part of the time that goes into polling, however many journals there are.
_SHARE = 0.05


class _PolledJournal(Struct, eq=False):
    journal: Journal
    every: float
    on_write: Callable[[], None]
    version: int | None

    def poll(self) -> None:
        try:
            version = self.journal.data_version()
        except sqlite3.Error:  # the owner of the journal gets the error when it reads
            version = None
        if version is None or version != self.version:
            self.version = version
            self.on_write()


class JournalPoller:
    """Polls any number of journals; used in one event loop.

    Only for the writes of other processes: a process notifies itself of its own, and sooner.
    """

    def __init__(self) -> None:
        self._polled: dict[_PolledJournal, None] = {}
        self._not_empty = asyncio.Event()

    @contextmanager
    def watch(self, journal: Journal, every: float, on_write: Callable[[], None]) -> Iterator[None]:
        """Poll a journal within the context; call `on_write` after another process has written."""
        polled = _PolledJournal(journal, every, on_write, journal.data_version())
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
            soonest = min(polled.every for polled in self._polled)
            await asyncio.sleep(max(soonest, (clock() - began) / _SHARE))
