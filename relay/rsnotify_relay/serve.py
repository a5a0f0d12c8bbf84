"""The copy over HTTP, beside the documents that describe it."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from rsnotify.format.media_types import guess_media_type
from rsnotify_publisher import Publisher, link_header, routes
from rsnotify_publisher.web import LIVE, robots
from rsnotify_publisher.web.responses import resource_representation, respond
from rsnotify_relay.republisher import Republisher
from rsnotify_subscriber import Callbacks

_UNKNOWN = "application/octet-stream"


def server(
    publisher: Publisher, republisher: Republisher, callbacks: Callbacks | None = None
) -> web.Application:
    """Make the application that serves a copy and its documents, and the relay's own callbacks."""
    base_url = publisher.source.base_url
    prefix = urlsplit(base_url).path
    headers = LIVE | {hdrs.LINK: link_header(publisher)}

    async def content(request: web.Request) -> web.StreamResponse:
        # The raw path with its query: decoded, it might be that of another resource.
        uri = base_url + request.raw_path[len(prefix) :]
        found = await asyncio.to_thread(republisher.find, uri)
        if found is None:
            raise web.HTTPNotFound
        resource, path = found
        media_type = resource.type or guess_media_type(uri) or _UNKNOWN
        answer_headers = headers | {hdrs.CONTENT_TYPE: media_type}
        return await respond(request, lambda: resource_representation(path), answer_headers)

    app = web.Application()
    if callbacks is not None:
        app.add_routes(callbacks.routes())
    app.add_routes(routes(publisher, prefix))
    app.router.add_get("/robots.txt", robots(publisher))
    app.router.add_get(prefix + r"{name:[\s\S]+}", content)
    return app
