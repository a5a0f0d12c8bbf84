"""Serves the documents over HTTP, as an aiohttp application or as routes for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Handler

from rsnotify.runtime.serving import request_in, send_response
from rsnotify_publisher.description import SourceDescription
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.web import documents
from rsnotify_publisher.web.documents import PART_NAME, Answer, answers, path_of


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
    return [
        web.get(path + f"{{part:{PART_NAME}}}" if path.endswith("/") else path, _handler(answer))
        for path, answer in answers(source, prefix).items()
    ]


def robots(source: Publisher | SourceDescription) -> Handler:
    """Return the handler of a robots.txt that lists every Resource List (core §6.3.4)."""
    return _handler(documents.robots(source))


def _handler(answer: Answer) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = await asyncio.to_thread(answer, request_in(request))
        return await send_response(response, request)

    return handle
