"""Filters the entries of fragments by a selection, and joins fragments that become empty.

Theory of operation. A fragment covers its interval. For a Destination that requested a part of a
topic, it still does without the entries outside that part. So the filter removes only entries:
`from` and `until` stay, and T moves on. A filtered fragment may be empty; it is then joined with
the next one, since two adjacent intervals are one.

Statements about the whole set (attributes of other namespaces, such as the count and digest of an
audit) may not hold for a part, and are removed too. A fragment that keeps all entries keeps its
bytes. So does a fragment that cannot be filtered: a whole content, or a fragment without `from` or
`until`, or with an entry that takes its datetime from the entry before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document
from rsnotify.format.writer import write_document
from rsnotify.selection.push_selection import PushSelection
from rsnotify_hub.log.fragments import MERGED_CONTENT_TYPE, Fragment, read_stored
from rsnotify_hub.log.store import LogEntry

#: Parsed documents of up to this many bytes are cached for the other selections of their topic.
_SMALL = 16_384


def filter_fragment(fragment: Fragment, select: PushSelection) -> Fragment:
    """Return a fragment with only the entries that a selection admits."""
    if fragment.whole or fragment.heartbeat:
        return fragment
    document = _read(fragment.body)
    if not _can_be_filtered(document):
        return fragment
    kept = tuple(filter(select.admits, document.resources))
    if len(kept) == len(document.resources):
        return fragment
    return _written(fragment, replace(document, resources=kept, attributes=()))


def join_empty(entries: Iterable[LogEntry]) -> list[LogEntry]:
    """Join each empty fragment with the next one, unless that is not adjacent or is large."""
    joiner = EmptyIntervalJoiner()
    return [*joiner.add(entries), *joiner.flush()]


class EmptyIntervalJoiner:
    """Joins empty fragments with the next one, incrementally."""

    def __init__(self) -> None:
        self._held: _EmptyInterval | None = None

    @property
    def holds(self) -> bool:
        return self._held is not None

    def add(self, entries: Iterable[LogEntry]) -> list[LogEntry]:
        """Add the next entries; return those that can be sent now."""
        return [joined for entry in entries for joined in self._add(entry)]

    def _add(self, entry: LogEntry) -> list[LogEntry]:
        fragment, held = entry.fragment, self._held
        if fragment.heartbeat and fragment.from_ is not None:
            extended = held.extended(entry) if held is not None else None
            ended = self.flush() if extended is None else []
            self._held = extended or _EmptyInterval(entry, fragment.from_)
            return ended
        joined = held.joined(entry) if held is not None else None
        if joined is None:
            return [*self.flush(), entry]
        self._held = None
        return [joined]

    def flush(self) -> list[LogEntry]:
        held, self._held = self._held, None
        return [held.entry()] if held is not None else []


class _EmptyInterval(Struct, frozen=True):
    """Joined empty fragments: the last of them, and the begin of the first."""

    last: LogEntry
    begin: Instant

    def extended(self, entry: LogEntry) -> _EmptyInterval | None:
        """Return this with another empty fragment; None if they are not adjacent."""
        return _EmptyInterval(entry, self.begin) if self._is_adjacent(entry.fragment) else None

    def joined(self, entry: LogEntry) -> LogEntry | None:
        """Return the next fragment with this interval before it; None if they cannot be joined."""
        fragment = entry.fragment
        if len(fragment.body) > _SMALL or not self._is_adjacent(fragment):
            return None
        widened = _widened(fragment, self.begin)
        return None if widened is None else LogEntry(entry.position, widened)

    def _is_adjacent(self, fragment: Fragment) -> bool:
        if fragment.from_ is None or fragment.whole:
            return False
        return self.begin <= fragment.from_ <= self.last.fragment.until <= fragment.until

    def entry(self) -> LogEntry:
        widened = _widened(self.last.fragment, self.begin)
        return self.last if widened is None else LogEntry(self.last.position, widened)


# Many Destinations return at the same time and need the same fragments.
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
    return _read_small(body) if len(body) <= _SMALL else _read_large(body)


_read_small = lru_cache(maxsize=64)(read_stored)
# Fragments are filtered in turn for all selections of a topic, so each is parsed once.
_read_large = lru_cache(maxsize=1)(read_stored)
