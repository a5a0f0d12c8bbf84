"""Saving progress that moved without a change being applied, and flushing what was applied."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from math import inf

from rsnotify.errors import StorageError
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.sync.actions import Progress
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.handlers import deferred_handler
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.sync.applier import Applier

#: How much later a comparison must be to be stored: a digest may be compared every few seconds.
_OFTEN = timedelta(minutes=1)
#: Seconds between two flushes of what a handler has applied and not flushed.
_FLUSH = 5.0


class ProgressSaver:
    """Stores T, and when the copy was last compared with the whole set.

    Attributes:
        compared: When the copy was last compared, by the local clock.
    """

    def __init__(
        self, state: DestinationState, worker: Executor, follower: Follower, handler: object
    ) -> None:
        self._state = state
        self._worker = worker
        self._follower = follower
        self._saved = self._committing = state.progress()
        self.compared = self._stored_compared = state.compared()
        self._followers_compared = follower.compared
        self._deferred = deferred_handler(handler)
        self._flushed_at = -inf

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        """Return the progress to commit together with changes; None if it did not move."""
        self._committing = self._follower.progress_after(changes)
        return None if self._committing == self._saved else self._committing

    def committed(self) -> None:
        """Note that the last result of `progress_after` was committed."""
        self._saved = self._committing

    def forget(self) -> None:
        """Note that the stored progress was deleted."""
        self._saved = self._committing = None

    def check_compared(self) -> None:
        """Note the time if the follower has just compared the copy with the whole set."""
        if self._follower.compared != self._followers_compared:
            self._followers_compared = self._follower.compared
            self.compared = datetime.now(UTC)

    async def save(self, applier: Applier, *, is_ending: bool) -> None:
        """Store everything that has changed, but the time of a comparison only if it is due.

        While the applier is applying changes, a later progress is about to be committed with them.
        """
        loop = asyncio.get_running_loop()
        if self.compared is not None and self._is_due(self.compared, is_ending=is_ending):
            self._stored_compared = self.compared
            await loop.run_in_executor(self._worker, self._state.store_compared, self.compared)
        await self._flush(is_ending=is_ending)
        if applier.is_applying:
            return
        if self._state.contents.has_flushed:
            await loop.run_in_executor(self._worker, self._state.delete_flushed)
        progress, before = self._follower.progress, self._saved
        if progress is not None and progress != before:
            await loop.run_in_executor(self._worker, self._state.save_progress, progress)
            if self._saved is before:  # else a later one was committed or deleted meanwhile
                self._saved = progress

    async def _flush(self, *, is_ending: bool) -> None:
        """Flush what was applied and not flushed, beside what is being applied meanwhile."""
        contents, loop = self._state.contents, asyncio.get_running_loop()
        is_due = is_ending or loop.time() - self._flushed_at >= _FLUSH
        if self._deferred is None or contents.is_flushed or not is_due:
            return
        last = contents.last
        try:
            await asyncio.to_thread(self._deferred.flush)
        except OSError as error:
            raise StorageError(f"{error.filename or 'the copy'}: {error.strerror}") from error
        contents.set_flushed(last)
        self._flushed_at = loop.time()

    def _is_due(self, compared: Instant, *, is_ending: bool) -> bool:
        stored = self._stored_compared
        return stored is None or is_ending or compared - stored > _OFTEN
