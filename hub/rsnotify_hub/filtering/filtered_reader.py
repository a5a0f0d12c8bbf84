"""Reading on in a log for one stream, page by page, as somebody sends what comes of it.

What is empty only moves `until`. It is held back, so that it is joined with what comes next, but
not for longer than a second, and not at all if nothing of the kind was handed out for a second.
"""

from __future__ import annotations

import asyncio

from rsnotify_hub.filtering.filter_cache import FilterCache
from rsnotify_hub.filtering.fragment_filter import EmptyIntervalJoiner
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.log.store import LogEntry
from rsnotify_hub.log.topic_logs import TopicLogs

#: How long is waited between two fragments without entries, in seconds.
QUIET_SECONDS = 1.0


class FilteredReader:
    """What is left of a log for one stream, from a position on.

    Args:
        stream: For whom.
        topics: The logs.
        sieve: Leaves out what was not asked for.
        position: Where to begin.

    Attributes:
        position: All up to here was handed out.
    """

    def __init__(
        self, stream: TopicSelection, topics: TopicLogs, sieve: FilterCache, position: int
    ) -> None:
        self.position = position
        self._stream = stream
        self._topics = topics
        self._sieve = sieve
        self._seen = position
        self._joiner = EmptyIntervalJoiner()
        self._quiet_until = 0.0

    @property
    def has_more(self) -> bool:
        """Whether something is to be read, or is held back no longer."""
        is_at_end = self._seen >= self._topics.position(self._stream.topic)
        return not is_at_end or (self._joiner.holds and self.wait <= 0)

    @property
    def holds(self) -> bool:
        """Whether something is held back."""
        return self._joiner.holds

    @property
    def wait(self) -> float:
        """How long something is held back, at most."""
        return self._quiet_until - asyncio.get_running_loop().time()

    async def next(self) -> list[LogEntry]:
        """Return what is to be sent now, of one page; nothing, perhaps.

        Raises:
            StorageError: The store cannot be read.
        """
        topic = self._stream.topic
        end = self._topics.position(topic)
        entries = await self._topics.read(topic, after=self._seen)
        ready = self._joiner.add(await self._sieve.left(self._stream, entries))
        self._seen = entries[-1].position if entries else max(self._seen, end)
        # Even where more has come meanwhile: more may come for ever.
        if self._joiner.holds and self.wait <= 0:
            ready += self._joiner.flush()
            self._quiet_until = asyncio.get_running_loop().time() + QUIET_SECONDS
        if not self._joiner.holds:
            self.position = self._seen
        elif ready:
            self.position = ready[-1].position
        return ready
