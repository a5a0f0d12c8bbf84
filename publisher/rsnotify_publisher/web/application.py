"""Serves the documents over HTTP, as an aiohttp application or as routes for one.

Files are served as they are, but the open Change List and the channel are made from the journal:
a response has every change that was durable when the request arrived.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from rsnotify.format.datetimes import parse_datetime, to_microseconds
from rsnotify.format.links import format_links
from rsnotify.format.model import Document
from rsnotify.format.vocabulary import WELL_KNOWN_PATH, Rel
from rsnotify.format.writer import write_document
from rsnotify_publisher.description import SourceDescription
from rsnotify_publisher.discovery import robots_lines
from rsnotify_publisher.documents.open_change_list import OpenChangeList
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import (
    CHANGE_LIST,
    CHANGE_MEMORY,
    CHANNEL,
    DESCRIPTION,
    FRAMEWORK,
    JSON_TYPE,
    OPEN_PART,
    PARTS,
    TURTLE_TYPE,
    VIEWS,
    digest_of,
    is_final,
)
from rsnotify_publisher.web.change_memory import USUAL_LIMIT, ChangesForgotten, SourceChangeMemory
from rsnotify_publisher.web.responses import (
    Representation,
    file_representation,
    memory_representation,
    respond,
)

#: Clients revalidate what may change; a 304 costs little.
LIVE: dict[str, str] = {hdrs.CACHE_CONTROL: "no-cache"}
_CLOSED: dict[str, str] = {hdrs.CACHE_CONTROL: "public, max-age=31536000, immutable"}
_XML: dict[str, str] = {hdrs.CONTENT_TYPE: "application/xml"}
#: Pages of browsers may read the views (IIIF Change Discovery §4.1).
_ANY_ORIGIN: dict[str, str] = {hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: "*"}
_TYPES: dict[str, dict[str, str]] = {
    ".zip": {hdrs.CONTENT_TYPE: "application/zip"},
    ".json": {hdrs.CONTENT_TYPE: JSON_TYPE} | _ANY_ORIGIN,
    ".ttl": {hdrs.CONTENT_TYPE: TURTLE_TYPE} | _ANY_ORIGIN,
}


def application(source: Publisher | SourceDescription) -> web.Application:
    """Return an application that serves the documents, to run or to mount at the base URL.

    It starts the Publisher, or those of all sets, with itself, and closes them.
    """

    async def running(_: web.Application) -> AsyncIterator[None]:
        async with source:
            yield

    app = web.Application()
    app.cleanup_ctx.append(running)
    app.add_routes(routes(source))
    if path_of(source) == "/":
        app.router.add_get("/robots.txt", robots(source))
    return app


def routes(source: Publisher | SourceDescription, prefix: str = "/") -> list[web.RouteDef]:
    """Return the routes of the documents, for an existing application.

    Args:
        source: Started by the caller.
        prefix: The path of the base URL.
    """
    table: dict[str, Handler] = {}
    if isinstance(source, Publisher):
        table |= _routes_of_set(source.source, prefix)
    else:
        for publisher in source.sets:
            below = path_of(publisher).removeprefix(path_of(source))
            table |= _routes_of_set(publisher.source, prefix + below)
        table[prefix + DESCRIPTION] = _constant(write_document(source.document()))
    # core §6.3.2: the well-known URI belongs to the host, not to the base URL.
    table[WELL_KNOWN_PATH] = table[prefix + DESCRIPTION]
    return [web.get(path, handler) for path, handler in table.items()]


def robots(source: Publisher | SourceDescription) -> Handler:
    """Return the handler of a robots.txt that lists every Resource List (core §6.3.4)."""
    sets = [source] if isinstance(source, Publisher) else source.sets
    return _constant(robots_lines(sets).encode(), {hdrs.CONTENT_TYPE: "text/plain"})


def path_of(source: Publisher | SourceDescription) -> str:
    base_url = source.source.base_url if isinstance(source, Publisher) else source.base_url
    return urlsplit(base_url).path


def _routes_of_set(source: SourceContext, prefix: str) -> dict[str, Handler]:
    folder, documents = source.documents_folder, source.documents
    table = {prefix + name: _offered(folder / name, _XML | LIVE) for name in documents.files}
    for view in source.options.views:
        name, _ = VIEWS[view]
        table[prefix + name] = _offered(folder / name, _TYPES[Path(name).suffix] | LIVE)
    table[prefix + CHANGE_MEMORY] = _change_memory(source)
    if (channel := documents.framework) is not None:
        links = _links(channel.topic, channel.hubs)
        table[prefix + FRAMEWORK] = _offered(folder / FRAMEWORK, _XML | LIVE | links)
    fresh = _FreshList(source)
    # The file may lag behind what changelist.xml had before it became an index.
    table[prefix + OPEN_PART] = _loaded(fresh.load_open_part, _XML | LIVE)
    table[prefix + PARTS + r"{part:[\w-]+\.(?:xml|xml\.gz|zip|json|ttl)}"] = _part(folder)
    table[prefix + CHANGE_LIST] = _loaded(fresh.load, _XML | LIVE)
    links = _links(documents.topic, documents.hubs)
    table[prefix + CHANNEL] = _loaded(fresh.load_open_part, _XML | LIVE | links)
    return table


def _loaded(load: Callable[[], Representation], headers: dict[str, str]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await respond(request, load, headers, compressible=True)

    return handle


def _offered(path: Path, headers: dict[str, str]) -> Handler:
    """Serve a document; while it is not written yet, answer 503."""
    respond_with_file = _loaded(lambda: file_representation(path), headers)

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await respond_with_file(request)
        except web.HTTPNotFound:
            # A client that starts at the same time as the Source would give up on a 404.
            raise web.HTTPServiceUnavailable(headers={hdrs.RETRY_AFTER: "1"}) from None

    return handle


def _links(topic: str, hubs: tuple[str, ...]) -> dict[str, str]:
    """Return the header by which a subscriber discovers hub and topic (WebSub §4)."""
    links = [(Rel.SELF, topic), *((Rel.HUB, hub) for hub in hubs)]
    return {hdrs.LINK: format_links(links)}


def _part(folder: Path) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        path = folder / PARTS / request.match_info["part"]
        # The links of a page of activities may change.
        lasting = _CLOSED if is_final(path.name) and path.suffix != ".json" else LIVE
        # A `.xml.gz` is served as the XML document with a content coding, so that every client
        # can read it, also one that cannot inflate, and a browser shows it.
        return await respond(
            request,
            lambda: file_representation(path, is_gzip=path.suffix == ".gz"),
            _TYPES.get(path.suffix, _XML) | lasting,
            compressible=path.suffix in (".xml", ".json", ".ttl"),
        )

    return handle


def _constant(body: bytes, type_: dict[str, str] = _XML) -> Handler:
    representation = memory_representation(digest_of(body), time.time(), [body])
    return _loaded(lambda: representation, type_ | LIVE)


class _FreshList:
    """The open Change List, updated from the journal at every request."""

    def __init__(self, source: SourceContext) -> None:
        self._open_journal = source.open_journal
        self._list = OpenChangeList(source.documents)
        self._lock = threading.Lock()

    def load(self) -> Representation:
        return self._load(self._list.chunks)

    def load_open_part(self) -> Representation:
        return self._load(self._list.open_chunks)

    def _load(self, chunks: Callable[[], list[bytes]]) -> Representation:
        with self._lock:
            with self._open_journal() as journal:
                self._list.refresh(journal)
            return memory_representation(self._list.version, self._list.through / 1e6, chunks())


def _change_memory(source: SourceContext) -> Handler:
    memory = SourceChangeMemory(source)

    async def handle(request: web.Request) -> web.StreamResponse:
        since, limit = _parse_query(request)

        def load() -> Representation:
            page = memory.page(since, limit)
            body = source.documents.write(page)
            return memory_representation(digest_of(body), _modified(page), [body])

        try:
            return await respond(request, load, _XML | LIVE, compressible=True)
        except ChangesForgotten as error:
            raise web.HTTPGone(text=f"{error}\n") from None

    return handle


def _parse_query(request: web.Request) -> tuple[int | None, int]:
    """Return the instant and the number of changes of a query."""
    since, limit = request.query.get("since"), request.query.get("limit", str(USUAL_LIMIT))
    if not re.fullmatch(r"0*[1-9]\d{0,17}", limit, re.ASCII):
        raise web.HTTPBadRequest(text=f"limit: {limit!r} is not a whole number above 0\n")
    if since is None:
        return None, int(limit)
    try:
        # The + of a time zone that was not escaped arrives as a space.
        instant = parse_datetime(since.replace(" ", "+") if "T" in since else since)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"since: {error}\n") from None
    return to_microseconds(instant), int(limit)


def _modified(page: Document) -> float:
    last = page.resources[-1].changed_at if page.resources else page.from_
    assert last is not None
    return last.timestamp()
