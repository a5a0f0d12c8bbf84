"""Whether memory and descriptors of processes grow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from statistics import median

from tests.harnesses.torture.parts import Part

#: What a process may have more of in the last quarter than in the second: by part, and at all.
_SHARE, _BYTES, _FILES = 0.15, 8_000_000, 8
_EVERY = 2.0
_MEGABYTE = 1_000_000


class Growth:
    """Measures processes."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts
        self._measured: dict[str, list[tuple[int, int]]] = {name: [] for name in parts}

    async def measure(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for name, part in self._parts.items():
                if (used := part.resources()) is not None:
                    self._measured[name].append(used)
            await asyncio.sleep(_EVERY)

    def _quarters(self, name: str, which: int) -> tuple[float, float]:
        """Return the medians of the second and the last quarter, of bytes (0) or files (1)."""
        values = [used[which] for used in self._measured[name]]
        quarter = max(1, len(values) // 4)
        return median(values[quarter : 2 * quarter] or values), median(values[-quarter:])

    def report(self) -> str:
        lines = [
            f"{'median of quarter':18}{'2: MB':>8}{'4: MB':>8}{'2: files':>10}{'4: files':>10}"
        ]
        for name in self._parts:
            memory, files = self._quarters(name, 0), self._quarters(name, 1)
            cells = "".join(f"{each / _MEGABYTE:>8.1f}" for each in memory)
            lines.append(f"{name:18}{cells}" + "".join(f"{each:>10.0f}" for each in files))
        return "\n".join(lines)

    def grew(self) -> list[str]:
        found = []
        for name in self._parts:
            before, after = self._quarters(name, 0)
            if after > before * (1 + _SHARE) + _BYTES:
                found.append(f"{name} grew from {before:.0f} to {after:.0f} bytes")
            before, after = self._quarters(name, 1)
            if after > before + _FILES:
                found.append(f"{name} had {before:.0f} files open, and then {after:.0f}")
        return found
