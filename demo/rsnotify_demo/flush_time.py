"""What one flush of the disk takes: a change that travels waits for two of them at least."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

_EVERY = 5.0
#: Bytes, a page of a file system.
_BLOCK = b"\0" * 4096


class FlushTimer:
    """The disk of a folder.

    Args:
        folder: The folder.

    Attributes:
        flush_ms: Milliseconds that one flush took, when it was last measured.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "flush"
        self.flush_ms: float | None = None

    async def run(self) -> None:
        """Measure now and then, until cancelled."""
        while True:
            self.flush_ms = await asyncio.to_thread(self.measure)
            await asyncio.sleep(_EVERY)

    def measure(self) -> float:
        """Return how many milliseconds it takes to flush a block to the disk."""
        with self._file.open("wb", buffering=0) as file:
            file.write(_BLOCK)
            began = time.perf_counter()
            os.fsync(file.fileno())
            return (time.perf_counter() - began) * 1_000
