"""The limit on the cost of a patch."""

from __future__ import annotations

from time import thread_time

from rsnotify.errors import PatchError

#: Maximum number of nodes that the operations of a patch may visit or copy in total, which also
#: limits memory.
MAX_NODES = 2_000_000
#: Maximum CPU time. A patch that takes longer than a GET does not pay off.
MAX_SECONDS = 2.0
#: Number of nodes between checks of the time.
_NODES_PER_CHECK = 1_000


class PatchBudget:
    """The maximum cost of a patch: visited nodes, and CPU seconds of the thread.

    Its methods raise `PatchError` when the budget is exceeded.
    """

    def __init__(self, nodes: int = MAX_NODES, seconds: float = MAX_SECONDS) -> None:
        self._left = nodes
        self._end = thread_time() + seconds
        self._checked = nodes

    def begin(self) -> None:
        """Charge the budget for an operation, even if it visits no nodes."""
        self.spend()
        self._check_time()

    def spend(self, nodes: int = 1) -> None:
        self._left -= nodes
        if self._left < self._checked - _NODES_PER_CHECK:
            self._check_time()

    def _check_time(self) -> None:
        self._checked = self._left
        if self._left < 0 or thread_time() > self._end:
            raise PatchError("applying it takes longer than fetching the resource")
