"""What a selection leaves of fragments, and how what is empty then is joined.

Theory of operation. A fragment says of its interval what changed, and for a Destination that
asked for less it still does when the entries are left out that it did not ask for. So nothing
but entries goes: `from` and `until` stay, and T moves on. What is left may be empty; then it is
joined with what comes after it, since two intervals that meet are one.

What a fragment says of the whole (attributes of other namespaces, such as the sums of an audit)
may not hold for a part of it, and goes too. A fragment of which everything is left keeps its
bytes. So does one that cannot be cut: a whole content, or one that does not say from when until
when, or of whose entries one leaves its datetime to the one before it.
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

#: Documents up to this many bytes are kept read, for the other selections of their topic.
_SMALL = 16_384


def filter_fragment(fragment: Fragment, select: PushSelection) -> Fragment:
    """Return what a selection leaves of a fragment."""
    if fragment.whole or fragment.heartbeat:
        return fragment
    document = _read(fragment.body)
    if not _can_be_cut(document):
        return fragment
    kept = tuple(filter(select.admits, document.resources))
    if len(kept) == len(document.resources):
        return fragment
    return _written(fragment, replace(document, resources=kept, attributes=()))


def join_empty(entries: Iterable[LogEntry]) -> list[LogEntry]:
    """Join what is empty with what comes after it.

    Args:
        entries: What a selection left, in the order of the log.

    Returns:
        The same, but that an interval in which nothing is left begins no fragment of its own,
        unless it is the last, or what comes after it does not meet it or is large.
    """
    joiner = EmptyIntervalJoiner()
    return [*joiner.add(entries), *joiner.flush()]


class EmptyIntervalJoiner:
    """Joins what is empty with what comes after it, as it comes."""

    def __init__(self) -> None:
        self._run: _Run | None = None

    @property
    def holds(self) -> bool:
        """Whether something empty waits for what comes after it."""
        return self._run is not None

    def add(self, entries: Iterable[LogEntry]) -> list[LogEntry]:
        """Take what comes next; return what needs wait for nothing."""
        return [joined for entry in entries for joined in self._add(entry)]

    def _add(self, entry: LogEntry) -> list[LogEntry]:
        fragment, run = entry.fragment, self._run
        if fragment.heartbeat and fragment.from_ is not None:
            grown = run.grown(entry) if run is not None else None
            ended = self.flush() if grown is None else []
            self._run = grown or _Run(entry, fragment.from_)
            return ended
        joined = run.joined(entry) if run is not None else None
        if joined is None:
            return [*self.flush(), entry]
        self._run = None
        return [joined]

    def flush(self) -> list[LogEntry]:
        """Return what waits, if anything does."""
        run, self._run = self._run, None
        return [run.entry()] if run is not None else []


class _Run(Struct, frozen=True):
    """Intervals in which nothing is left, joined.

    Args:
        last: The last of them.
        begin: Where the first begins.
    """

    last: LogEntry
    begin: Instant

    def grown(self, entry: LogEntry) -> _Run | None:
        """Add another one; None where it does not meet this."""
        return _Run(entry, self.begin) if self._meets(entry.fragment) else None

    def joined(self, entry: LogEntry) -> LogEntry | None:
        """Return what comes next with this before it; None where that cannot be."""
        fragment = entry.fragment
        if len(fragment.body) > _SMALL or not self._meets(fragment):
            return None
        widened = _widened(fragment, self.begin)
        return None if widened is None else LogEntry(entry.position, widened)

    def _meets(self, fragment: Fragment) -> bool:
        if fragment.from_ is None or fragment.whole:
            return False
        return self.begin <= fragment.from_ <= self.last.fragment.until <= fragment.until

    def entry(self) -> LogEntry:
        """Return all of them as one."""
        widened = _widened(self.last.fragment, self.begin)
        return self.last if widened is None else LogEntry(self.last.position, widened)


# Many come back at once and need the same.
@lru_cache(maxsize=64)
def _widened(fragment: Fragment, begin: Instant) -> Fragment | None:
    if fragment.from_ == begin:
        return fragment
    document = _read(fragment.body)
    if not _can_be_cut(document):
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


def _can_be_cut(document: Document) -> bool:
    stated = document.from_ is not None and document.until is not None
    return stated and all(entry.changed_at is not None for entry in document.resources)


def _read(body: bytes) -> Document:
    return _read_small(body) if len(body) <= _SMALL else _read_large(body)


_read_small = lru_cache(maxsize=64)(read_stored)
# One after another, so that each is read once for all selections of its topic.
_read_large = lru_cache(maxsize=1)(read_stored)
