"""The servers of aiohttp, ASGI and WSGI, each around the same answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import uvicorn
from aiohttp import web

from rsnotify.runtime import serving as aiohttp_server
from rsnotify.runtime import web_messages as asgi
from rsnotify.runtime import web_messages as wsgi
from rsnotify.runtime.web_messages import WebRequest, WebResponse
from tests.publisher.helpers import serving

KINDS = ("aiohttp", "asgi", "wsgi")


class ThreadingWSGIServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@asynccontextmanager
async def serving_asgi(app: Any, **settings: Any) -> AsyncIterator[str]:
    # asyncio sets TCP_NODELAY only for sockets whose protocol is named.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=5, **settings
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))  # `serve` replaces signal handlers
    while not (server.started or task.done()):  # noqa: ASYNC110 - it has no event for that
        await asyncio.sleep(0.01)
    try:
        assert server.started, "the application did not start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


@asynccontextmanager
async def serving_wsgi(app: Any) -> AsyncIterator[str]:
    """Serve an application with wsgiref, each request in a thread."""
    server = make_server("127.0.0.1", 0, app, ThreadingWSGIServer, _Silent)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        await asyncio.to_thread(server.shutdown)
        thread.join()
        server.server_close()


def serving_answers(
    answer: Callable[[WebRequest], WebResponse], kind: str
) -> AbstractAsyncContextManager[str]:
    """Serve what a function answers, in one of the three ways."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = await asyncio.to_thread(answer, aiohttp_server.request_in(request))
        return await aiohttp_server.send_response(response, request)

    async def over_asgi(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        response = await asyncio.to_thread(answer, asgi.asgi_request(scope))
        await asgi.send_response(response, scope, receive, send)

    def over_wsgi(environ: wsgi.Environ, start_response: wsgi.StartResponse) -> Iterable[bytes]:
        response = answer(wsgi.wsgi_request(environ))
        return wsgi.begin_response(response, environ, start_response)

    if kind == "asgi":
        return serving_asgi(over_asgi, lifespan="off")
    if kind == "wsgi":
        return serving_wsgi(over_wsgi)
    app = web.Application()
    app.router.add_get("/{name:.*}", handle)
    return serving(app)
