"""Serving a web application on a listening socket."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def serving(
    app: web.Application, listener: socket.socket, *, shutdown_timeout: float
) -> AsyncIterator[None]:
    """Serve an application within the context, and close the socket at its end."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=shutdown_timeout)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield
    finally:
        await runner.cleanup()
