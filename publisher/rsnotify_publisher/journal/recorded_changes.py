"""Consecutive changes from a journal, in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from msgspec import Struct

from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import Resource


class RecordedChanges(Struct, frozen=True):
    """Consecutive changes from a journal, after `begin` and through `end` (µs).

    `begin` is the datetime of the change before them. `contents` has small contents of the changed
    resources, keyed by URI; None means that the content is not available.
    """

    begin: int
    end: int
    changes: Sequence[Resource]
    contents: Mapping[str, bytes | None] = {}

    def joined(self, later: RecordedChanges) -> RecordedChanges:
        """Return these changes and the later ones, which must directly follow them."""
        changes = [*self.changes, *later.changes]
        return RecordedChanges(self.begin, later.end, changes, {**self.contents, **later.contents})

    def first(self, count: int) -> RecordedChanges:
        """Return the first `count` changes, at least 1."""
        changes = self.changes[:count]
        return RecordedChanges(self.begin, _at(changes[-1]), changes, self.contents)

    def after(self, through: int) -> RecordedChanges:
        """Return the changes after `through`, which must be before `end`."""
        count = bisect_right(self.changes, through, key=_at)
        if count == 0:
            return self
        begin = _at(self.changes[count - 1])
        return RecordedChanges(begin, self.end, self.changes[count:], self.contents)

    def through(self, end: int) -> RecordedChanges:
        """Return the changes through `end`, which must be the datetime of one of them."""
        return self.first(bisect_right(self.changes, end, key=_at))


def consecutive(begin: int, changes: Sequence[Resource]) -> RecordedChanges | None:
    """Return the changes that directly follow `begin`, or None if there are none."""
    return RecordedChanges(begin, _at(changes[-1]), changes) if changes else None


def _at(change: Resource) -> int:
    assert change.datetime is not None
    return to_microseconds(change.datetime)
