"""A server between a Source and its Destinations that rewrites documents."""

from __future__ import annotations

import re
from zlib import crc32

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from tests.harnesses.simulation.loop import current_loop

_FRACTION = re.compile(rb"(T\d\d:\d\d:\d\d)\.\d+Z")
#: For how many seconds a change that is late is left out, after others could see it.
_LATE = 8.0
_ENTRY = re.compile(rb"<url>.*?</url>\n?", re.DOTALL)


@web.middleware
async def rewriting(request: web.Request, handler: Handler) -> web.StreamResponse:
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


def delaying() -> Middleware:
    """Return a middleware that leaves some changes out of Change Lists for a while.

    Newer changes are listed meanwhile.
    """
    first_seen: dict[bytes, float] = {}

    def shown(entry: re.Match[bytes]) -> bytes:
        now = current_loop().now
        is_new = now < first_seen.setdefault(entry[0], now) + _LATE
        return b"" if is_new and crc32(entry[0]) % 4 == 0 else entry[0]

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        body = getattr(response, "body", None)
        if isinstance(body, bytes) and b'capability="changelist"' in body:
            assert isinstance(response, web.Response)
            response.body = _ENTRY.sub(shown, body)
            for name in ("ETag", "Last-Modified"):
                response.headers.pop(name, None)
        return response

    return middleware
