"""Makes a page of the change memory from the fragments of a log, without I/O.

Theory of operation. A page covers (since, until]: it begins at the requested instant, and ends at
the first gap in the log, at the end of the log, or when the page is full. Fragments may overlap or
be out of order, so their entries are sorted, and each change is on the page once. The next page
begins at the end of this one. A page at the end of the log covers nothing: it has no `until` and no
next page, and can be requested again. If there is a gap at the requested instant, the error names
the instant after the gap; the client gets the changes in between from the Source.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import merge

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import RsnotifyError
from rsnotify.format.coverage import Change, notification_coverage
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.frontier import change_key
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import Rel
from rsnotify_hub.log.fragments import Fragment, read_stored


class UnknownChanges(RsnotifyError):
    """The log does not have all changes since an instant; it continues at `begins`, if at all."""

    def __init__(self, since: Instant | None, begins: Instant | None) -> None:
        self.since = since
        self.begins = begins
        super().__init__(since, begins)

    def __str__(self) -> str:
        missing = "nothing is kept"
        if self.begins is not None and self.since is not None:
            missing = (
                f"changes between {format_datetime(self.since)} and "
                f"{format_datetime(self.begins)} are not known"
            )
        return f"{missing}; get them from the Source, then request the changes since"


class ChangeMemoryPage(Struct, frozen=True):
    """The changes after `since`, by time; `until` equals it at the end of the log."""

    since: Instant
    until: Instant
    entries: tuple[Resource, ...]
    up: tuple[Link, ...]


def make_page(
    fragments: Sequence[Fragment], *, since: Instant | None, limit: int
) -> ChangeMemoryPage:
    """Return the page of changes since an instant, or since the begin of the log.

    Args:
        fragments: The fragments of a log after it (`Store.changes`), at least one.
        since: The instant; None for the begin of the log.
        limit: The largest number of entries; exceeded only if they are all of one instant.

    Raises:
        UnknownChanges: There is a gap in the log at the instant.
    """
    ordered = sorted(fragments, key=lambda fragment: fragment.begins)
    since = ordered[0].begins if since is None else since
    chain, until = _chain(ordered, since)
    if not chain:
        raise UnknownChanges(since, ordered[0].begins)
    documents = [read_stored(fragment.body) for fragment in chain]
    changes = _joined(
        [
            _later(document, fragment, since)
            for document, fragment in zip(documents, chain, strict=True)
        ]
    )
    count = _cut([change.at for change in changes], since, limit)
    if count < len(changes):
        until = changes[count - 1].at
    return ChangeMemoryPage(
        since=since,
        until=max(since, until),
        entries=tuple(_entry(change) for change in changes[:count]),
        up=capability_list_links(documents[-1]),
    )


def _chain(ordered: Sequence[Fragment], since: Instant) -> tuple[list[Fragment], Instant]:
    until = since
    chain = []
    for fragment in ordered:
        if fragment.begins > until:
            break
        chain.append(fragment)
        until = max(until, fragment.until)
    return chain, until


def _later(document: Document, fragment: Fragment, since: Instant) -> list[Change]:
    """Return the changes of a fragment that are later than an instant.

    Changes at the instant count too if the fragment begins there: a Source with a precision of
    seconds may record another change of a second that it has already published.
    """
    at_it = fragment.from_ is not None and fragment.from_ >= since
    changes = notification_coverage(document).changes
    return [change for change in changes if change.at > since or (at_it and change.at == since)]


def _joined(parts: Sequence[Sequence[Change]]) -> list[Change]:
    seen = set()
    joined = []
    for change in merge(*parts, key=lambda change: change.at):
        same = (change.at, change_key(change))
        if same not in seen:
            seen.add(same)
            joined.append(change)
    return joined


def _cut(instants: Sequence[Instant], since: Instant, limit: int) -> int:
    """Return the number of changes on a page: whole instants, at least one later than `since`."""
    if len(instants) <= limit:
        return len(instants)
    before = bisect_left(instants, instants[limit])
    if before > bisect_right(instants, since):
        return before
    later = bisect_right(instants, since)
    return bisect_right(instants, instants[min(later, len(instants) - 1)])


def _entry(change: Change) -> Resource:
    if change.resource.changed_at is not None:
        return change.resource
    return replace(change.resource, datetime=change.at)


def capability_list_links(document: Document) -> tuple[Link, ...]:
    return tuple(link for link in document.links if link.rel == Rel.UP)
