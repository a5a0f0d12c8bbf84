"""Deliveries that wait for the listener, and the silence of the hub between deliveries."""

from __future__ import annotations

import asyncio
from collections import deque

from rsnotify.format.vocabulary import MAX_BYTES


class HubSilence:
    """Decides when to check whether a hub is still there. Times are in seconds.

    A hub that has nothing to deliver is as silent as one that is gone. So it is checked when it
    has been silent for longer than usual, and `least` in any case; an answer shows that this
    silence is usual, too.
    """

    def __init__(self, now: float, least: float) -> None:
        self._last = now
        self._least = least
        self._longest = 0.0

    def end(self, now: float) -> None:
        """Note a sign of life."""
        self._longest = max(self._longest, now - self._last)
        self._last = now

    @property
    def due(self) -> float:
        """The time of the next check."""
        return self._last + max(self._least, 2 * self._longest)


class DeliveryInbox:
    """A queue of deliveries, each of which ends the silence. At most so many bytes may wait.

    A larger delivery may wait alone.
    """

    def __init__(self, silence: HubSilence, most: int = MAX_BYTES) -> None:
        self.silence = silence
        self._most = most
        self._bytes = 0
        self._waiting: deque[bytes] = deque()
        self._arrived = asyncio.Event()

    def put(self, body: bytes) -> bool:
        """Add a delivery; return whether it fits."""
        if self._waiting and self._bytes + len(body) > self._most:
            return False
        self._waiting.append(body)
        self._bytes += len(body)
        self._arrived.set()
        self.silence.end(asyncio.get_running_loop().time())
        return True

    async def get(self) -> bytes:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        body = self._waiting.popleft()
        self._bytes -= len(body)
        return body
