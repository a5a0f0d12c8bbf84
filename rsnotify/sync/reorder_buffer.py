"""Fragments beyond a gap: kept for a moment, as they may only be out of order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from rsnotify.format.coverage import Coverage
from rsnotify.format.datetimes import Instant


class ReorderBuffer:
    """Fragments that begin later than what is known, in order of their `from`.

    Args:
        limit: How many changes are kept; a fragment without changes counts as one. Beyond it a
            fragment is let go, and only its `until` is remembered: the Change List has what it
            told.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._fragments: list[Coverage] = []
        self._size = 0
        self._wanted: Instant | None = None

    def hold(self, coverage: Coverage) -> None:
        """Keep a fragment, once by however many ways it comes.

        One without `from` cannot be beyond a gap.
        """
        begins = coverage.from_
        assert begins is not None
        first = bisect_left(self._fragments, begins, key=_begins)
        after = bisect_right(self._fragments, begins, key=_begins)
        if coverage in self._fragments[first:after]:
            return
        if self._size < self._limit:
            self._fragments.insert(after, coverage)
            self._size += _size(coverage)
        else:
            self.refuse(coverage)

    def refuse(self, coverage: Coverage) -> None:
        """Let a fragment go; what it told, the Change List has to tell."""
        if coverage.changes:
            self._wanted = coverage.until

    def next(self, known: Instant) -> Coverage | None:
        """Take out the first fragment, if it joins what is known by now."""
        if not self._fragments or not self._fragments[0].reaches(known):
            return None
        coverage = self._fragments.pop(0)
        self._size -= _size(coverage)
        return coverage

    def unexplained(self, known: Instant) -> bool:
        """Tell whether something was announced that is still beyond what is known."""
        if self._wanted is not None and self._wanted <= known:
            self._wanted = None
        return bool(self._fragments) or self._wanted is not None

    def clear(self) -> None:
        """Forget all that was announced."""
        self._fragments.clear()
        self._size = 0
        self._wanted = None


def _begins(coverage: Coverage) -> Instant:
    assert coverage.from_ is not None
    return coverage.from_


def _size(coverage: Coverage) -> int:
    return len(coverage.changes) or 1
