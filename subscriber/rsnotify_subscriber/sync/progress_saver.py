"""Saving progress that moved without a change being applied."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.sync.actions import Progress
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.sync.applier import Applier

#: How much later a comparison must be to be stored: a digest may be compared every few seconds.
_OFTEN = timedelta(minutes=1)


class ProgressSaver:
    """Stores T, and when the copy was last compared with the whole set.

    Attributes:
        compared: When the copy was last compared, by the local clock.
    """

    def __init__(self, state: DestinationState, worker: Executor, follower: Follower) -> None:
        self._state = state
        self._worker = worker
        self._follower = follower
        self._saved = self._committing = state.progress()
        self.compared = self._stored_compared = state.compared()
        self._followers_compared = follower.compared

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
        if applier.is_applying:
            return
        progress = self._follower.progress
        if progress is not None and progress != self._saved:
            self._saved = progress
            await loop.run_in_executor(self._worker, self._state.save_progress, progress)

    def _is_due(self, compared: Instant, *, is_ending: bool) -> bool:
        stored = self._stored_compared
        return stored is None or is_ending or compared - stored > _OFTEN
