"""A Source in an application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from rsnotify_publisher import Options, Publisher, application
from tests.publisher.helpers import PATIENCE, QUICK, serving


@asynccontextmanager
async def publishing(
    folder: Path, port: int, hub: str, options: Options = QUICK
) -> AsyncIterator[Publisher]:
    """Publish resources whose names begin with `r`, and whose content are their paths."""
    publisher = Publisher(folder, f"http://127.0.0.1:{port}/", hubs=[hub], options=options)
    app = application(publisher)

    async def content(request: web.Request) -> web.Response:
        return web.Response(text=f"the content of {request.path}")

    app.router.add_get("/{name:r.*}", content)
    async with serving(app, port):
        assert await asyncio.to_thread(publisher.wait_published, PATIENCE)
        yield publisher
