"""Serves the files of folders over HTTP, along with their documents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from msgspec import Struct

from rsnotify.runtime.tasks import wait_for_event
from rsnotify_publisher.description import SourceDescription, link_header
from rsnotify_publisher.folder.scanner import FileNames, media_type
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.web import LIVE, path_of, respond_with, robots, routes
from rsnotify_publisher.web.application import SharedThreads
from rsnotify_publisher.web.responses import Representation, resource_representation

#: Maximum number of seconds for which a request waits for the first documents to be written.
_PATIENCE = 30.0


class PublishedFolder(Struct, frozen=True):
    """A folder as a set of resources. `ready` is set when every document has been written."""

    names: FileNames
    publisher: Publisher
    ready: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @property
    def prefix(self) -> str:
        return path_of(self.publisher)


def server(
    source: Publisher | SourceDescription, folders: Sequence[PublishedFolder]
) -> web.Application:
    """Return an application that serves all sets of a Source. The caller must start the Source."""
    app = web.Application()
    by_prefix = {folder.prefix: folder for folder in folders}
    for route in routes(source):
        of = folders[0] if len(folders) == 1 else _folder_of(route.path, by_prefix)
        app.add_routes([route if of is None else _once_ready(route, of)])
    app.router.add_get("/robots.txt", _robots(source, folders))
    for folder in folders:
        app.router.add_get(folder.prefix + r"{name:[\s\S]+}", _files(folder))
    return app


def _folder_of(path: str, by_prefix: Mapping[str, PublishedFolder]) -> PublishedFolder | None:
    """Return the folder to which a path belongs, or None for a common Source Description."""
    ends = [number for number, letter in enumerate(path, 1) if letter == "/"]
    return next((by_prefix[path[:end]] for end in ends if path[:end] in by_prefix), None)


def _once_ready(route: web.RouteDef, folder: PublishedFolder) -> web.RouteDef:
    """Delay requests for the documents of a folder until all have been written."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await wait_for_event(folder.ready, _PATIENCE)
        response = await route.handler(request)
        assert isinstance(response, web.StreamResponse)
        return response

    return web.RouteDef(route.method, route.path, handle, route.kwargs)


def _files(folder: PublishedFolder) -> Handler:
    names = folder.names
    threads = SharedThreads()
    common = LIVE | {hdrs.LINK: link_header(folder.publisher)}

    async def handle(request: web.Request) -> web.StreamResponse:
        # Use the undecoded path: in a decoded path, an escaped slash would look like a real one.
        sent = request.raw_path.partition("?")[0]
        path = names.path_of(sent[len(folder.prefix) :])
        if path is None:
            raise web.HTTPNotFound

        def load() -> Representation:
            if not names.is_published(path):
                raise FileNotFoundError
            return resource_representation(path)

        headers = common | {hdrs.CONTENT_TYPE: media_type(path)}
        return await respond_with(request, load, headers, threads)

    return handle


def _robots(source: Publisher | SourceDescription, folders: Sequence[PublishedFolder]) -> Handler:
    """Return a handler that serves the root folder's robots.txt, or a generated one."""
    ours = robots(source)
    root = next((folder for folder in folders if folder.prefix == "/"), None)
    if root is None:
        return ours
    theirs, names = _files(root), root.names

    async def either(request: web.Request) -> web.StreamResponse:
        has_one = await asyncio.to_thread(names.is_published, names.root / "robots.txt")
        return await (theirs if has_one else ours)(request)

    return either
