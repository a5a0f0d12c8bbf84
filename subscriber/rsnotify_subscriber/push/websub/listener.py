"""An HTTP server for callbacks alone, for programs without a web application to mount them in."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from rsnotify_subscriber.push.websub.callbacks import Callbacks

logger = logging.getLogger("rsnotify.subscriber.websub.http")

#: The seconds in which the first request of a connection has to come, and between two of them.
_HEAD, _IDLE = 10.0, 60.0
#: The most connections: few hubs deliver over more than a handful.
_MOST = 1_000


@asynccontextmanager
async def listening(callbacks: Callbacks, listener: socket.socket) -> AsyncIterator[None]:
    """Serve callbacks within the context.

    Args:
        callbacks: The callbacks.
        listener: A listening socket, which is closed at the end.
    """
    connections = _Connections()
    app = web.Application(middlewares=[connections.keep])
    app.add_routes(callbacks.routes())
    logger.addFilter(_is_ours)
    runner = web.AppRunner(
        app,
        access_log=None,  # a path is a secret: anybody who has it can post to the callback
        keepalive_timeout=_IDLE,
        shutdown_timeout=1,
        auto_decompress=False,
        logger=logger,
    )
    await runner.setup()
    serve = cast(Callable[[], asyncio.Protocol], runner.server)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(serve(), connections), sock=listener
    )
    try:
        yield
    finally:
        server.close()
        await runner.cleanup()


def _is_ours(record: logging.LogRecord) -> bool:
    """Leave out malformed requests, which aiohttp logs with bytes of the request."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


class _Connections:
    """The open connections. aiohttp waits for a first request without end, so each has a timer."""

    def __init__(self) -> None:
        self.open: dict[object, asyncio.TimerHandle] = {}

    @web.middleware
    async def keep(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Cancel the timer of a connection whose request has arrived."""
        timer = self.open.get(request.transport)
        if timer is not None:
            timer.cancel()
        return await handler(request)


class _Connection(asyncio.Protocol):
    """Passes the calls of a transport to the protocol that serves it, and counts the connection."""

    def __init__(self, serving: asyncio.Protocol, connections: _Connections) -> None:
        self._serving = serving
        self._open = connections.open
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's transports do not inherit from `asyncio.Transport`.
        made = self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        full = len(self._open) >= _MOST
        self._open[made] = loop.call_later(0 if full else _HEAD, made.abort)
        self._serving.connection_made(made)

    def data_received(self, data: bytes) -> None:
        self._serving.data_received(data)

    def eof_received(self) -> bool | None:
        return self._serving.eof_received()

    def pause_writing(self) -> None:
        self._serving.pause_writing()

    def resume_writing(self) -> None:
        self._serving.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        timer = self._open.pop(self._transport, None)
        if timer is not None:
            timer.cancel()
        self._serving.connection_lost(exc)
