"""Filtered topics: filters fragments once for all Destinations with the same selection.

Theory of operation. The filter removes the entries that do not match the selection. The fragment
keeps its `from` and `until`, because it still covers the interval for the filtered topic, and T
advances.

A fragment that becomes empty only moves `until`. It is joined with the next one, because their
intervals are adjacent. A reader therefore holds back an empty fragment for at most a second, or not
at all if it returned no empty fragment in the last second.

Attributes of other namespaces describe the whole set (such as the count and digest of an audit), so
the filter also removes them. A fragment that keeps all entries keeps its bytes. So does a fragment
that cannot be filtered: a whole content, a fragment without `from` or `until`, or a fragment with
an entry that inherits the previous entry's datetime.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from time import monotonic

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document
from rsnotify.format.writer import write_document
from rsnotify.selection import EVERYTHING, PushSelection
from rsnotify_hub.fragments import MERGED_CONTENT_TYPE, Fragment, FragmentKind, read_stored
from rsnotify_hub.store.interface import LogEntry
from rsnotify_hub.topic_log import TopicLogs

#: Maximum size of a document that stays parsed for the topic's other selections, in bytes.
_MAX_CACHED_BYTES = 16 * 1024

#: Maximum size of fragments filtered on the event loop, in bytes. Larger ones are filtered in a
#: thread, so as not to block the loop.
_MAX_INLINE_BYTES = 16 * 1024
#: Maximum size of the cache, in bytes.
_CACHE_BYTES = 8 * 1024 * 1024
#: Memory that a cached fragment needs in addition to its body, in bytes.
_ENTRY_OVERHEAD_BYTES = 500

#: Maximum number of bytes of old fragments filtered per second, and the burst in seconds. Without
#: this limit, a client could have the hub filter any log from the beginning again and again.
_OLD_BYTES_PER_SECOND = 4 * 1024 * 1024
_OLD_BURST_SECONDS = 10

#: Minimum time between two fragments without entries, in seconds.
QUIET_SECONDS = 1.0

#: Filtered fragments, by position.
_Filtered = dict[int, Fragment]


class TopicSelection(Struct, frozen=True):
    """A topic or a filtered topic. The selection is in canonical form."""

    topic: str
    select: PushSelection = EVERYTHING

    @property
    def key(self) -> str:
        """The key in the store. For a whole topic, it is the topic itself."""
        # A URL contains no space.
        return f"{self.topic} {self.select.canonical_json.decode()}" if self.select else self.topic


def selection_of_key(key: str) -> TopicSelection:
    topic, _, text = key.partition(" ")
    return TopicSelection(
        topic, msgspec.json.decode(text, type=PushSelection) if text else EVERYTHING
    )


class FilteredReader:
    """Reads the log of a filtered topic, starting after a position.

    Attributes:
        position: The position up to which the reader has returned everything.
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
        """Whether `next` has entries to read, or a held-back fragment that is due."""
        is_at_end = self._seen >= self._topics.position(self._selection.topic)
        return not is_at_end or (self._joiner.holds and self.wait <= 0)

    @property
    def holds(self) -> bool:
        return self._joiner.holds

    @property
    def wait(self) -> float:
        """The remaining time for which an empty fragment is held back, in seconds."""
        return self._quiet_until - asyncio.get_running_loop().time()

    async def next(self) -> list[LogEntry]:
        """Read a page, and return the entries to send now, if any."""
        topic = self._selection.topic
        end = self._topics.position(topic)
        entries = await self._topics.read(topic, after=self._seen)
        ready = self._joiner.add(await self._filters.filtered(self._selection, entries))
        self._seen = entries[-1].position if entries else max(self._seen, end)
        # Flush even if the log has more entries, because a busy log always has more.
        if self._joiner.holds and self.wait <= 0:
            ready += self._joiner.flush()
            self._quiet_until = asyncio.get_running_loop().time() + QUIET_SECONDS
        if not self._joiner.holds:
            self.position = self._seen
        elif ready:
            self.position = ready[-1].position
        return ready


class FilterCache:
    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[TopicSelection, int], Fragment] = OrderedDict()
        self._size = 0
        self._spent = 0.0
        self._spent_at = monotonic()
        # With a single thread, a large fragment is parsed only once, and other work gets CPU time.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="hub-filter")

    async def filtered(
        self, selection: TopicSelection, entries: Sequence[LogEntry], *, old: bool = False
    ) -> list[LogEntry]:
        """Return filtered log entries.

        Replays pass `old`. If clients request too many old entries, these stay unfiltered.
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
            self._size += len(fragment.body) + _ENTRY_OVERHEAD_BYTES
        while self._size > _CACHE_BYTES:
            _, oldest = self._cache.popitem(last=False)
            self._size -= len(oldest.body) + _ENTRY_OVERHEAD_BYTES

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)


def _filter(selection: TopicSelection, entries: Sequence[LogEntry]) -> _Filtered:
    return {each.position: filter_fragment(each.fragment, selection.select) for each in entries}


def filter_fragment(fragment: Fragment, select: PushSelection) -> Fragment:
    """Return a fragment with only the entries that match the selection."""
    if fragment.kind is FragmentKind.WHOLE or fragment.heartbeat:
        return fragment
    document = _read(fragment.body)
    if not _can_be_filtered(document):
        return fragment
    kept = tuple(filter(select.admits, document.resources))
    if len(kept) == len(document.resources):
        return fragment
    return _written(fragment, replace(document, resources=kept, attributes=()))


def join_empty(entries: Iterable[LogEntry]) -> list[LogEntry]:
    """Join each empty fragment with the next one if that is adjacent and not too large."""
    joiner = EmptyIntervalJoiner()
    return [*joiner.add(entries), *joiner.flush()]


class EmptyIntervalJoiner:
    """Joins empty fragments with the next one, incrementally."""

    def __init__(self) -> None:
        #: The last empty fragment that is held back. `_begin` is the start of the first.
        self._held: LogEntry | None = None
        self._begin = EARLIEST

    @property
    def holds(self) -> bool:
        return self._held is not None

    def add(self, entries: Iterable[LogEntry]) -> list[LogEntry]:
        """Add the next entries, and return the entries that can be sent now."""
        return [joined for entry in entries for joined in self._add(entry)]

    def _add(self, entry: LogEntry) -> list[LogEntry]:
        fragment = entry.fragment
        is_adjacent = self._is_adjacent(fragment)
        if fragment.heartbeat and fragment.from_ is not None:
            ended = [] if is_adjacent else self.flush()
            self._held, self._begin = entry, self._begin if is_adjacent else fragment.from_
            return ended
        is_small = len(fragment.body) <= _MAX_CACHED_BYTES
        joined = _widened(fragment, self._begin) if is_adjacent and is_small else None
        if joined is None:
            return [*self.flush(), entry]
        self._held = None
        return [LogEntry(entry.position, joined)]

    def _is_adjacent(self, fragment: Fragment) -> bool:
        if self._held is None or fragment.from_ is None or fragment.kind is FragmentKind.WHOLE:
            return False
        return self._begin <= fragment.from_ <= self._held.fragment.until <= fragment.until

    def flush(self) -> list[LogEntry]:
        held, self._held = self._held, None
        if held is None:
            return []
        widened = _widened(held.fragment, self._begin)
        return [held if widened is None else LogEntry(held.position, widened)]


# Many Destinations may reconnect at the same time and need the same fragments.
@lru_cache(maxsize=64)
def _widened(fragment: Fragment, begin: Instant) -> Fragment | None:
    if fragment.from_ == begin:
        return fragment
    document = _read(fragment.body)
    if not _can_be_filtered(document):
        return None
    return _written(fragment, replace(document, from_=begin))


def _written(fragment: Fragment, document: Document) -> Fragment:
    assert document.from_ is not None
    return replace(
        fragment,
        body=write_document(document),
        content_type=MERGED_CONTENT_TYPE,
        from_=document.from_,
        begins=document.from_,
        heartbeat=not document.resources,
    )


def _can_be_filtered(document: Document) -> bool:
    stated = document.from_ is not None and document.until is not None
    return stated and all(entry.changed_at is not None for entry in document.resources)


def _read(body: bytes) -> Document:
    return _read_small(body) if len(body) <= _MAX_CACHED_BYTES else _read_large(body)


_read_small = lru_cache(maxsize=64)(read_stored)
# A fragment is filtered for each selection of its topic in turn, so it is parsed only once.
_read_large = lru_cache(maxsize=1)(read_stored)
