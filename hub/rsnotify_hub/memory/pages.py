"""From fragments of a log to a page of its change memory. Nothing here does I/O.

Theory of operation. A page covers (since, until]: it begins where it was asked for, and ends
where what the log knows without a hole ends, or where the page is full. Fragments may overlap,
or have come out of order, so their entries are put in order and each change stands there once.
The next page begins where this one ends. A page that covers nothing has no `until` and no next
page: it is the end of the log, to be asked for again. A hole in the log is never passed over in
silence: the reader is told where the log goes on, and gets what lies between from the Source.
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
from rsnotify_hub.log.fragments import Fragment, read_kept


class NotKnown(RsnotifyError):
    """The log does not have what changed since an instant.

    Args:
        since: The instant.
        begins: Where the log goes on; None if it does not.
    """

    def __init__(self, since: Instant | None, begins: Instant | None) -> None:
        self.since = since
        self.begins = begins
        super().__init__(since, begins)

    def __str__(self) -> str:
        """Return what is not known, and what to do."""
        missing = "nothing is kept"
        if self.begins is not None and self.since is not None:
            missing = (
                f"changes between {format_datetime(self.since)} and "
                f"{format_datetime(self.begins)} are not known"
            )
        return f"{missing}; get them from the Source, then ask for what changed since"


class Page(Struct, frozen=True):
    """A page.

    Args:
        since: Where it begins (exclusive).
        until: Where it ends; the same where the log knows nothing later.
        entries: All changes between, in the order in which they happened.
        up: What leads to the Capability List, as the last fragment has it.
    """

    since: Instant
    until: Instant
    entries: tuple[Resource, ...]
    up: tuple[Link, ...]


def make_page(fragments: Sequence[Fragment], *, since: Instant | None, limit: int) -> Page:
    """Make the page of what changed since an instant.

    Args:
        fragments: What a log has of the time after it (`Store.changes`), at least one.
        since: The instant; None for as early as the log goes back.
        limit: How many entries there may be. There are more only where they are of one instant.

    Raises:
        NotKnown: There is a hole in the log at the instant.
    """
    ordered = sorted(fragments, key=lambda fragment: fragment.begins)
    since = ordered[0].begins if since is None else since
    chain, until = _chain(ordered, since)
    if not chain:
        raise NotKnown(since, ordered[0].begins)
    documents = [read_kept(fragment.body) for fragment in chain]
    changes = _joined(
        [
            _later(document, fragment, since)
            for document, fragment in zip(documents, chain, strict=True)
        ]
    )
    count = _cut([change.at for change in changes], since, limit)
    if count < len(changes):
        until = changes[count - 1].at
    return Page(
        since=since,
        until=max(since, until),
        entries=tuple(_entry(change) for change in changes[:count]),
        up=up_of(documents[-1]),
    )


def _chain(ordered: Sequence[Fragment], since: Instant) -> tuple[list[Fragment], Instant]:
    """Take fragments as long as none leaves a hole, and return where they end."""
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

    Those of the very instant count too where the fragment begins there: a Source of second
    granularity may find another change of a second that it has told of already.
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
    """Count how many changes a page takes: whole instants, and at least one later than `since`."""
    if len(instants) <= limit:
        return len(instants)
    before = bisect_left(instants, instants[limit])
    if before > bisect_right(instants, since):
        return before
    later = bisect_right(instants, since)
    return bisect_right(instants, instants[min(later, len(instants) - 1)])


def _entry(change: Change) -> Resource:
    """Return an entry that says by itself when it happened."""
    if change.resource.changed_at is not None:
        return change.resource
    return replace(change.resource, datetime=change.at)


def up_of(document: Document) -> tuple[Link, ...]:
    """Return the links to the Capability List."""
    return tuple(link for link in document.links if link.rel == Rel.UP)
