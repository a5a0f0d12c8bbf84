"""What waits for one slow connection."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False, repr=False)
class SendQueue:
    """The frames that wait for a slow client. The bytes in its transport count as well."""

    max_bytes: int
    max_frames: int
    size: int = 0
    frames: int = 0
    _waiting: deque[tuple[bytes, int]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._waiting)

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

    def take(self) -> bytes:
        """Remove the first frames, and return them."""
        data, count = self._waiting.popleft()
        self.size -= len(data)
        self.frames -= count
        return data
