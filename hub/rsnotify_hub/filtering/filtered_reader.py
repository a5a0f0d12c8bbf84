"""Reads the filtered log of one selection, page by page.

An empty fragment only moves `until`. The reader holds it back to join it with the next fragment,
for at most a second, and not at all if it returned no empty fragment in the last second.
"""

from __future__ import annotations

import asyncio

from rsnotify_hub.filtering.filter_cache import FilterCache
from rsnotify_hub.filtering.fragment_filter import EmptyIntervalJoiner
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.log.store import LogEntry
from rsnotify_hub.log.topic_logs import TopicLogs

#: The shortest time between two fragments without entries, in seconds.
QUIET_SECONDS = 1.0


class FilteredReader:
    """Reads the filtered log of one selection from a position on.

    Attributes:
        position: The position up to which everything was returned.
    """

    def __init__(
        self, selection: TopicSelection, topics: TopicLogs, filters: FilterCache, position: int
    ) -> None:
        self.position = position
        self._selection = selection
        self._topics = topics
        self._filters = filters
        self._seen = position
        self._joiner = EmptyIntervalJoiner()
        self._quiet_until = 0.0

    @property
    def has_more(self) -> bool:
        """Whether `next` has something to read, or to return after holding it back."""
        is_at_end = self._seen >= self._topics.position(self._selection.topic)
        return not is_at_end or (self._joiner.holds and self.wait <= 0)

    @property
    def holds(self) -> bool:
        return self._joiner.holds

    @property
    def wait(self) -> float:
        """How long an empty fragment is held back at most, in seconds."""
        return self._quiet_until - asyncio.get_running_loop().time()

    async def next(self) -> list[LogEntry]:
        """Read a page, and return what is to be sent now, if anything."""
        topic = self._selection.topic
        end = self._topics.position(topic)
        entries = await self._topics.read(topic, after=self._seen)
        ready = self._joiner.add(await self._filters.filtered(self._selection, entries))
        self._seen = entries[-1].position if entries else max(self._seen, end)
        # Even if there are more entries: there might always be more.
        if self._joiner.holds and self.wait <= 0:
            ready += self._joiner.flush()
            self._quiet_until = asyncio.get_running_loop().time() + QUIET_SECONDS
        if not self._joiner.holds:
            self.position = self._seen
        elif ready:
            self.position = ready[-1].position
        return ready
