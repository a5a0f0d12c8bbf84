"""Why a patch cannot be applied."""

from __future__ import annotations

from time import thread_time

from rsnotify.errors import InvalidDocument

#: Nodes that all operations of one patch together may look at or copy, which bounds memory, and
#: seconds of CPU that they may take. A patch is there to save time: one that takes longer than a
#: GET would is not worth it.
WORK = 2_000_000
SECONDS = 2.0
#: How much work is done between two looks at the time.
_STRETCH = 1_000


class PatchError(InvalidDocument):
    """A patch that is none, or is not one of this content.

    Args:
        reason: What is wrong.
        condition: The name that RFC 5261 §5 has for it, for a patch of XML.
    """

    def __init__(self, reason: str, condition: str = "invalid-patch-directive") -> None:
        super().__init__(reason)
        self.condition = condition


class PatchBudget:
    """What a patch may cost.

    Args:
        work: Nodes that may be looked at.
        seconds: CPU time that the thread may take.
    """

    def __init__(self, work: int = WORK, seconds: float = SECONDS) -> None:
        self._left = work
        self._end = thread_time() + seconds
        self._checked = work

    def begin(self) -> None:
        """Account for an operation, however little it looks at.

        Raises:
            PatchError: Those before it took too long.
        """
        self.spend()
        self._check_time()

    def spend(self, nodes: int = 1) -> None:
        """Account for looking at nodes.

        Raises:
            PatchError: There were too many, or they took too long.
        """
        self._left -= nodes
        if self._left < self._checked - _STRETCH:
            self._check_time()

    def _check_time(self) -> None:
        self._checked = self._left
        if self._left < 0 or thread_time() > self._end:
            raise PatchError("it takes more work than fetching the resource would")
