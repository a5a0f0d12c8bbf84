"""The last entries of a log in memory, for subscribers that are nearly up to date."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rsnotify.format.datetimes import Instant
from rsnotify_hub.fragments.fragment import is_later
from rsnotify_hub.store.interface import LogEntry, LogState

#: How much of each log stays in memory.
RECENT_BYTES = 256 * 1024


class RecentEntries:
    def __init__(self, state: LogState | None) -> None:
        # The position before the first entry in memory.
        self.floor = state.position if state else 0
        self._through = state.through if state else None
        self._entries: deque[LogEntry] = deque()
        self._size = 0

    def extend(self, entries: Sequence[LogEntry], *, replacing: int | None, first: int) -> None:
        """Add entries, whose first one may replace another; `first` is the oldest kept position."""
        last = self._entries[-1] if self._entries else None
        if entries and last and (last.position == replacing or last.fragment.whole):
            self._size -= len(self._entries.pop().fragment.body)
        self._entries.extend(entries)
        self._size += sum(len(entry.fragment.body) for entry in entries)
        self.shrink(first)

    def shrink(self, first: int) -> None:
        """Remove entries beyond the size limit, and those before `first`."""
        while self._entries and (self._size > RECENT_BYTES or self._entries[0].position < first):
            oldest = self._entries.popleft()
            self._size -= len(oldest.fragment.body)
            self.floor = oldest.position
            self._through = max(self._through or oldest.fragment.until, oldest.fragment.until)

    def after(self, position: int, since: Instant | None) -> list[LogEntry] | None:
        """Return all entries after a position and an instant; None if some are not in memory."""
        if position < self.floor and not self._covers(since):
            return None
        return [
            entry
            for entry in self._entries
            if entry.position > position and (since is None or is_later(entry.fragment, since))
        ]

    def _covers(self, since: Instant | None) -> bool:
        """Return whether every entry that is later than an instant is in memory."""
        if since is None:
            return False
        if since == self._through:
            return since.microsecond > 0  # late changes of a whole second may be on the disk
        return self._through is None or since > self._through
