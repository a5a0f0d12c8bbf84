"""Changes that were just recorded, as they are in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from msgspec import Struct

from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import Resource


class RecordedChanges(Struct, frozen=True):
    """Consecutive changes of a journal.

    Args:
        begin: The datetime of the last change before them (µs).
        end: The datetime of the last of them (µs).
        changes: The changes with their datetimes.
        contents: Small contents after the changes, by URI; None for one that is not available.
    """

    begin: int
    end: int
    changes: Sequence[Resource]
    contents: Mapping[str, bytes | None] = {}

    def joined(self, later: RecordedChanges) -> RecordedChanges:
        """Return these changes and those that follow on them."""
        changes = [*self.changes, *later.changes]
        return RecordedChanges(self.begin, later.end, changes, {**self.contents, **later.contents})

    def first(self, count: int) -> RecordedChanges:
        """Return the first changes, at least one."""
        changes = self.changes[:count]
        return RecordedChanges(self.begin, _at(changes[-1]), changes, self.contents)

    def after(self, through: int) -> RecordedChanges:
        """Return the changes later than `through`, which is before `end`."""
        count = bisect_right(self.changes, through, key=_at)
        if count == 0:
            return self
        begin = _at(self.changes[count - 1])
        return RecordedChanges(begin, self.end, self.changes[count:], self.contents)

    def through(self, end: int) -> RecordedChanges:
        """Return the changes up to `end`, which is the datetime of one of them."""
        return self if end == self.end else self.first(bisect_right(self.changes, end, key=_at))


def consecutive(begin: int, changes: Sequence[Resource]) -> RecordedChanges | None:
    """Return changes that follow on `begin`; None if there are none."""
    return RecordedChanges(begin, _at(changes[-1]), changes) if changes else None


def _at(change: Resource) -> int:
    assert change.datetime is not None
    return to_microseconds(change.datetime)
