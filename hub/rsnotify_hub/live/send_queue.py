"""What waits for one slow subscriber."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rsnotify_hub.live.connection import LiveConnection


@dataclass(slots=True, eq=False, repr=False)
class SendQueue:
    """The frames that wait for a slow subscriber. The bytes in its transport count as well."""

    max_bytes: int
    max_frames: int
    size: int = 0
    frames: int = 0
    _waiting: deque[tuple[bytes, int]] = field(default_factory=deque)

    def put(self, data: bytes, count: int, *, ahead: int) -> bool:
        """Add frames behind the bytes in the transport; return False if that is too much."""
        if ahead + self.size + len(data) > self.max_bytes:
            return False
        if self.frames + count > self.max_frames:
            return False
        self._waiting.append((data, count))
        self.size += len(data)
        self.frames += count
        return True

    def send(self, connection: LiveConnection, *, everything: bool = False) -> bool:
        """Send as much as the transport accepts, or all; return whether that was accepted."""
        while self._waiting and (everything or not connection.is_paused):
            data, count = self._waiting.popleft()
            self.size -= len(data)
            self.frames -= count
            connection.send(data)
        return not connection.is_paused
