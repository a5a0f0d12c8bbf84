"""Filters fragments once for all Destinations with the same selection."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from rsnotify_hub.filtering.fragment_filter import filter_fragment
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.log.fragments import Fragment
from rsnotify_hub.log.store import LogEntry

#: More bytes than this are filtered in a thread, so that the event loop is not blocked.
_MAX_INLINE_BYTES = 16 * 1024
#: The size of the cache, in bytes.
_CACHE_BYTES = 8 * 1024 * 1024
#: The memory of a cached fragment in addition to its body.
_OVERHEAD = 500

#: How many bytes of old fragments are filtered per second, and the burst in seconds: any client may
#: request any part of any log from its beginning, again and again.
_OLD_BYTES_PER_SECOND = 4 * 1024 * 1024
_OLD_BURST_SECONDS = 10

#: Filtered fragments, by position.
_Filtered = dict[int, Fragment]


class FilterCache:
    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[TopicSelection, int], Fragment] = OrderedDict()
        self._size = 0
        self._spent = 0.0
        self._spent_at = monotonic()
        # One thread, so that a large fragment is parsed once and the CPU stays free for others.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="hub-filter")

    async def filtered(
        self, selection: TopicSelection, entries: Sequence[LogEntry], *, old: bool = False
    ) -> list[LogEntry]:
        """Return entries of a log, filtered.

        If clients request too many `old` ones, which are a replay of the log, they are unfiltered.
        """
        known = self._known(selection, entries)
        new = [entry for entry in entries if entry.position not in known]
        size = sum(len(entry.fragment.body) for entry in new)
        if old and not self._has_budget(size):
            return list(entries)
        if size <= _MAX_INLINE_BYTES:
            found = _filter(selection, new)
        else:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._worker, _filter, selection, new)
        for position, fragment in found.items():
            self._store((selection, position), fragment)
        results = known | found
        return [LogEntry(entry.position, results[entry.position]) for entry in entries]

    def _has_budget(self, size: int) -> bool:
        now = monotonic()
        self._spent = max(0.0, self._spent - (now - self._spent_at) * _OLD_BYTES_PER_SECOND)
        self._spent_at = now
        if self._spent + size > _OLD_BYTES_PER_SECOND * _OLD_BURST_SECONDS:
            return False
        self._spent += size
        return True

    def _known(self, selection: TopicSelection, entries: Sequence[LogEntry]) -> _Filtered:
        keys = [(selection, entry.position) for entry in entries]
        return {key[1]: self._cache[key] for key in keys if key in self._cache}

    def _store(self, key: tuple[TopicSelection, int], fragment: Fragment) -> None:
        if key not in self._cache:
            self._cache[key] = fragment
            self._size += len(fragment.body) + _OVERHEAD
        while self._size > _CACHE_BYTES:
            _, oldest = self._cache.popitem(last=False)
            self._size -= len(oldest.body) + _OVERHEAD

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)


def _filter(selection: TopicSelection, entries: Sequence[LogEntry]) -> _Filtered:
    return {each.position: filter_fragment(each.fragment, selection.select) for each in entries}
