"""Serves the files of folders over HTTP, beside their documents.

Blocking calls of many requests are made in a thread together: a hand-over costs more than a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from msgspec import Struct

from rsnotify.runtime.serving import request_in, send_response
from rsnotify.runtime.tasks import settle, wait_for_event
from rsnotify_publisher.description import SourceDescription, link_header
from rsnotify_publisher.folder.scanner import FileNames, media_type
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.web import LIVE, path_of, robots, routes
from rsnotify_publisher.web.responses import Representation, resource_representation, respond

#: Seconds that a request waits until the first documents are written.
_PATIENCE = 30.0
T = TypeVar("T")


class PublishedFolder(Struct, frozen=True):
    """A folder as a set of resources; `ready` is set once every document is written."""

    names: FileNames
    publisher: Publisher
    ready: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @property
    def prefix(self) -> str:
        return path_of(self.publisher)


def server(
    source: Publisher | SourceDescription, folders: Sequence[PublishedFolder]
) -> web.Application:
    """Return the application that serves all sets of a Source, which the caller starts."""
    app = web.Application()
    by_prefix = {folder.prefix: folder for folder in folders}
    for route in routes(source, path_of(source)):
        of = folders[0] if len(folders) == 1 else _folder_of(route.path, by_prefix)
        app.add_routes([route if of is None else _once_ready(route, of)])
    app.router.add_get("/robots.txt", _robots(source, folders))
    for folder in folders:
        app.router.add_get(folder.prefix + r"{name:[\s\S]+}", _files(folder))
    return app


def _folder_of(path: str, by_prefix: Mapping[str, PublishedFolder]) -> PublishedFolder | None:
    """Return the folder to which a path belongs; None for the Source Description of several."""
    ends = [number for number, letter in enumerate(path, 1) if letter == "/"]
    return next((by_prefix[path[:end]] for end in ends if path[:end] in by_prefix), None)


def _once_ready(route: web.RouteDef, folder: PublishedFolder) -> web.RouteDef:
    """Delay requests for the documents of a folder until all are written."""

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
        # The undecoded path: in a decoded one an escaped slash would look like a real one.
        sent = request.raw_path.partition("?")[0]
        path = names.path_of(sent[len(folder.prefix) :])
        if path is None:
            raise web.HTTPNotFound

        def load() -> Representation:
            if not names.is_published(path):
                raise FileNotFoundError
            return resource_representation(path)

        headers = common | {hdrs.CONTENT_TYPE: media_type(path)}
        response = await threads.call(partial(respond, request_in(request), load, headers))
        return await send_response(response, request)

    return handle


def _robots(source: Publisher | SourceDescription, folders: Sequence[PublishedFolder]) -> Handler:
    """Serve the robots.txt of the folder at the root, if it has one, or else a generated one."""
    ours = robots(source)
    root = next((folder for folder in folders if folder.prefix == "/"), None)
    if root is None:
        return ours
    theirs, names = _files(root), root.names

    async def either(request: web.Request) -> web.StreamResponse:
        has_one = await asyncio.to_thread(names.is_published, names.root / "robots.txt")
        return await (theirs if has_one else ours)(request)

    return either


#: How many threads are used at a time, so that calls which block delay only a part of the others.
_THREADS = 4

_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class SharedThreads:
    """Makes calls in threads; those that come while all are busy share the next one."""

    def __init__(self) -> None:
        self._waiting: list[_Call] = []
        self._busy = 0

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of a call in a thread, or raise its error."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[T] = loop.create_future()
        self._waiting.append((work, made))
        if len(self._waiting) == 1 and self._busy < _THREADS:
            self._busy += 1
            loop.call_soon(self._begin)  # with all that arrive in this iteration of the loop
        return await made

    def _begin(self) -> None:
        calls, self._waiting = self._waiting, []
        running = asyncio.get_running_loop().run_in_executor(None, _make, calls)
        running.add_done_callback(lambda done: self._end(calls, done.result()))

    def _end(self, calls: list[_Call], outcomes: list[Any]) -> None:
        if self._waiting:
            self._begin()
        else:
            self._busy -= 1
        for (_, made), outcome in zip(calls, outcomes, strict=True):
            settle(made, outcome)  # it was cancelled if the client hung up


def _make(calls: list[_Call]) -> list[Any]:
    return [_outcome(work) for work, _ in calls]


def _outcome(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:
        return error
