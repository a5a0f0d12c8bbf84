"""The change memory: what changed since an instant, a page at a time (early draft §4.1).

A page is a standard Change List. One that has a page behind it is closed, and its `until` is
where that page begins; the last one is open, and what it links to as `next` is empty until
something changes. Recent changes come from the journal, older ones from the closed Change
Lists, and a page never reads more than one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from urllib.parse import urlencode

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import format_datetime, from_microseconds, to_microseconds
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import Capability, Rel
from rsnotify_publisher.documents import CAPABILITY_LIST, CHANGE_MEMORY, RESOURCE_LIST
from rsnotify_publisher.journal import Volume
from rsnotify_publisher.library.closed import changes_in
from rsnotify_publisher.source import Source

#: Changes in a page, where the client does not say.
USUAL_LIMIT = 1_000
_MOST = 10_000


class Forgotten(RsnotifyError, LookupError):
    """What changed since the instant is no longer known; the text says what to do instead."""


class ChangeMemory:
    """Answers what changed.

    Args:
        source: Whose changes they are.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._documents = source.documents

    def page(self, since: int | None, limit: int = USUAL_LIMIT) -> Document:
        """Make the page of changes later than an instant.

        Args:
            since: The instant (µs); None for the earliest that is known.
            limit: How many changes at most. There are fewer where a closed list ends.

        Raises:
            Forgotten: The journal and the closed lists begin later.
            StorageError: The journal cannot be used.
        """
        many = min(limit, _MOST)
        with self._source.open_journal() as journal, journal.snapshot() as state:
            closed = journal.volumes(Capability.CHANGE_LIST)
            earliest = min([state.pruned, *(volume.begin for volume in closed)])
            since = earliest if since is None else since
            if since >= state.pruned:
                changes = journal.changes(since, many + 1)
                end = None
            else:
                volume = self._covering(closed, since, earliest)
                changes = list(islice(self._listed(volume, since), many + 1))
                end = volume.end
        if len(changes) > many:
            end = _instant(changes[many - 1])
        return self._document(since, changes[:many], end, many)

    def _covering(self, closed: list[Volume], since: int, earliest: int) -> Volume:
        for volume in closed:
            if volume.begin <= since < volume.end:
                return volume
        raise Forgotten(
            f"changes are known since {format_datetime(from_microseconds(earliest))} only; compare "
            f"with {self._documents.uri(RESOURCE_LIST)} and ask for what changed since its `at`"
        )

    def _listed(self, volume: Volume, since: int) -> Iterator[Resource]:
        changes = changes_in(self._source.documents_folder, volume)
        return (change for change in changes if _instant(change) > since)

    def _document(
        self, since: int, changes: list[Resource], end: int | None, limit: int
    ) -> Document:
        """Put a page together; `end` is where it is closed, if it is."""
        links = [Link(Rel.UP, self._documents.uri(CAPABILITY_LIST))]
        if end is not None:
            links.append(Link(Rel.NEXT, self._uri(end, limit)))
        elif changes:
            links.append(Link(Rel.NEXT, self._uri(_instant(changes[-1]), limit)))
        return Document(
            Capability.CHANGE_LIST,
            tuple(changes),
            from_=from_microseconds(since),
            until=None if end is None else from_microseconds(end),
            links=tuple(links),
        )

    def _uri(self, since: int, limit: int) -> str:
        query = {"since": format_datetime(from_microseconds(since))}
        if limit != USUAL_LIMIT:
            query["limit"] = str(limit)
        return f"{self._documents.uri(CHANGE_MEMORY)}?{urlencode(query, safe=':')}"


def _instant(change: Resource) -> int:
    assert change.changed_at is not None
    return to_microseconds(change.changed_at)
