"""Selections at work: each fragment is looked at once for all who asked for the same."""

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

#: Up to so many bytes are looked at at once; more in a thread, so that the others do not wait.
_AT_ONCE = 16 * 1024
#: How much of what was left is kept, in bytes.
_KEPT = 8 * 1024 * 1024
#: What each costs beside its body.
_HEAD = 500

#: How much of old parts of logs is looked at in a second, in bytes, and for how many seconds at
#: once: anybody may ask for any part of any log from its beginning, and come back for it.
_OLD_PER_SECOND = 4 * 1024 * 1024
_OLD_SECONDS = 10

#: By its position, what is left of each fragment.
_Left = dict[int, Fragment]


class FilterCache:
    """Leaves out what is not asked for."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[TopicSelection, int], Fragment] = OrderedDict()
        self._size = 0
        self._spent = 0.0
        self._spent_at = monotonic()
        # One thread: a large fragment is read once, and the processor is there for others too.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="hub-selecting")

    async def left(
        self, stream: TopicSelection, entries: Sequence[LogEntry], *, old: bool = False
    ) -> list[LogEntry]:
        """Return what is left of each fragment of a part of a log.

        Args:
            stream: Of which log, for whom.
            entries: What to look at, in the order of the log.
            old: Whether it came some time ago. Where too much of that is asked for, all of it
                is left.
        """
        known = self._known(stream, entries)
        new = [entry for entry in entries if entry.position not in known]
        size = sum(len(entry.fragment.body) for entry in new)
        if old and not self._affords(size):
            return list(entries)
        if size <= _AT_ONCE:
            found = _leave(stream, new)
        else:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._worker, _leave, stream, new)
        for position, fragment in found.items():
            self._keep((stream, position), fragment)
        left = known | found
        return [LogEntry(entry.position, left[entry.position]) for entry in entries]

    def _affords(self, size: int) -> bool:
        now = monotonic()
        self._spent = max(0.0, self._spent - (now - self._spent_at) * _OLD_PER_SECOND)
        self._spent_at = now
        if self._spent + size > _OLD_PER_SECOND * _OLD_SECONDS:
            return False
        self._spent += size
        return True

    def _known(self, stream: TopicSelection, entries: Sequence[LogEntry]) -> _Left:
        keys = [(stream, entry.position) for entry in entries]
        return {key[1]: self._kept[key] for key in keys if key in self._kept}

    def _keep(self, key: tuple[TopicSelection, int], fragment: Fragment) -> None:
        if key not in self._kept:
            self._kept[key] = fragment
            self._size += len(fragment.body) + _HEAD
        while self._size > _KEPT:
            _, oldest = self._kept.popitem(last=False)
            self._size -= len(oldest.body) + _HEAD

    def close(self) -> None:
        """Let the thread end."""
        self._worker.shutdown(wait=False, cancel_futures=True)


def _leave(stream: TopicSelection, entries: Sequence[LogEntry]) -> _Left:
    return {each.position: filter_fragment(each.fragment, stream.select) for each in entries}
