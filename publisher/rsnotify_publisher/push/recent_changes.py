"""The newest changes of a journal, in memory, from which the feeds of hubs that keep up are fed."""

from __future__ import annotations

from collections import deque

from rsnotify_publisher.journal import RecordedChanges

#: Most changes, and bytes of contents, that are kept for hubs that lag.
_CHANGES, _BYTES = 1_000, 1_048_576


class RecentChanges:
    """All changes of a journal after `begin`, through `end` (µs)."""

    def __init__(self, end: int) -> None:
        self.begin = self.end = end
        self._kept: deque[RecordedChanges] = deque()
        self._changes = self._bytes = 0

    def append(self, recorded: RecordedChanges) -> bool:
        """Add changes; return False if they are not the ones after `end`."""
        if recorded.begin != self.end:
            return False
        self._kept.append(recorded)
        self.end = recorded.end
        self._count(recorded, 1)
        while self._changes > _CHANGES or self._bytes > _BYTES:
            self._drop()
        return True

    def drop(self, through: int) -> None:
        """Drop what no hub lacks any more."""
        while self._kept and self._kept[0].end <= through:
            self._drop()

    def _drop(self) -> None:
        dropped = self._kept.popleft()
        self.begin = dropped.end
        self._count(dropped, -1)

    def _count(self, recorded: RecordedChanges, sign: int) -> None:
        self._changes += sign * len(recorded.changes)
        self._bytes += sign * sum(len(content or b"") for content in recorded.contents.values())

    def after(self, through: int, limit: int) -> RecordedChanges | None:
        """Return the changes later than `through`, at most `limit`; None if there are none.

        This is at or after `begin`.
        """
        found: RecordedChanges | None = None
        for each in self._kept:
            if each.end > through:
                found = each.after(through) if found is None else found.joined(each)
                if len(found.changes) >= limit:
                    return found.first(limit)
        return found
