"""Serves the change memory: the changes since an instant, one page at a time (early draft §4.1).

Each page is a standard Change List. A page that is followed by another is closed, and the next page
begins at its `until`. The last page is open, and its `next` page is empty until something changes.
Recent changes are read from the journal, older ones from the closed Change Lists. A single page
uses only one of these sources.
"""

from __future__ import annotations

import re
from itertools import islice
from urllib.parse import urlencode

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import (
    format_datetime,
    from_microseconds,
    parse_datetime,
    to_microseconds,
)
from rsnotify.format.model import Capability, Document, Link, Rel, Resource
from rsnotify.runtime.web_messages import WebRequest, WebResponse, text_response
from rsnotify_publisher.documents.open_change_list import changes_in
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import (
    CAPABILITY_LIST,
    CHANGE_MEMORY,
    RESOURCE_LIST,
    digest_of,
)
from rsnotify_publisher.web.responses import (
    LIVE,
    XML,
    Answer,
    Representation,
    memory_representation,
    respond,
)

#: Maximum number of changes in a page, unless the client sets a limit.
DEFAULT_LIMIT = 1_000
#: Maximum limit that a client can set.
_MAX_LIMIT = 10_000


class ChangesForgotten(RsnotifyError, LookupError):
    """The changes since the instant are no longer known. The message says what to do instead."""


def change_memory(source: SourceContext) -> Answer:
    """Return a function that responds to requests for the change memory."""

    def answer(request: WebRequest) -> WebResponse:
        try:
            since, limit = _parse_query(request.parameters())
        except ValueError as error:
            return text_response(400, f"{error}\n")

        def load() -> Representation:
            page = _page(source, since, limit)
            body = source.documents.write(page)
            return memory_representation(digest_of(body), _modified(page), [body])

        try:
            return respond(request, load, XML | LIVE, compressible=True)
        except ChangesForgotten as error:
            return text_response(410, f"{error}\n")

    return answer


def _parse_query(query: dict[str, str]) -> tuple[int | None, int]:
    """Return the instant (µs) and the limit in a query. Raises ValueError if one is invalid."""
    since, limit = query.get("since"), query.get("limit", str(DEFAULT_LIMIT))
    if not re.fullmatch(r"0*[1-9]\d{0,17}", limit, re.ASCII):
        raise ValueError(f"limit: {limit!r} is not a whole number above 0")
    if since is None:
        return None, int(limit)
    try:
        # If the + of a time zone is not percent-encoded, it arrives as a space.
        instant = parse_datetime(since.replace(" ", "+") if "T" in since else since)
    except ValueError as error:
        raise ValueError(f"since: {error}") from None
    return to_microseconds(instant), int(limit)


def _modified(page: Document) -> float:
    last = page.resources[-1].changed_at if page.resources else page.from_
    assert last is not None
    return last.timestamp()


def _page(source: SourceContext, since: int | None, limit: int) -> Document:
    """Return a page of changes after an instant (µs), by default the earliest possible one.

    A page from a closed list ends where the list ends, so it may have fewer changes than `limit`.

    Raises:
        ChangesForgotten: The journal and the closed lists begin later.
        StorageError: The journal cannot be used.
    """
    limit = min(limit, _MAX_LIMIT)
    end: int | None = None
    with source.open_journal() as journal, journal.snapshot() as state:
        closed = journal.finished(Capability.CHANGE_LIST)
        earliest = min([state.pruned, *(document.begin for document in closed)])
        since = earliest if since is None else since
        if since >= state.pruned:
            changes = journal.changes(since, limit + 1)
        else:
            document = next((one for one in closed if one.begin <= since < one.end), None)
            if document is None:
                raise ChangesForgotten(
                    f"changes before {format_datetime(from_microseconds(earliest))} are no longer "
                    f"available; compare your copy with {source.documents.uri(RESOURCE_LIST)}, "
                    "then request the changes since its `at`"
                )
            listed = changes_in(source.documents_folder, document)
            later = (change for change in listed if _instant(change) > since)
            changes = list(islice(later, limit + 1))
            end = document.end
    if len(changes) > limit:
        del changes[limit:]
        end = _instant(changes[-1])
    links = [Link(Rel.UP, source.documents.uri(CAPABILITY_LIST))]
    if end is not None or changes:
        after = _instant(changes[-1]) if end is None else end
        query = {"since": format_datetime(from_microseconds(after))}
        if limit != DEFAULT_LIMIT:
            query["limit"] = str(limit)
        uri = f"{source.documents.uri(CHANGE_MEMORY)}?{urlencode(query, safe=':')}"
        links.append(Link(Rel.NEXT, uri))
    return Document(
        Capability.CHANGE_LIST,
        tuple(changes),
        from_=from_microseconds(since),
        until=None if end is None else from_microseconds(end),
        links=tuple(links),
    )


def _instant(change: Resource) -> int:
    assert change.changed_at is not None
    return to_microseconds(change.changed_at)
