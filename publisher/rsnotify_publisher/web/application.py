"""Serves the documents over HTTP, as an aiohttp application or as routes for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from rsnotify.runtime.serving import request_in, send_response
from rsnotify.runtime.tasks import settle
from rsnotify_publisher.description import SourceDescription
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.web import documents
from rsnotify_publisher.web.documents import answers, part_name, path_of
from rsnotify_publisher.web.responses import Answer, Representation, respond

T = TypeVar("T")

#: Maximum number of threads used at a time, so that slow calls delay only some of the others.
_MAX_THREADS = 4

_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class SharedThreads:
    """Makes blocking calls in threads. Several calls share a thread, since switching is costly.

    Calls that arrive while all threads are busy share the next free one.
    """

    def __init__(self) -> None:
        self._waiting: list[_Call] = []
        self._busy = 0

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of a call in a thread, or raise its error."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        self._waiting.append((work, result))
        if len(self._waiting) == 1 and self._busy < _MAX_THREADS:
            self._busy += 1
            loop.call_soon(self._begin)  # with all calls that arrive in this loop iteration
        return await result

    def _begin(self) -> None:
        calls, self._waiting = self._waiting, []
        running = asyncio.get_running_loop().run_in_executor(None, _outcomes, calls)
        running.add_done_callback(lambda done: self._end(calls, done.result()))

    def _end(self, calls: list[_Call], outcomes: list[Any]) -> None:
        if self._waiting:
            self._begin()
        else:
            self._busy -= 1
        for (_, result), outcome in zip(calls, outcomes, strict=True):
            settle(result, outcome)  # if the client has disconnected, the future is cancelled


def _outcomes(calls: list[_Call]) -> list[Any]:
    return [_outcome(work) for work, _ in calls]


def _outcome(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:
        return error


def application(
    source: Publisher | SourceDescription, app: web.Application | None = None
) -> web.Application:
    """Return an aiohttp application that serves the documents at the paths of their URLs.

    It starts `source` when the application starts, and closes it when the application shuts down.

    Args:
        source: A set of resources, or several.
        app: The application to which the documents are added. By default, a new one.
    """

    async def running(_: web.Application) -> AsyncIterator[None]:
        async with source:
            yield

    serving = web.Application() if app is None else app
    # Runs before the contexts and hooks that the caller has added, because they may record changes.
    serving.cleanup_ctx.insert(0, running)
    serving.add_routes(routes(source))
    if app is None and path_of(source) == "/":
        serving.router.add_get("/robots.txt", robots(source))
    return serving


def routes(source: Publisher | SourceDescription, prefix: str | None = None) -> list[web.RouteDef]:
    """Return the routes of the documents, for an application that starts `source` itself.

    Args:
        source: A set of resources, or several.
        prefix: The path below which the documents are served. By default, the base URL's path.
    """
    prefix = path_of(source) if prefix is None else prefix
    part = f"{{part:{part_name(source)}}}"
    return [
        web.get(path + part if path.endswith("/") else path, _handler(answer))
        for path, answer in answers(source, prefix).items()
    ]


def robots(source: Publisher | SourceDescription) -> Handler:
    """Return the handler for a robots.txt with every Resource List (core §6.3.4)."""
    return _handler(documents.robots(source))


def _handler(answer: Answer) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = await asyncio.to_thread(answer, request_in(request))
        return await send_response(response, request)

    return handle


async def respond_with(
    request: web.Request,
    load: Callable[[], Representation],
    headers: Mapping[str, str],
    threads: SharedThreads,
) -> web.StreamResponse:
    """Respond to a GET or HEAD. `load` runs in a thread and must be quick."""
    response = await threads.call(partial(respond, request_in(request), load, headers))
    return await send_response(response, request)
