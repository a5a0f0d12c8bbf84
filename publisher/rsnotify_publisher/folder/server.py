"""Serves the files of folders over HTTP, along with their documents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from rsnotify.runtime.tasks import wait_for_event
from rsnotify_publisher.description import SourceDescription, link_header
from rsnotify_publisher.folder.file_names import media_type
from rsnotify_publisher.folder.folder_publishing import PublishedFolder
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.web import LIVE, respond_with, robots, routes
from rsnotify_publisher.web.application import SharedThreads
from rsnotify_publisher.web.responses import Representation, file_representation

#: Maximum number of seconds for which a request waits for the first documents to be written.
_FIRST_DOCUMENTS_TIMEOUT = 30.0


def folder_application(
    source: Publisher | SourceDescription, folders: Sequence[PublishedFolder]
) -> web.Application:
    """Return an application that serves all sets of a Source. The caller must start the Source."""
    app = web.Application()
    by_prefix = {folder.prefix: folder for folder in folders}
    for route in routes(source):
        folder_of_route = folders[0] if len(folders) == 1 else _folder_of(route.path, by_prefix)
        if folder_of_route is not None:
            route = _wait_until_ready(route, folder_of_route)
        app.add_routes([route])
    app.router.add_get("/robots.txt", _robots(source, folders))
    for folder in folders:
        app.router.add_get(folder.prefix + r"{name:[\s\S]+}", _files(folder))
    return app


def _folder_of(path: str, by_prefix: Mapping[str, PublishedFolder]) -> PublishedFolder | None:
    """Return the folder to which a path belongs, or None for a common Source Description."""
    ends = [number for number, letter in enumerate(path, 1) if letter == "/"]
    return next((by_prefix[path[:end]] for end in ends if path[:end] in by_prefix), None)


def _wait_until_ready(route: web.RouteDef, folder: PublishedFolder) -> web.RouteDef:
    """Return the route with a handler that waits until all documents have been written."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await wait_for_event(folder.ready, _FIRST_DOCUMENTS_TIMEOUT)
        response = await route.handler(request)
        assert isinstance(response, web.StreamResponse)
        return response

    return web.RouteDef(route.method, route.path, handle, route.kwargs)


def _files(folder: PublishedFolder) -> Handler:
    names = folder.names
    threads = SharedThreads()
    common = LIVE | {hdrs.LINK: link_header(folder.publisher)}

    async def handle(request: web.Request) -> web.StreamResponse:
        # In a decoded path, an encoded slash would look like a real one.
        raw_path = request.raw_path.partition("?")[0]
        path = names.path_of(raw_path[len(folder.prefix) :])
        if path is None:
            raise web.HTTPNotFound

        def load() -> Representation:
            if not names.is_published(path):
                raise FileNotFoundError
            return file_representation(path, is_shared=True)

        headers = common | {hdrs.CONTENT_TYPE: media_type(path)}
        return await respond_with(request, load, headers, threads)

    return handle


def _robots(source: Publisher | SourceDescription, folders: Sequence[PublishedFolder]) -> Handler:
    """Return a handler that serves the root folder's robots.txt, or a generated one."""
    generated = robots(source)
    root = next((folder for folder in folders if folder.prefix == "/"), None)
    if root is None:
        return generated
    from_folder, names = _files(root), root.names

    async def handle(request: web.Request) -> web.StreamResponse:
        has_file = await asyncio.to_thread(names.is_published, names.root / "robots.txt")
        return await (from_folder if has_file else generated)(request)

    return handle
