"""Fragments beyond a gap, kept for a moment because they may only be out of order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from rsnotify.format.coverage import Coverage
from rsnotify.format.datetimes import Instant


class ReorderBuffer:
    """Fragments that begin later than the last known change, ordered by their `from`.

    Beyond `limit` changes (a fragment without any counts as one) fragments are discarded, and only
    the last `until` is remembered: the Change List has their changes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._fragments: list[Coverage] = []
        self._size = 0
        self._discarded_until: Instant | None = None

    def add(self, coverage: Coverage) -> None:
        """Add a fragment with a `from`, once if it arrives over several transports."""
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
            self.discard(coverage)

    def discard(self, coverage: Coverage) -> None:
        """Drop a fragment; its changes have to come from the Change List."""
        if coverage.changes:
            self._discarded_until = coverage.until

    def pop_joining(self, known: Instant) -> Coverage | None:
        """Remove and return the first fragment if it joins what is known by now."""
        if not self._fragments or not self._fragments[0].reaches(known):
            return None
        coverage = self._fragments.pop(0)
        self._size -= _size(coverage)
        return coverage

    def is_ahead_of(self, known: Instant) -> bool:
        """Return whether changes were announced that lie beyond what is known."""
        if self._discarded_until is not None and self._discarded_until <= known:
            self._discarded_until = None
        return bool(self._fragments) or self._discarded_until is not None

    def clear(self) -> None:
        self._fragments.clear()
        self._size = 0
        self._discarded_until = None


def _begins(coverage: Coverage) -> Instant:
    assert coverage.from_ is not None
    return coverage.from_


def _size(coverage: Coverage) -> int:
    return len(coverage.changes) or 1
