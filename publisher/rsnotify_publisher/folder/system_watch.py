"""Hearing of changes in any number of folders from the system, which gives watches sparingly."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Set
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Protocol

from watchfiles import Change, awatch

from rsnotify.sync.retry import Retry
from rsnotify_publisher.groups import first_cause

_log = logging.getLogger("rsnotify.source")

# Milliseconds: how long a burst of reports is gathered, and the quiet that ends it sooner.
_GATHER = 40
_QUIET = 5
# Milliseconds after which it is looked whether all folders are still there.
_LOOK_AGAIN = 5_000
# Seconds.
_RETRY = Retry(first=0.2, most=60.0)


class FolderListener(Protocol):
    """Who wants to hear of a folder."""

    def hear(self, changes: Iterable[tuple[Change, Path]]) -> None:
        """Take what the system reports."""

    def miss(self) -> None:
        """Take note that something may not have been reported."""


class SystemWatch:
    """One watch over all folders, as each system process may have only some dozens.

    Args:
        listeners: Who wants to hear, by the folder.
    """

    def __init__(self, listeners: Mapping[Path, FolderListener]) -> None:
        self._listeners = listeners
        self._random = Random()

    async def run(self) -> None:
        """Listen until cancelled; the first turn of the loop installs the watch.

        What breaks it, such as a name that is no text, is got over.
        """
        failures = 0
        while True:
            try:
                async for changes in self._watch(self._folders()):
                    failures = 0
                    self._tell(changes)
            except (OSError, RuntimeError, ExceptionGroup) as error:
                _log.warning(
                    "watching %s was interrupted; all is compared instead: %s",
                    self._named(),
                    first_cause(error),
                )
            failures += 1
            await asyncio.sleep(_RETRY.delay(failures, self._random))
            # It is being watched again before a comparison gets its turn of the loop.
            for listener in self._listeners.values():
                listener.miss()

    async def _watch(self, there: Set[Path]) -> AsyncIterator[set[tuple[Change, str]]]:
        """Give what is reported, until a folder comes or goes."""
        watching = awatch(
            *there,
            watch_filter=None,
            debounce=_GATHER,
            step=_QUIET,
            rust_timeout=_LOOK_AGAIN,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )
        clock = asyncio.get_running_loop().time
        due = clock() + _LOOK_AGAIN / 1000
        async with aclosing(watching):
            async for changes in watching:
                if changes:
                    yield changes
                if clock() >= due:  # where others are never quiet, too
                    if self._folders() != there:
                        return
                    due = clock() + _LOOK_AGAIN / 1000

    def _folders(self) -> set[Path]:
        # This raises nothing: one folder that cannot be looked at must not end the watch over all.
        return {folder for folder in self._listeners if os.path.isdir(folder)}

    def _tell(self, changes: Iterable[tuple[Change, str]]) -> None:
        """Tell each what is of its folder; one may be in a hidden folder of another."""
        of_each: dict[Path, list[tuple[Change, Path]]] = {}
        for change, name in changes:
            path = Path(name)
            for folder in (path, *path.parents):
                if folder in self._listeners:
                    of_each.setdefault(folder, []).append((change, path))
        for folder, told in of_each.items():
            self._listeners[folder].hear(told)

    def _named(self) -> str:
        first = next(iter(self._listeners), None)
        more = len(self._listeners) - 1
        return f"{first} and {more} other folders" if more else str(first)
