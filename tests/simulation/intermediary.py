"""A server between a Source and its Destinations that rewrites documents."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from aiohttp import web

_FRACTION = re.compile(rb"(T\d\d:\d\d:\d\d)\.\d+Z")
_ENTRY = re.compile(rb"<url>.*?</url>\n?", re.DOTALL)


@web.middleware
async def rewriting(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Truncate the datetimes of documents to seconds, and sort changes by their text."""
    response = await handler(request)
    body = getattr(response, "body", None)
    if not isinstance(body, bytes) or not request.path.endswith(".xml"):
        return response
    assert isinstance(response, web.Response)
    body = _FRACTION.sub(rb"\1Z", body)
    if b'capability="changelist"' in body:
        entries = _ENTRY.findall(body)
        parts = _ENTRY.split(body)
        body = b"".join([parts[0], *sorted(entries), *parts[1:]])
    response.body = body
    return response
