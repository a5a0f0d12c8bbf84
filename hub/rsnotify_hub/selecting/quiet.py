"""How often somebody hears that nothing of what he asked for has changed."""

from __future__ import annotations

import asyncio

from rsnotify_hub.log.store import Entry

#: How long is waited between two fragments without entries, in seconds.
QUIET_SECONDS = 1.0


class Quiet:
    """Holds back what only moves `until`, so that it is joined with what comes next."""

    def __init__(self) -> None:
        self._until = 0.0

    def holds(self, last: Entry) -> float:
        """Return for how long the last fragment of what is to be sent has to wait.

        Args:
            last: The end of what is left of the log, as it is now.
        """
        if not last.fragment.heartbeat:
            return 0.0
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def sent(self, last: Entry) -> None:
        """Hear what was sent last."""
        if last.fragment.heartbeat:
            self._until = asyncio.get_running_loop().time() + QUIET_SECONDS
