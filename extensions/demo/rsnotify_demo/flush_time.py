"""The duration of one flush to the disk; each change waits for at least two of them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

_INTERVAL = 5.0
#: A page of a file system.
_BLOCK = b"\0" * 4096


class FlushTimer:
    """Measures flushes to the disk of a folder; `flush_ms` is None until the first one."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "flush"
        self.flush_ms: float | None = None

    async def run(self) -> None:
        while True:
            self.flush_ms = await asyncio.to_thread(self.measure)
            await asyncio.sleep(_INTERVAL)

    def measure(self) -> float:
        with self._file.open("wb", buffering=0) as file:
            file.write(_BLOCK)
            began = time.perf_counter()
            os.fsync(file.fileno())
            return (time.perf_counter() - began) * 1_000
