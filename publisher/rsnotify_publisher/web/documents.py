"""Responds to requests for the documents of a Source, independently of the server.

Most documents are served from their files. The open Change List and the channel are generated from
the journal, so that a response has every change that was durable when the request arrived. All code
in this module blocks, so it runs in threads.

The change memory returns the changes since an instant, one page at a time (early draft §4.1). Each
page is a standard Change List. A page that is followed by another is closed, and the next page
begins at its `until`. The last page is open, and its `next` page is empty until something changes.
Recent changes are read from the journal, older ones from the closed Change Lists. A single page
uses only one of these sources.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from urllib.parse import unquote, urlencode, urlsplit

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import (
    format_datetime,
    from_microseconds,
    parse_datetime,
    to_microseconds,
)
from rsnotify.format.links import format_links
from rsnotify.format.media_types import guess_media_type
from rsnotify.format.model import WELL_KNOWN_PATH, Capability, Document, Link, Rel, Resource
from rsnotify.format.writer import write_document
from rsnotify.runtime.web_messages import WebRequest, WebResponse, text_response
from rsnotify_publisher.description import SourceDescription, robots_lines
from rsnotify_publisher.documents.open_change_list import OpenChangeList, changes_in
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import (
    CAPABILITY_LIST,
    CHANGE_LIST,
    CHANGE_MEMORY,
    CHANNEL,
    DESCRIPTION,
    FRAMEWORK,
    OPEN_PART,
    PARTS,
    RESOURCE_LIST,
    digest_of,
    is_final,
)
from rsnotify_publisher.view import View
from rsnotify_publisher.web.responses import (
    Representation,
    file_representation,
    memory_representation,
    respond,
)

_log = logging.getLogger("rsnotify.publisher")

#: Responds to a GET or HEAD request.
Answer = Callable[[WebRequest], WebResponse]
#: The file name extensions of closed documents, parts, packages, and the built-in views.
_SUFFIXES = (".xml", ".xml.gz", ".zip", ".json", ".ttl")

#: Headers of documents that may change: clients revalidate them, and a 304 is cheap.
LIVE = {"Cache-Control": "no-cache"}
_CLOSED = {"Cache-Control": "public, max-age=31536000, immutable"}
_XML = {"Content-Type": "application/xml"}
#: Scripts on any web page may read the views (IIIF Change Discovery §4.1).
_ANY_ORIGIN = {"Access-Control-Allow-Origin": "*"}


class DocumentPaths:
    """Maps paths on the host of the base URL to documents.

    A request for a document starts `source` unless it is running. `with_robots` includes robots.txt
    if the Source is at the root of its host.
    """

    def __init__(self, source: Publisher | SourceDescription, *, with_robots: bool) -> None:
        self._source = source
        self._is_part = re.compile(part_name(source)).fullmatch
        prefix = path_of(source)
        table = answers(source, prefix)
        if with_robots and prefix == "/":
            table["/robots.txt"] = robots(source)
        self._answers = {unquote(path): answer for path, answer in table.items()}

    def find(self, path: str) -> Answer | None:
        """Return the function that responds to requests for a path, or None for other paths."""
        folder, _, name = path.rpartition("/")
        found = self._answers.get(path) if name else None
        if found is None and self._is_part(name) is not None:
            found = self._answers.get(folder + "/")
        return None if found is None else partial(self._answer, found)

    def _answer(self, found: Answer, request: WebRequest) -> WebResponse:
        if request.method not in ("GET", "HEAD"):
            return text_response(405, headers={"Allow": "GET, HEAD"})
        try:
            self._source.start()
        except RsnotifyError as error:
            _log.error("%s is answered by 503: %s", request.path, error)
            return text_response(503)
        return found(request)


def part_name(source: Publisher | SourceDescription) -> str:
    """Return a pattern for the file names of closed documents, parts, packages and views."""
    suffixes = dict.fromkeys(_SUFFIXES)
    for publisher in [source] if isinstance(source, Publisher) else source.sets:
        suffixes |= {view.suffix: None for view in publisher.source.views.values()}
    return rf"[\w-]+(?:{'|'.join(map(re.escape, suffixes))})"


def answers(source: Publisher | SourceDescription, prefix: str) -> dict[str, Answer]:
    """Return the responding functions by path. A path that ends in a slash covers all parts below.

    `prefix` is the path of the base URL.
    """
    table: dict[str, Answer] = {}
    if isinstance(source, Publisher):
        table |= _answers_of_set(source.source, prefix)
    else:
        for publisher in source.sets:
            below = path_of(publisher).removeprefix(path_of(source))
            table |= _answers_of_set(publisher.source, prefix + below)
        table[prefix + DESCRIPTION] = _constant(write_document(source.document()))
    # The well-known URI belongs to the host, not to the base URL (core §6.3.2).
    table[WELL_KNOWN_PATH] = table[prefix + DESCRIPTION]
    return table


def robots(source: Publisher | SourceDescription) -> Answer:
    """Return a function that serves a robots.txt listing every Resource List (core §6.3.4)."""
    return _constant(robots_lines(source).encode(), {"Content-Type": "text/plain"})


def path_of(source: Publisher | SourceDescription) -> str:
    base_url = source.source.base_url if isinstance(source, Publisher) else source.base_url
    return urlsplit(base_url).path


def _answers_of_set(source: SourceContext, prefix: str) -> dict[str, Answer]:
    folder, documents = source.documents_folder, source.documents
    table = {prefix + name: _offered(folder / name, _XML | LIVE) for name in documents.files}
    for view in source.views.values():
        headers = {"Content-Type": view.media_type} | _ANY_ORIGIN
        table[prefix + view.root] = _offered(folder / view.root, headers | LIVE)
    table[prefix + CHANGE_MEMORY] = _change_memory(source)
    if (channel := documents.framework) is not None:
        links = _links(channel.topic, channel.hubs)
        table[prefix + FRAMEWORK] = _offered(folder / FRAMEWORK, _XML | LIVE | links)
    fresh = _FreshList(source)
    load_open_part = partial(fresh.load, OpenChangeList.open_chunks)
    # Generated, since the file may lag behind what changelist.xml last showed as a single list.
    table[prefix + OPEN_PART] = _loaded(load_open_part, _XML | LIVE)
    table[prefix + PARTS] = _part(folder, {view.suffix: view for view in source.views.values()})
    load_list = partial(fresh.load, OpenChangeList.chunks)
    table[prefix + CHANGE_LIST] = _loaded(load_list, _XML | LIVE)
    links = _links(documents.topic, documents.hubs)
    table[prefix + CHANNEL] = _loaded(load_open_part, _XML | LIVE | links)
    return table


def _loaded(load: Callable[[], Representation], headers: dict[str, str]) -> Answer:
    return lambda request: respond(request, load, headers, compressible=True)


def _offered(path: Path, headers: dict[str, str]) -> Answer:
    """Return a function that responds with a document, or with 503 until it has been written."""
    respond_with_file = _loaded(lambda: file_representation(path), headers)

    def answer(request: WebRequest) -> WebResponse:
        response = respond_with_file(request)
        if response.status == 404:
            # A client that starts at the same time as the Source would give up after a 404.
            text = "503: this document is not written yet; try again later"
            return text_response(503, text, {"Retry-After": "1"})
        return response

    return answer


def _links(topic: str, hubs: tuple[str, ...]) -> dict[str, str]:
    """Return the header that lets subscribers discover the hubs and the topic (WebSub §4)."""
    return {"Link": format_links([(Rel.SELF, topic), *((Rel.HUB, hub) for hub in hubs)])}


def _part(folder: Path, views: Mapping[str, type[View]]) -> Answer:
    """Return a function that responds with a file below PARTS. `views` are keyed by extension."""

    def answer(request: WebRequest) -> WebResponse:
        path = folder / PARTS / request.path.rpartition("/")[2]
        view = views.get(path.suffix)
        headers = _XML
        if view is not None:
            headers = {"Content-Type": view.media_type} | _ANY_ORIGIN
        elif path.suffix not in (".xml", ".gz"):
            headers = {
                "Content-Type": guess_media_type(f"/{path.name}") or "application/octet-stream"
            }
        is_constant = is_final(path.name) and (view is None or not view.heads_change)
        # A `.xml.gz` is served as the XML document with a content coding, so that browsers show it
        # and even clients that cannot decompress can read it.
        return respond(
            request,
            lambda: file_representation(path, is_gzip=path.suffix == ".gz"),
            headers | (_CLOSED if is_constant else LIVE),
            compressible=path.suffix not in (".gz", ".zip"),
        )

    return answer


def _constant(body: bytes, type_: dict[str, str] = _XML) -> Answer:
    representation = memory_representation(digest_of(body), time.time(), [body])
    return _loaded(lambda: representation, type_ | LIVE)


class _FreshList:
    """The open Change List, updated from the journal for each request."""

    def __init__(self, source: SourceContext) -> None:
        self._open_journal = source.open_journal
        self._list = OpenChangeList(source.documents)
        self._lock = threading.Lock()

    def load(self, chunks: Callable[[OpenChangeList], list[bytes]]) -> Representation:
        with self._lock:
            with self._open_journal() as journal:
                self._list.refresh(journal)
            version, modified = self._list.version, self._list.through / 1e6
            return memory_representation(version, modified, chunks(self._list))


def _change_memory(source: SourceContext) -> Answer:
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
            return respond(request, load, _XML | LIVE, compressible=True)
        except ChangesForgotten as error:
            return text_response(410, f"{error}\n")

    return answer


def _parse_query(query: dict[str, str]) -> tuple[int | None, int]:
    """Return the instant (µs) and the limit from a query, or raise ValueError if one is wrong."""
    since, limit = query.get("since"), query.get("limit", str(USUAL_LIMIT))
    if not re.fullmatch(r"0*[1-9]\d{0,17}", limit, re.ASCII):
        raise ValueError(f"limit: {limit!r} is not a whole number above 0")
    if since is None:
        return None, int(limit)
    try:
        # An unescaped + of a time zone arrives as a space.
        instant = parse_datetime(since.replace(" ", "+") if "T" in since else since)
    except ValueError as error:
        raise ValueError(f"since: {error}") from None
    return to_microseconds(instant), int(limit)


def _modified(page: Document) -> float:
    last = page.resources[-1].changed_at if page.resources else page.from_
    assert last is not None
    return last.timestamp()


#: Maximum number of changes in a page, unless the client sets a limit.
USUAL_LIMIT = 1_000
_MOST = 10_000


class ChangesForgotten(RsnotifyError, LookupError):
    """The changes since the instant are no longer known. The message says what to do instead."""


def _page(source: SourceContext, since: int | None, limit: int) -> Document:
    """Return a page of changes after an instant (µs), by default from the earliest known one.

    A page that is read from a closed list ends where the list ends, so it may have fewer changes
    than `limit`.

    Raises:
        ChangesForgotten: The journal and the closed lists begin later.
        StorageError: The journal cannot be used.
    """
    many = min(limit, _MOST)
    end: int | None = None
    with source.open_journal() as journal, journal.snapshot() as state:
        closed = journal.finished(Capability.CHANGE_LIST)
        earliest = min([state.pruned, *(document.begin for document in closed)])
        since = earliest if since is None else since
        if since >= state.pruned:
            changes = journal.changes(since, many + 1)
        else:
            document = next((one for one in closed if one.begin <= since < one.end), None)
            if document is None:
                raise ChangesForgotten(
                    f"changes are known since {format_datetime(from_microseconds(earliest))} only; "
                    f"compare with {source.documents.uri(RESOURCE_LIST)} and ask for what changed "
                    "since its `at`"
                )
            listed = changes_in(source.documents_folder, document)
            later = (change for change in listed if _instant(change) > since)
            changes = list(islice(later, many + 1))
            end = document.end
    if len(changes) > many:
        del changes[many:]
        end = _instant(changes[-1])
    links = [Link(Rel.UP, source.documents.uri(CAPABILITY_LIST))]
    if end is not None or changes:
        after = _instant(changes[-1]) if end is None else end
        query = {"since": format_datetime(from_microseconds(after))}
        if many != USUAL_LIMIT:
            query["limit"] = str(many)
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
