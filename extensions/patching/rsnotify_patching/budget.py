"""The limit on the cost of one patch."""

from __future__ import annotations

from time import thread_time

from rsnotify.errors import PatchError

#: Maximum number of nodes that all operations of a patch together may visit or copy, which bounds
#: memory, and maximum seconds of CPU time. A patch should save time: one that takes longer than a
#: GET is not worth it.
WORK = 2_000_000
SECONDS = 2.0
#: Number of nodes between two checks of the time.
_STRETCH = 1_000


class PatchBudget:
    """The maximum cost of a patch: visited nodes, and CPU seconds of the thread.

    Its methods raise `PatchError` when the budget is exceeded.
    """

    def __init__(self, work: int = WORK, seconds: float = SECONDS) -> None:
        self._left = work
        self._end = thread_time() + seconds
        self._checked = work

    def begin(self) -> None:
        """Charge the budget for an operation, regardless of how few nodes it visits."""
        self.spend()
        self._check_time()

    def spend(self, nodes: int = 1) -> None:
        self._left -= nodes
        if self._left < self._checked - _STRETCH:
            self._check_time()

    def _check_time(self) -> None:
        self._checked = self._left
        if self._left < 0 or thread_time() > self._end:
            raise PatchError("it takes more work than fetching the resource would")
