"""Watches any number of folders by one watch of the operating system, which allows only a few."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Set
from contextlib import aclosing
from pathlib import Path
from random import Random

from watchfiles import Change, awatch

from rsnotify.runtime.tasks import first_cause
from rsnotify.sync.retry import Retry
from rsnotify_publisher.folder.watcher import FolderWatcher

_log = logging.getLogger("rsnotify.source")

# Milliseconds: how long a burst of reports is gathered, and the quiet that ends it sooner.
_GATHER = 40
_QUIET = 5
# Milliseconds between two checks that all folders exist.
_CHECK_FOLDERS_EVERY = 5_000
# Seconds.
_RETRY = Retry(first=0.2, most=60.0)


class SystemWatch:
    """One watch over all folders, since the system allows a process only some dozens."""

    def __init__(self, listeners: Mapping[Path, FolderWatcher]) -> None:
        self._listeners = listeners
        self._random = Random()

    async def run(self) -> None:
        """Watch until cancelled; the first iteration of the event loop installs the watch.

        After an error, such as a name that is not text, the folders are watched again.
        """
        failures = 0
        while True:
            try:
                async for changes in self._watch(self._folders()):
                    failures = 0
                    self._notify(changes)
            except (OSError, RuntimeError, ExceptionGroup) as error:
                _log.warning(
                    "watching %s was interrupted; all is compared instead: %s",
                    self._named(),
                    first_cause(error),
                )
            failures += 1
            await asyncio.sleep(_RETRY.delay(failures, self._random))
            # The folders are watched again before a comparison begins.
            for listener in self._listeners.values():
                listener.on_missed()

    async def _watch(self, folders: Set[Path]) -> AsyncIterator[set[tuple[Change, str]]]:
        """Yield the reported changes, until a folder is created or deleted."""
        watching = awatch(
            *folders,
            watch_filter=None,
            debounce=_GATHER,
            step=_QUIET,
            rust_timeout=_CHECK_FOLDERS_EVERY,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )
        clock = asyncio.get_running_loop().time
        due = clock() + _CHECK_FOLDERS_EVERY / 1000
        async with aclosing(watching):
            async for changes in watching:
                if changes:
                    yield changes
                if clock() >= due:  # also while other folders change all the time
                    if self._folders() != folders:
                        return
                    due = clock() + _CHECK_FOLDERS_EVERY / 1000

    def _folders(self) -> set[Path]:
        # This raises nothing: one folder that is not accessible must not end the watch over all.
        return {folder for folder in self._listeners if os.path.isdir(folder)}

    def _notify(self, changes: Iterable[tuple[Change, str]]) -> None:
        """Notify each listener of its folder, which may be in a hidden folder of another."""
        of_each: dict[Path, list[tuple[Change, Path]]] = {}
        for change, name in changes:
            path = Path(name)
            for folder in (path, *path.parents):
                if folder in self._listeners:
                    of_each.setdefault(folder, []).append((change, path))
        for folder, found in of_each.items():
            self._listeners[folder].on_changes(found)

    def _named(self) -> str:
        first = next(iter(self._listeners), None)
        more = len(self._listeners) - 1
        return f"{first} and {more} other folders" if more else str(first)
