"""Fragments beyond a gap: kept for a moment, as they may only be out of order."""

from __future__ import annotations

from rsnotify.coverage import Coverage
from rsnotify.datetimes import Instant


class Held:
    """Fragments that begin later than what is known, in order of their `from`.

    Args:
        limit: How many changes are kept. Beyond it a fragment is let go, and only its
            `until` is remembered: the Change List has what it told.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._fragments: list[tuple[Instant, Coverage]] = []
        self._wanted: Instant | None = None

    def hold(self, coverage: Coverage) -> None:
        """Keep a fragment, once by however many ways it comes.

        One without `from` cannot be beyond a gap.
        """
        assert coverage.from_ is not None
        if any(coverage == held for _, held in self._fragments):
            return
        if sum(len(held.changes) for _, held in self._fragments) < self._limit:
            self._fragments.append((coverage.from_, coverage))
            self._fragments.sort(key=lambda held: held[0])
        elif coverage.changes:
            self._wanted = coverage.until

    def next(self, known: Instant) -> Coverage | None:
        """Take out the first fragment, if it joins what is known by now."""
        if self._fragments and self._fragments[0][0] <= known:
            return self._fragments.pop(0)[1]
        return None

    def unexplained(self, known: Instant) -> bool:
        """Tell whether something was announced that is still beyond what is known."""
        if self._wanted is not None and self._wanted <= known:
            self._wanted = None
        return bool(self._fragments) or self._wanted is not None

    def clear(self) -> None:
        """Forget all that was announced."""
        self._fragments.clear()
        self._wanted = None
