"""What was delivered and is not yet taken on; and for how long nothing was."""

from __future__ import annotations

import asyncio
from collections import deque

from rsnotify.format.vocabulary import MAX_BYTES


class HubSilence:
    """Tells when it is time to ask whether a hub is still there. Times are in seconds.

    A hub that has nothing to deliver is as silent as one that is gone. So it is asked when it
    has been silent for longer than it usually is: an answer shows that this is usual, too.

    Args:
        now: The time.
        least: For how long it may be silent in any case.
    """

    def __init__(self, now: float, least: float) -> None:
        self._heard = now
        self._least = least
        self._longest = 0.0

    def heard(self, now: float) -> None:
        """Hear something of the hub."""
        self._longest = max(self._longest, now - self._heard)
        self._heard = now

    @property
    def due(self) -> float:
        """When it is time."""
        return self._heard + max(self._least, 2 * self._longest)


class DeliveryInbox:
    """Content in the order in which it came, bounded in bytes.

    Args:
        silence: Is told of all that comes.
        most: Bytes that may wait; one that is larger may wait alone.
    """

    def __init__(self, silence: HubSilence, most: int = MAX_BYTES) -> None:
        self.silence = silence
        self._most = most
        self._bytes = 0
        self._waiting: deque[bytes] = deque()
        self._came = asyncio.Event()

    def put(self, body: bytes) -> bool:
        """Take content, if there is room; return whether there is."""
        if self._waiting and self._bytes + len(body) > self._most:
            return False
        self._waiting.append(body)
        self._bytes += len(body)
        self._came.set()
        self.silence.heard(asyncio.get_running_loop().time())
        return True

    async def get(self) -> bytes:
        """Wait for content, and hand it over."""
        while not self._waiting:
            self._came.clear()
            await self._came.wait()
        body = self._waiting.popleft()
        self._bytes -= len(body)
        return body
