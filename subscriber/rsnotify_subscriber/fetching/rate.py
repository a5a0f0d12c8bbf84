"""Limiting the rate of requests to one Source."""

from __future__ import annotations

import asyncio


class RequestRate:
    """Spaces requests evenly.

    Args:
        most: The most requests in a second; None for any number.
    """

    def __init__(self, most: float | None) -> None:
        self._between = 0.0 if most is None else 1 / most
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next request may be made."""
        if not self._between:
            return
        now = asyncio.get_running_loop().time()
        at = max(now, self._next)
        self._next = at + self._between
        await asyncio.sleep(at - now)
