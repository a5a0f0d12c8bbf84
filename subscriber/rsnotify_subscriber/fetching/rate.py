"""How often one Source is asked for content, at most."""

from __future__ import annotations

import asyncio


class RequestRate:
    """Gives turns, evenly, to who asks first.

    Args:
        most: How many turns there are in a second; None for any number.
    """

    def __init__(self, most: float | None) -> None:
        self._between = 0.0 if most is None else 1 / most
        self._next = 0.0

    async def turn(self) -> None:
        """Wait until it is one's turn."""
        if not self._between:
            return
        now = asyncio.get_running_loop().time()
        mine = max(now, self._next)
        self._next = mine + self._between
        await asyncio.sleep(mine - now)
