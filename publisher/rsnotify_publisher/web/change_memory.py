"""The change memory: the changes since an instant, a page at a time (early draft §4.1).

A page is a standard Change List. A page that has a next one is closed, and the next one begins at
its `until`. The last page is open, and its `next` is empty until something changes. Recent changes
are read from the journal, older ones from the closed Change Lists; a page reads only one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from urllib.parse import urlencode

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import format_datetime, from_microseconds, to_microseconds
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import Capability, Rel
from rsnotify_publisher.documents.closed_list_reader import changes_in
from rsnotify_publisher.journal import FinishedDocument
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import CAPABILITY_LIST, CHANGE_MEMORY, RESOURCE_LIST

#: Changes in a page, unless the client sets a limit.
USUAL_LIMIT = 1_000
_MOST = 10_000


class ChangesForgotten(RsnotifyError, LookupError):
    """The changes since the instant are no longer known; the text says what to do instead."""


class SourceChangeMemory:
    def __init__(self, source: SourceContext) -> None:
        self._source = source
        self._documents = source.documents

    def page(self, since: int | None, limit: int = USUAL_LIMIT) -> Document:
        """Return the page of changes later than an instant (µs), by default the earliest known.

        There are fewer changes than `limit` if a closed list ends.

        Raises:
            ChangesForgotten: The journal and the closed lists begin later.
            StorageError: The journal cannot be used.
        """
        many = min(limit, _MOST)
        with self._source.open_journal() as journal, journal.snapshot() as state:
            closed = journal.finished(Capability.CHANGE_LIST)
            earliest = min([state.pruned, *(document.begin for document in closed)])
            since = earliest if since is None else since
            if since >= state.pruned:
                changes = journal.changes(since, many + 1)
                end = None
            else:
                document = self._covering(closed, since, earliest)
                changes = list(islice(self._listed(document, since), many + 1))
                end = document.end
        if len(changes) > many:
            end = _instant(changes[many - 1])
        return self._document(since, changes[:many], end, many)

    def _covering(
        self, closed: list[FinishedDocument], since: int, earliest: int
    ) -> FinishedDocument:
        for document in closed:
            if document.begin <= since < document.end:
                return document
        raise ChangesForgotten(
            f"changes are known since {format_datetime(from_microseconds(earliest))} only; compare "
            f"with {self._documents.uri(RESOURCE_LIST)} and ask for what changed since its `at`"
        )

    def _listed(self, document: FinishedDocument, since: int) -> Iterator[Resource]:
        changes = changes_in(self._source.documents_folder, document)
        return (change for change in changes if _instant(change) > since)

    def _document(
        self, since: int, changes: list[Resource], end: int | None, limit: int
    ) -> Document:
        """Return a page; closed if it has an `end`."""
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
