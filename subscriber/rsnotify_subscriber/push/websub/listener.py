"""An HTTP server for callbacks alone, for programs without a web application to mount them in."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from rsnotify.runtime.serving import serving
from rsnotify_subscriber.push.websub.callbacks import Callbacks

#: The most connections: few hubs deliver over more than a handful.
_MOST = 1_000

http_logger = logging.getLogger("rsnotify.subscriber.websub.http")


@asynccontextmanager
async def listening(callbacks: Callbacks, listener: socket.socket) -> AsyncIterator[None]:
    """Serve callbacks within the context.

    Args:
        callbacks: The callbacks.
        listener: A listening socket, which is closed at the end.
    """
    app = web.Application()
    app.add_routes(callbacks.routes())
    http_logger.addFilter(_is_ours)
    options = {"auto_decompress": False, "logger": http_logger}
    async with serving(app, listener, shutdown_timeout=1, most=_MOST, **options):
        yield


def _is_ours(record: logging.LogRecord) -> bool:
    """Leave out malformed requests, which aiohttp logs with bytes of the request."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)
