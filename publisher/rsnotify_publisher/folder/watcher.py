"""Publishing a folder as it changes.

What the system reports is examined at once. Since reports can be missed (a file written
before its new folder is watched, a queue that overflows), the whole folder is also compared
with the journal now and then, in slices, so that reports need not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from watchfiles import Change

from rsnotify.errors import RsnotifyError
from rsnotify_publisher.changes import Record
from rsnotify_publisher.folder.file_names import FileNames
from rsnotify_publisher.folder.scanner import FolderScanner
from rsnotify_publisher.publisher import Publisher

T = TypeVar("T")

_log = logging.getLogger("rsnotify.source")

# Seconds.
_AGAIN_AFTER = 0.2
_COMPARE_EVERY = 60.0
_SLICE = 0.02
# Comparing may take this part of the time.
_SHARE = 0.05


class FolderWatcher:
    """Publishes the changes of a folder, of which it is told.

    Args:
        names: The folder and its URIs.
        publisher: Records the changes; started by the caller.
        turns: Looks at files, one thing after the other, so that the event loop never waits for
            a disk. It is shut down at the end.
    """

    def __init__(self, names: FileNames, publisher: Publisher, turns: Executor) -> None:
        self._names = names
        self._publisher = publisher
        self._turns = turns
        self._turn = asyncio.Lock()
        self._paths: set[Path] = set()
        self._reported = asyncio.Event()
        self._missed = asyncio.Event()

    async def run(self, on_compared: Callable[[], None]) -> None:
        """Publish until cancelled. To be begun when the folder is watched already.

        Args:
            on_compared: Called when everything that changed before has been recorded.
        """
        journal = await self._in_thread(self._publisher.source.open_journal)
        self._scanner = FolderScanner(self._names, journal)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._examine())
                await self._compare()
                on_compared()
                await self._compare_regularly()
        finally:
            await self._in_thread(journal.close)
            self._turns.shutdown()

    def hear(self, changes: Iterable[tuple[Change, Path]]) -> None:
        """Take what the system reports, soon."""
        for change, path in changes:
            self._report(path)
            if change is Change.added and os.path.isdir(path):
                # What was put into it before it was watched is not reported.
                self._report_later(path)

    def miss(self) -> None:
        """Compare the folder, since something may not have been reported."""
        self._missed.set()

    def _report(self, path: Path) -> None:
        self._paths.add(path)
        self._reported.set()

    def _report_later(self, path: Path) -> None:
        asyncio.get_running_loop().call_later(_AGAIN_AFTER, self._report, path)

    async def _examine(self) -> None:
        while True:
            await self._reported.wait()
            self._reported.clear()
            paths, self._paths = self._paths, set()
            found = self._scanner.examine(paths)
            while not await self._publish(found):
                pass

    async def _compare_regularly(self) -> None:
        pause = _COMPARE_EVERY
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._missed.wait()
            self._missed.clear()
            began = time.monotonic()
            await self._compare()
            pause = max(_COMPARE_EVERY, (time.monotonic() - began) / _SHARE)

    async def _compare(self) -> None:
        found = self._scanner.compare(self._names.root)
        while not await self._publish(found):
            pass

    async def _publish(self, found: Iterator[Record | None]) -> bool:
        """Record a slice of what is found; True at the end."""
        async with self._turn:
            try:
                records, ended = await self._in_thread(lambda: self._take(found))
                if records:
                    await self._publisher.arecord(records)
            except RsnotifyError as error:
                _log.error("changes could not be recorded, and are looked for again: %s", error)
                return True
        for path in self._scanner.unsettled:
            self._report_later(path)
        self._scanner.unsettled.clear()
        return ended

    def _take(self, found: Iterator[Record | None]) -> tuple[list[Record], bool]:
        until = time.monotonic() + _SLICE
        records: list[Record] = []
        ended = True
        for record in found:
            if record is not None:
                records.append(record)
            if time.monotonic() > until:
                ended = False
                break
        self._scanner.note_validators()
        return records, ended

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._turns, work)
