"""Whether what a state says is held is still there: a folder may be unmounted, removed or replaced.

A folder is told from another by its device and inode. Where these have changed, as after a copy to
a new disk, every file is looked for; where they have not, a few are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import islice
from pathlib import Path
from typing import Protocol, runtime_checkable

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.sync.fallback_order import resource_documents
from rsnotify_subscriber.state import Identity, State

logger = logging.getLogger("rsnotify.subscriber")

#: How many files are looked at in a folder that is the same as in the last run.
_SAMPLE = 16
#: Seconds between two looks at whether the folder is still there.
_LOOK_EVERY = 5.0


@runtime_checkable
class Placed(Protocol):
    """A handler that holds resources in a place that may be lost."""

    @property
    def place(self) -> str:
        """What tells the place from another; empty if it is not there."""

    def held_content(self, uri: str) -> Path | None:
        """Return the file of a resource, if there is one."""


def check_held(handler: object, state: State, identity: Identity) -> None:
    """Check that the files are there which a state says are held; it blocks on the disk.

    Where some are missing, the state forgets them, and everything is due to be compared.

    Args:
        handler: Holds them; one that is not `Placed` is not checked.
        state: The state.
        identity: Where they were in the last run, and what the Source offers.

    Raises:
        ConfigurationError: All are missing, or some that could not be found in any list.
    """
    if not isinstance(handler, Placed) or not state.resources:
        return
    held = state.uris_held()
    if handler.place == identity.place:
        sample = list(islice(held, _SAMPLE))
        if all(handler.held_content(uri) is not None for uri in sample):
            return
    missing = [uri for uri in state.uris_held() if handler.held_content(uri) is None]
    if not missing:
        return
    if len(missing) == state.resources or not resource_documents(identity.offer):
        raise ConfigurationError(_lost(state, len(missing), f", as that of {missing[0]}"))
    logger.warning(
        "%d files are missing, as that of %s; they are fetched again", len(missing), missing[0]
    )
    state.forget(missing)


def check_there(handler: object, state: State) -> None:
    """Check that there is a place at all, before one is made; it blocks on the disk.

    Raises:
        ConfigurationError: There is none, though resources are held there.
    """
    if isinstance(handler, Placed) and state.resources and not handler.place:
        raise ConfigurationError(_lost(state, state.resources))


def _lost(state: State, missing: int, example: str = "") -> str:
    return (
        f"the copy lacks {missing} of the {state.resources} files that it should have according "
        f"to {state.name}{example}; mount or restore the folder of the copy, or remove that state "
        "to copy everything again"
    )


class Watch:
    """Looks from time to time whether the place of a handler is still the same.

    Args:
        handler: The handler; one that is not `Placed` is not watched.
        worker: Runs what blocks on the disk.
    """

    def __init__(self, handler: object, worker: Executor) -> None:
        self._handler = handler if isinstance(handler, Placed) else None
        self._worker = worker
        self._place = self._handler.place if self._handler else ""

    async def check(self) -> None:
        """Check once.

        Raises:
            StorageError: It is another, or not there.
        """
        if await self._is_lost():
            raise StorageError(
                "the folder of the copy was removed, unmounted or replaced while it was followed"
            )

    async def run(self, lost: Callable[[], None]) -> None:
        """Call `lost` once it is another; then return."""
        while not await self._is_lost():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(_LOOK_EVERY)
        lost()

    async def _is_lost(self) -> bool:
        handler = self._handler
        if handler is None:
            return False
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, lambda: handler.place) != self._place
