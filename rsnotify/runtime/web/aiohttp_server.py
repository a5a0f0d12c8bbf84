"""Exchanges requests and responses with the server of aiohttp."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiohttp import hdrs, web

from rsnotify.runtime.web.messages import TruncatedBody, WebRequest, WebResponse


def request_in(request: web.Request) -> WebRequest:
    # The undecoded query, since it is decoded later.
    query = request.rel_url.raw_query_string
    return WebRequest(request.method, request.path, query, request.headers)


async def send_response(response: WebResponse, request: web.Request) -> web.StreamResponse:
    """Send a response, reading its pieces in threads, until the client goes away."""
    try:
        if response.pieces is None:
            return web.Response(
                status=response.status, headers=response.headers, body=response.body
            )
        return await _stream(response, request)
    finally:
        response.close()


async def _stream(response: WebResponse, request: web.Request) -> web.StreamResponse:
    sent = web.StreamResponse(status=response.status, headers=response.headers)
    sent.content_length = response.length
    pieces = response.stream()
    with suppress(ConnectionError):  # the client may hang up at any moment
        await sent.prepare(request)
        if request.method != hdrs.METH_HEAD:
            try:
                while piece := await asyncio.to_thread(next, pieces, b""):
                    await sent.write(piece)
            except TruncatedBody:
                if request.transport is not None:
                    request.transport.abort()
        await sent.write_eof()
    return sent
