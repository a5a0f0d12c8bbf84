"""Watches folders, and publishes their changes.

Changes that the operating system reports are examined at once. Reports can be missed, for example
if a file is written before its new folder is watched, or if a queue overflows. The whole folder is
therefore also compared with the journal at intervals, in slices, and reports are examined between
slices.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import Executor
from contextlib import aclosing
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeVar

from watchfiles import Change, awatch

from rsnotify.errors import RsnotifyError
from rsnotify.runtime.tasks import first_cause, wait_for_event
from rsnotify.sync.retry import Retry
from rsnotify_publisher.changes import Record
from rsnotify_publisher.folder.file_names import FileNames
from rsnotify_publisher.folder.scanner import FolderScanner
from rsnotify_publisher.publisher import Publisher

T = TypeVar("T")

logger = logging.getLogger("rsnotify.source")

#: Seconds after which a path is examined again: a new folder, or a file that is being written.
_REEXAMINE_AFTER = 0.2
#: Minimum number of seconds between two comparisons of the whole folder.
_COMPARE_INTERVAL = 60.0
#: Duration of a slice of a comparison, in seconds.
_SLICE_DURATION = 0.02
#: Maximum fraction of the time to spend on comparisons.
_MAX_TIME_FRACTION = 0.05


class FolderWatcher:
    """Records the changes of a folder that `SystemWatch` reports.

    Files are read in the executor, so that the event loop never waits for a disk. The executor must
    run one task at a time; it is shut down at the end.
    """

    def __init__(self, names: FileNames, publisher: Publisher, executor: Executor) -> None:
        self._names = names
        self._publisher = publisher
        self._executor = executor
        self._lock = asyncio.Lock()
        self._paths: set[Path] = set()
        self._reported = asyncio.Event()
        self._missed = asyncio.Event()

    async def run(self, on_compared: Callable[[], None]) -> None:
        """Publish until cancelled. `SystemWatch` must already be running.

        `on_compared` is called when all earlier changes have been recorded.
        """
        journal = await self._in_thread(self._publisher.source.open_journal)
        self._scanner = FolderScanner(self._names, journal)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._examine())
                await self._publish(self._scanner.compare(self._names.root))
                on_compared()
                await self._compare_regularly()
        finally:
            await self._in_thread(journal.close)
            self._executor.shutdown()

    def on_changes(self, changes: Iterable[tuple[Change, Path]]) -> None:
        for change, path in changes:
            self._report(path)
            if change is Change.added and os.path.isdir(path):
                # Files created in the folder before it was watched are not reported.
                self._report_later(path)

    def on_missed(self) -> None:
        """Compare the whole folder soon, since changes may not have been reported."""
        self._missed.set()

    def _report(self, path: Path) -> None:
        self._paths.add(path)
        self._reported.set()

    def _report_later(self, path: Path) -> None:
        asyncio.get_running_loop().call_later(_REEXAMINE_AFTER, self._report, path)

    async def _examine(self) -> None:
        while True:
            await self._reported.wait()
            self._reported.clear()
            paths, self._paths = self._paths, set()
            await self._publish(self._scanner.examine(paths))

    async def _compare_regularly(self) -> None:
        pause = _COMPARE_INTERVAL
        while True:
            await wait_for_event(self._missed, pause)
            self._missed.clear()
            began = time.monotonic()
            await self._publish(self._scanner.compare(self._names.root))
            pause = max(_COMPARE_INTERVAL, (time.monotonic() - began) / _MAX_TIME_FRACTION)

    async def _publish(self, found: Iterator[Record | None]) -> None:
        while not await self._publish_slice(found):
            pass

    async def _publish_slice(self, found: Iterator[Record | None]) -> bool:
        """Record one slice of the changes. Return whether it was the last."""
        async with self._lock:
            try:
                records, is_last = await self._in_thread(lambda: self._next_slice(found))
                if records:
                    await self._publisher.arecord(records)
            except RsnotifyError as error:
                logger.error("changes could not be recorded; retrying: %s", error)
                return True
        for path in self._scanner.still_changing:
            self._report_later(path)
        self._scanner.still_changing.clear()
        return is_last

    def _next_slice(self, found: Iterator[Record | None]) -> tuple[list[Record], bool]:
        until = time.monotonic() + _SLICE_DURATION
        records: list[Record] = []
        is_last = True
        for record in found:
            if record is not None:
                records.append(record)
            if time.monotonic() > until:
                is_last = False
                break
        self._scanner.save_validators()
        return records, is_last

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


#: How long to gather reports, and the pause between reports that ends this early, in milliseconds.
_GATHER_DURATION, _GATHER_PAUSE = 40, 5
#: Milliseconds between two checks whether all folders exist.
_FOLDER_CHECK_INTERVAL = 5_000
_RETRY = Retry(first=0.2, most=60.0)
#: Part of watchfiles' message when the system's limit for watched folders is reached.
_WATCH_LIMIT_MESSAGE = "watch limit"


class SystemWatch:
    """A watch for all folders, since the system allows a process only a few dozen watches."""

    def __init__(self, listeners: Mapping[Path, FolderWatcher]) -> None:
        self._listeners = listeners
        self._random = Random()
        #: Whether to ignore folders that cannot be watched, and leave them to the comparisons.
        #: watchfiles then does not report them, so the first attempt fails if there are any.
        self._is_partial = False

    async def run(self) -> None:
        """Watch until cancelled. The watch is installed in the first iteration of the event loop.

        After an error, for example a file name that cannot be decoded, watching restarts.
        """
        failures = 0
        while True:
            try:
                async for changes in self._watch(self._folders()):
                    failures = 0
                    self._notify(changes)
            except (OSError, RuntimeError, ExceptionGroup) as error:
                is_full = _WATCH_LIMIT_MESSAGE in str(error)
                if not self._is_partial and (is_full or isinstance(error, PermissionError)):
                    self._is_partial = True
                    if is_full:
                        self._warn_of_limit()
                    continue
                logger.warning(
                    "watching %s was interrupted; comparing all files instead: %s",
                    self._described(),
                    first_cause(error),
                )
            failures += 1
            await asyncio.sleep(_RETRY.delay(failures, self._random))
            # Watching restarts before a comparison begins.
            for listener in self._listeners.values():
                listener.on_missed()

    async def _watch(self, folders: Set[Path]) -> AsyncIterator[set[tuple[Change, str]]]:
        """Yield the reported changes until one of the watched folders is created or deleted."""
        watching = awatch(
            *folders,
            watch_filter=None,
            debounce=_GATHER_DURATION,
            step=_GATHER_PAUSE,
            rust_timeout=_FOLDER_CHECK_INTERVAL,
            yield_on_timeout=True,
            ignore_permission_denied=self._is_partial,
        )
        clock = asyncio.get_running_loop().time
        due = clock() + _FOLDER_CHECK_INTERVAL / 1000
        created = ""
        async with aclosing(watching):
            async for changes in watching:
                if changes:
                    yield changes
                    added = (path for change, path in changes if change is Change.added)
                    created = next(filter(os.path.isdir, added), created)
                if clock() >= due:  # even while other folders change constantly
                    if self._folders() != folders:
                        return
                    if created and not self._is_partial:
                        await self._check_limit(created)
                    created = ""
                    due = clock() + _FOLDER_CHECK_INTERVAL / 1000

    async def _check_limit(self, created: str) -> None:
        """Warn if a new folder cannot be watched, which watchfiles itself does not report."""
        another = awatch(created, recursive=False, rust_timeout=1, yield_on_timeout=True)
        try:
            async with aclosing(another):
                await anext(another)
        except (OSError, RuntimeError) as error:  # or the folder has been deleted
            if _WATCH_LIMIT_MESSAGE in str(error):
                self._is_partial = True
                self._warn_of_limit()

    def _warn_of_limit(self) -> None:
        logger.warning(
            "%s has more folders than the system can watch; changes in the others are found only "
            "by comparing, every %g seconds or less often; raise fs.inotify.max_user_watches "
            "(sysctl), and restart",
            self._described(),
            _COMPARE_INTERVAL,
        )

    def _folders(self) -> set[Path]:
        # isdir never raises: a single inaccessible folder must not end the watch for all of them.
        return {folder for folder in self._listeners if os.path.isdir(folder)}

    def _notify(self, changes: Iterable[tuple[Change, str]]) -> None:
        """Notify each listener of the changes in its folder.

        The folder may be inside a hidden folder of another listener's folder.
        """
        by_folder: dict[Path, list[tuple[Change, Path]]] = {}
        resolved = cache(os.path.realpath)  # many changes are in one folder
        for change, name in changes:
            # The target of a symbolic link may be reported under either name.
            above, last = os.path.split(name)
            path = Path(resolved(above), last)
            for folder in (path, *path.parents):
                if folder in self._listeners:
                    by_folder.setdefault(folder, []).append((change, path))
        for folder, found in by_folder.items():
            self._listeners[folder].on_changes(found)

    def _described(self) -> str:
        first = next(iter(self._listeners), None)
        more = len(self._listeners) - 1
        return f"{first} and {more} other folders" if more else str(first)
