"""Whether the files of the state still exist: a folder may be unmounted, removed or replaced.

A folder is identified by its device and inode. Where these have changed, as after a copy to a new
disk, every file is looked up; where they have not, a few are. If the state was restored from a
backup, the files may be of a later time, so every file is compared with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import islice
from pathlib import Path

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.sync.fallback_order import resource_documents
from rsnotify_subscriber.fetching.digests import Digester, agree
from rsnotify_subscriber.handlers import LocatedHandler
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.identity import Identity

logger = logging.getLogger("rsnotify.subscriber")

#: How many files are looked up in a folder that is the same as in the last run.
_SAMPLE = 16
#: Seconds between two checks of the folder.
_INTERVAL = 5.0


def check_files(handler: object, state: DestinationState, identity: Identity) -> None:
    """Check that the files of a `LocatedHandler` exist; this blocks on the disk.

    Where some are missing, the state marks them to be fetched, and everything to be compared. It is
    a `ConfigurationError` if all are missing, or some that could not be found in any list, or if a
    place that was not used before has other files.
    """
    restored = state.is_restored
    if not isinstance(handler, LocatedHandler):
        if restored:
            logger.warning("the state was restored from a backup; everything is fetched again")
            state.invalidate()
        return
    if handler.place == identity.place and not restored:
        sample = list(islice(state.held_uris(), _SAMPLE))
        if all(handler.held_content(uri) is not None for uri in sample):
            return
    paths, missing = set[str](), []
    for uri in state.held_uris():
        if (path := handler.held_content(uri)) is None:
            missing.append(uri)
        else:
            paths.add(str(path))
    if missing and (len(missing) == state.resources or not resource_documents(identity.offer)):
        raise ConfigurationError(_lost(state, len(missing), f", as that of {missing[0]}"))
    if missing:
        logger.warning(
            "%d files are missing, as that of %s; they are fetched again", len(missing), missing[0]
        )
    if restored:
        with state.transactions.storage_errors():
            _compare_files(handler, state, missing)
        return
    # Their changes were about to be applied at a crash; they are fetched.
    unknown = map(handler.held_content, state.unknown_uris())
    paths.update(str(path) for path in unknown if path is not None)
    is_new = handler.place != identity.place
    if is_new and (other := next(handler.others(paths), None)) is not None:
        raise ConfigurationError(
            f"{other} is not part of the copy that {state.database.name} describes; remove "
            "all such files from its folder, or choose another folder"
            if state.resources
            else f"the folder of a first copy must be empty, and it contains {other}; remove its "
            "files, or choose another folder. If they are a copy that was made earlier, restore "
            f"its state, {state.database.name}"
        )
    if missing:
        state.invalidate(missing)


def _compare_files(
    handler: LocatedHandler, state: DestinationState, missing: Sequence[str]
) -> None:
    """Mark files with other content than in a restored state, and remove those it does not have."""
    paths, differing = set(), []
    for uri in state.held_uris():
        path, held = handler.held_content(uri), state.find(uri)
        if path is not None and held is not None:
            paths.add(str(path))
            if not agree(held.hash, _hashes(path, held.hash)):
                differing.append(uri)
    removed = handler.keep_only(paths)
    logger.warning(
        "the state was restored from a backup: %d files that differ from it are fetched again, "
        "%d that it does not have were removed, and everything is compared with the Source",
        *(len(differing), removed),
    )
    state.invalidate([*missing, *differing])


def _hashes(path: Path, announced: str | None) -> str:
    digester = Digester(announced)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digester.update(chunk)
    return digester.hashes


def check_location(handler: object, state: DestinationState) -> None:
    """Refuse a state with resources whose files have no place, before one is made."""
    if isinstance(handler, LocatedHandler) and state.resources and not handler.place:
        raise ConfigurationError(_lost(state, state.resources))


def _lost(state: DestinationState, missing: int, example: str = "") -> str:
    return (
        f"the copy lacks {missing} of the {state.resources} files that it should have according "
        f"to {state.database.name}{example}; mount or restore the folder of the copy, or remove "
        f"the folder and {state.database.name} to copy everything again"
    )


class PresenceCheck:
    """Checks at intervals whether the place of a `LocatedHandler` is still the same."""

    def __init__(self, handler: object, worker: Executor) -> None:
        self._handler = handler if isinstance(handler, LocatedHandler) else None
        self._worker = worker
        self._place = self._handler.place if self._handler else ""

    async def check(self) -> None:
        """Raise `StorageError` if the place is another, or does not exist."""
        if await self._is_lost():
            raise StorageError(
                "the folder of the copy was removed, unmounted or replaced while it was followed"
            )

    async def run(self, lost: Callable[[], None]) -> None:
        """Call `lost` once the place is another; then return."""
        while not await self._is_lost():  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(_INTERVAL)
        lost()

    async def _is_lost(self) -> bool:
        handler = self._handler
        if handler is None:
            return False
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, lambda: handler.place) != self._place
