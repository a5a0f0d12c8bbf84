"""The names of topics in order, so that some are counted without a look at each."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

#: From a name on, up to another, which is not among them.
Range = tuple[str, str]


class SortedNames:
    """Names in order.

    Args:
        names: The first of them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    def add(self, name: str) -> None:
        """Add a name that is not there."""
        insort(self._names, name)

    def remove(self, name: str) -> None:
        """Remove a name that is there."""
        del self._names[bisect_left(self._names, name)]

    def count(self, ranges: Sequence[Range]) -> int:
        """Count the names in ranges that do not overlap."""
        return sum(
            bisect_left(self._names, end) - bisect_left(self._names, begin) for begin, end in ranges
        )
