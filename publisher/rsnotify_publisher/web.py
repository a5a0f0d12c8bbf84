"""The documents over HTTP, as an aiohttp application or as routes for one.

Files are served as they are, but the open Change List and the channel come fresh from the
journal: an answer shows every change that was durable when the request arrived.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from rsnotify.links import format_links
from rsnotify.vocabulary import WELL_KNOWN_PATH, Rel
from rsnotify_publisher.documents import (
    ARCHIVE,
    CAPABILITY_LIST,
    CHANGE_LIST,
    CHANNEL,
    DESCRIPTION,
    PARTS,
    RESOURCE_LIST,
)
from rsnotify_publisher.openlist import OpenList
from rsnotify_publisher.publisher import Publisher

_XML: dict[str, str] = {hdrs.CONTENT_TYPE: "application/xml"}


def application(publisher: Publisher) -> web.Application:
    """Make an application that serves the documents, to run or to mount at the base URL.

    It starts the Publisher with itself, and closes it.
    """

    async def running(_: web.Application) -> AsyncIterator[None]:
        async with publisher:
            yield

    app = web.Application()
    app.cleanup_ctx.append(running)
    app.add_routes(routes(publisher))
    return app


def routes(publisher: Publisher, prefix: str = "/") -> list[web.RouteDef]:
    """Make the routes of the documents, for an application of one's own.

    Args:
        publisher: Started by the caller.
        prefix: The path of the base URL.
    """
    folder = publisher.source.documents_folder

    def file(name: str) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return web.FileResponse(folder / name.format(**request.match_info), headers=_XML)

        return handle

    fresh = _FreshList(publisher)
    table = {name: file(name) for name in (CAPABILITY_LIST, RESOURCE_LIST, ARCHIVE, DESCRIPTION)}
    table[CHANGE_LIST] = fresh.change_list
    table[CHANNEL] = fresh.channel
    parts = web.get(prefix + PARTS + r"{part:[\w-]+\.xml}", file(PARTS + "{part}"))
    made = [parts, *(web.get(prefix + name, handler) for name, handler in table.items())]
    if prefix != "/":
        # core §6.3.2: the well-known URI belongs to the host, not to the base URL.
        made.append(web.get(WELL_KNOWN_PATH, file(DESCRIPTION)))
    return made


class _FreshList:
    """The open Change List, read on at every request."""

    def __init__(self, publisher: Publisher) -> None:
        documents = publisher.source.documents
        links = [(Rel.SELF, documents.topic), *((Rel.HUB, hub) for hub in documents.hubs)]
        self._channel_headers: dict[str, str] = {hdrs.LINK: format_links(links)}
        self._open_journal = publisher.source.open_journal
        self._list = OpenList(documents)

    async def change_list(self, request: web.Request) -> web.Response:
        return self._answer(request, {})

    async def channel(self, request: web.Request) -> web.Response:
        return self._answer(request, self._channel_headers)

    def _answer(self, request: web.Request, headers: dict[str, str]) -> web.Response:
        with self._open_journal() as journal:
            self._list.refresh(journal)
        version = self._list.version
        known = request.if_none_match or ()
        if any(etag.value in (version, "*") for etag in known):
            response = web.Response(status=304, headers=headers)
        else:
            response = web.Response(body=b"".join(self._list.chunks()), headers=_XML | headers)
        response.etag = version
        return response
