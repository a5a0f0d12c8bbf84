"""Which part of a channel's Change List is news to the hub, after a plain WebSub ping."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Set

from rsnotify.errors import InvalidDocument
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import Rel
from rsnotify_hub.log.fragments import capability_of

#: What tells two changes of one instant apart.
ChangeKey = tuple[str, str | None]


def keys_at(resources: Iterable[Resource], instant: Instant) -> set[ChangeKey]:
    """Return the changes of exactly one instant."""
    return {(entry.uri, entry.change) for entry in resources if entry.changed_at == instant}


def part_after(
    document: Document, *, through: Instant | None, known: Set[ChangeKey]
) -> Document | None:
    """Cut off a Change List what the log already has.

    Args:
        document: The Change List that the channel answered.
        through: Where the log ends; None when there is none yet.
        known: The changes of the instant `through` that the log has. A Source of second
            granularity may add another change of that same second.

    Returns:
        A Change Notification from the last change before the news; the document itself when
        it cannot be told which part is news; None when nothing is.
    """
    dates = [entry.changed_at for entry in document.resources]
    ordered = [at for at in dates if at is not None]
    if through is None:
        return document if document.resources else None
    if len(ordered) < len(dates) or ordered != sorted(ordered):
        return document
    begins = document.from_ or (ordered[0] if ordered else None)
    if begins is not None and begins > through:
        return document
    late = keys_at(document.resources, through) - known
    cut = bisect_left(ordered, through) if late else bisect_right(ordered, through)
    if cut == len(ordered):
        return None
    before = ordered[cut - 1] if cut else document.from_
    return document if before is None else _tail(document, cut, before, ordered[-1])


def _tail(document: Document, cut: int, from_: Instant, last: Instant) -> Document:
    return Document(
        capability=capability_of(document),
        resources=document.resources[cut:],
        from_=from_,
        until=document.until or last,
        links=_up(document),
    )


def announce(document: Document) -> Document:
    """Stand in for changes that are too many to push.

    Returns:
        A heartbeat at the last change: it holds none of them, but its `from` shows every
        Destination that something is missing, to be pulled from the Change List.

    Raises:
        InvalidDocument: The last change has no datetime.
    """
    last = document.resources[-1].changed_at
    if last is None:
        raise InvalidDocument("it is too large, and its last change has no datetime")
    return Document(capability=capability_of(document), from_=last, until=last, links=_up(document))


def _up(document: Document) -> tuple[Link, ...]:
    return tuple(link for link in document.links if link.rel == Rel.UP)
