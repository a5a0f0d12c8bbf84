"""The part of a fetched topic that is new to its log, without I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence, Set

from rsnotify.errors import InvalidDocument
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.reader import DocumentLimits, read_document
from rsnotify.format.vocabulary import Rel
from rsnotify.format.writer import write_document
from rsnotify_hub.fragments.content import is_sitemap, is_xml, whole_content
from rsnotify_hub.fragments.fragment import (
    MERGED_CONTENT_TYPE,
    Fragment,
    capability_of,
    check_fragment,
    read_fragment,
    read_stored,
)
from rsnotify_hub.store.interface import LogEntry
from rsnotify_hub.websub.pinging.topic_client import Fetched

#: What distinguishes two changes of one instant: the URI and the kind of change.
ChangeKey = tuple[str, str | None]


class NewsReader:
    def __init__(self, limits: DocumentLimits, max_bytes: int) -> None:
        self._limits = limits
        self._max_bytes = max_bytes

    def news(
        self,
        fetched: Fetched,
        *,
        through: Instant | None,
        last: Sequence[LogEntry],
        received: Instant,
    ) -> Fragment | None:
        """Return what is to be appended to the log, or None if a Change List has nothing new.

        `last` are the entries that reach `through`, the instant up to which the log has changes.
        """
        content_type = fetched.content_type or _guessed(fetched.body)
        if is_xml(content_type) and is_sitemap(fetched.body):
            return self._changes(fetched.body, content_type, through, last)
        if len(fetched.body) > self._max_bytes:
            raise InvalidDocument(f"it is larger than {self._max_bytes} bytes")
        return whole_content(fetched.body, content_type, received)

    def _changes(
        self, body: bytes, content_type: str, through: Instant | None, last: Sequence[LogEntry]
    ) -> Fragment | None:
        document = read_document(body, limits=self._limits)
        known = set() if through is None else _known(last, through)
        news = part_after(document, through=through, known=known)
        if news is None:
            return None
        if news is not document:
            body, content_type = write_document(news), MERGED_CONTENT_TYPE
        if len(body) > self._max_bytes:
            check_fragment(news, body, content_type)
            body, content_type = write_document(announce(news)), MERGED_CONTENT_TYPE
        return read_fragment(body, content_type=content_type, limits=self._limits)


def _known(last: Sequence[LogEntry], through: Instant) -> set[ChangeKey]:
    known: set[ChangeKey] = set()
    for entry in last:
        known |= keys_at(read_stored(entry.fragment.body).resources, through)
    return known


def _guessed(body: bytes) -> str:
    """Guess the type of a content without a Content-Type, as RFC 9110 §8.3 allows."""
    return MERGED_CONTENT_TYPE if body.startswith(b"<?xml") else "application/octet-stream"


def keys_at(resources: Iterable[Resource], instant: Instant) -> set[ChangeKey]:
    return {(entry.uri, entry.change) for entry in resources if entry.changed_at == instant}


def part_after(
    document: Document, *, through: Instant | None, known: Set[ChangeKey]
) -> Document | None:
    """Return the part of a Change List that the log does not have.

    `through` is the end of the log, and `known` the changes of that instant that it has: a Source
    of second granularity may add another change within that same second.

    Returns:
        A Change Notification from the last change before the new ones; the document itself if the
        new part cannot be determined; None if nothing is new.
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
    news = document.resources[cut:]
    if late and ordered[-1] == through:
        # It begins where the log ends, so that it is replayed to Destinations that know all before.
        missing = tuple(entry for entry in news if (entry.uri, entry.change) in late)
        return _tail(document, missing, through, through)
    before = ordered[cut - 1] if cut else document.from_
    return document if before is None else _tail(document, news, before, ordered[-1])


def _tail(
    document: Document, news: tuple[Resource, ...], from_: Instant, last: Instant
) -> Document:
    return Document(
        capability=capability_of(document),
        resources=news,
        from_=from_,
        until=document.until or last,
        links=_up(document),
    )


def announce(document: Document) -> Document:
    """Return a heartbeat that replaces changes that are too many to push.

    Its `from` is the last change, so that every Destination sees a gap and pulls the Change List.
    """
    last = document.resources[-1].changed_at
    if last is None:
        raise InvalidDocument("it is too large, and its last change has no datetime")
    return Document(capability=capability_of(document), from_=last, until=last, links=_up(document))


def _up(document: Document) -> tuple[Link, ...]:
    return tuple(link for link in document.links if link.rel == Rel.UP)
