"""Why a patch cannot be applied."""

from __future__ import annotations

from rsnotify.errors import InvalidDocument

#: Nodes that all operations of one patch together may look at. A patch is there to save time:
#: one that takes longer than a GET would is not worth it, and one that takes for ever is an attack.
WORK = 2_000_000


class PatchError(InvalidDocument):
    """A patch that is none, or is not one of this content.

    Args:
        reason: What is wrong.
        condition: The name that RFC 5261 §5 has for it, for a patch of XML.
    """

    def __init__(self, reason: str, condition: str = "invalid-patch-directive") -> None:
        super().__init__(reason)
        self.condition = condition


class Budget:
    """What a patch may cost.

    Args:
        work: Nodes that may be looked at.
    """

    def __init__(self, work: int = WORK) -> None:
        self._left = work

    def spend(self, nodes: int = 1) -> None:
        """Account for looking at nodes.

        Raises:
            PatchError: There were too many.
        """
        self._left -= nodes
        if self._left < 0:
            raise PatchError("it takes more work than fetching the resource would")
