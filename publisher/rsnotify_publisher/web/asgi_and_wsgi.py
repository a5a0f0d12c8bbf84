"""Serves the documents over HTTP, as an ASGI or WSGI application that wraps another one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rsnotify.runtime.web_messages import (
    ASGIApplication,
    Environ,
    Message,
    Receive,
    Scope,
    Send,
    StartResponse,
    WSGIApplication,
    asgi_not_found,
    asgi_request,
    begin_response,
    send_response,
    wsgi_not_found,
    wsgi_request,
)
from rsnotify_publisher.description import SourceDescription
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.web.documents import DocumentPaths


def asgi_application(
    source: Publisher | SourceDescription, app: ASGIApplication | None = None
) -> ASGIApplication:
    """Return an ASGI application that serves the documents at the paths of their URLs.

    It starts `source` when the application starts, and closes it when the application shuts down.
    If the server does not send lifespan events, the first request for a document starts `source`.

    Args:
        source: A set of resources, or several.
        app: The application for all other paths. By default, the response for them is 404.
    """
    return _DocumentsASGI(source, app)


class _DocumentsASGI:
    def __init__(self, source: Publisher | SourceDescription, app: ASGIApplication | None) -> None:
        self._source = source
        self._app = app or asgi_not_found
        self._paths = DocumentPaths(source, with_robots=app is None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(scope, receive, send)
        elif scope["type"] != "http" or (answer := self._paths.find(scope["path"])) is None:
            await self._app(scope, receive, send)
        else:
            response = await asyncio.to_thread(answer, asgi_request(scope))
            await send_response(response, scope, receive, send)

    async def _run_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start the Source before the other application, and close it after that application."""
        startup = await receive()
        try:
            await asyncio.to_thread(self._source.start)
        except Exception as error:  # raised here, it would mean that lifespan is not supported
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        waiting = [startup]
        sent: list[Message] = []

        async def receive_all() -> Message:
            return waiting.pop() if waiting else await receive()

        async def send_before_closing(message: Message) -> None:
            sent.append(message)
            if not _belongs_to_shutdown(message):
                await send(message)

        try:
            try:
                await self._app(scope, receive_all, send_before_closing)
            except Exception:
                if sent:
                    raise
            if not sent:
                # The application does not support lifespan events, like Django.
                waiting[:] = [startup]
                await asgi_not_found(scope, receive_all, send_before_closing)
        finally:
            await asyncio.to_thread(self._source.close)
        if _belongs_to_shutdown(sent[-1]):
            await send(sent[-1])


def _belongs_to_shutdown(message: Message) -> bool:
    return bool(message["type"].startswith("lifespan.shutdown"))


def wsgi_application(
    source: Publisher | SourceDescription, app: WSGIApplication | None = None
) -> WSGIApplication:
    """Return a WSGI application that serves the documents at the paths of their URLs.

    In each worker process, the first request for a document starts `source`. It is closed when the
    program ends.

    Args:
        source: A set of resources, or several.
        app: The application for all other paths. By default, the response for them is 404.
    """
    paths = DocumentPaths(source, with_robots=app is None)
    others = app or wsgi_not_found

    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        request = wsgi_request(environ)
        answer = paths.find(request.path)
        if answer is None:
            return others(environ, start_response)
        return begin_response(answer(request), environ, start_response)

    return application
