"""Whether memory, descriptors and threads of processes grow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from statistics import median

from tests.harnesses.torture.parts import Part, Resources

#: How much more a process may have in the last quarter than in the second: a share, and a number.
#: Threads of pools are created as they are needed.
_ALLOWED = Resources(bytes=8_000_000, files=8, threads=8)
_SHARE = Resources(bytes=0.15, files=0, threads=0)
_EVERY = 2.0
_MEGABYTE = 1_000_000


class Growth:
    """Measures processes."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts
        self._measured: dict[str, list[Resources]] = {name: [] for name in parts}

    async def measure(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for name, part in self._parts.items():
                if (used := part.resources()) is not None:
                    self._measured[name].append(used)
            await asyncio.sleep(_EVERY)

    def _quarters(self, name: str) -> tuple[Resources, Resources]:
        """Return the medians of the second and of the last quarter."""
        values = self._measured[name]
        quarter = max(1, len(values) // 4)
        return _medians(values[quarter : 2 * quarter] or values), _medians(values[-quarter:])

    def report(self) -> str:
        lines = [
            f"{'median of quarter':18}{'2: MB':>8}{'4: MB':>8}{'2: files':>10}{'4: files':>10}"
            f"{'2: threads':>12}{'4: threads':>12}"
        ]
        for name in self._parts:
            before, after = self._quarters(name)
            lines.append(
                f"{name:18}{before.bytes / _MEGABYTE:>8.1f}{after.bytes / _MEGABYTE:>8.1f}"
                f"{before.files:>10.0f}{after.files:>10.0f}"
                f"{before.threads:>12.0f}{after.threads:>12.0f}"
            )
        return "\n".join(lines)

    def grew(self) -> list[str]:
        """Return a sentence for each figure that grew by more than is allowed."""
        found = []
        for name in self._parts:
            figures = zip(Resources._fields, *self._quarters(name), _SHARE, _ALLOWED, strict=True)
            for figure, before, after, share, number in figures:
                if after > before * (1 + share) + number:
                    found.append(f"{name} grew from {before:.0f} to {after:.0f} {figure}")
        return found


def _medians(values: Sequence[Resources]) -> Resources:
    return Resources(*(median(column) for column in zip(*values, strict=True)))
