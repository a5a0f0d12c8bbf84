"""Exchanges requests and responses with the server of aiohttp, and refuses what it should not."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.typedefs import Handler

from rsnotify.runtime.web.messages import TruncatedBody, WebRequest, WebResponse

_REG_NAME = r"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+"
_HOST = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|{_REG_NAME})(?::[0-9]*)?")


def host_in(field: str) -> str | None:
    """Return the host in a `Host` field, in lower case and without brackets and port.

    None if it is not `uri-host [":" port]` (RFC 9110 §7.2).
    """
    found = _HOST.fullmatch(field)
    return None if found is None else found[1].lower().removeprefix("[").removesuffix("]")


@web.middleware
async def without_ambiguity(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a request that another server could read differently, and close the connection."""
    reason = _ambiguity_in(request)
    if reason is None:
        return await handler(request)
    response = web.Response(status=400, text=f"{reason}\n")
    response.force_close()  # nobody knows where the next request begins
    return response


def _ambiguity_in(request: web.Request) -> str | None:
    headers = request.headers
    codings = headers.getall(hdrs.TRANSFER_ENCODING, [])
    # RFC 9112 §6.1: aiohttp would pass on content that is still encoded by other codings.
    if codings and (len(codings) > 1 or codings[0].lower() != "chunked"):
        return "the only Transfer-Encoding that is accepted is chunked"
    if codings and request.version < HttpVersion11:
        return "HTTP/1.0 has no Transfer-Encoding"
    hosts = headers.getall(hdrs.HOST, [])
    if (hosts or request.version >= HttpVersion11) and (len(hosts) != 1 or not host_in(hosts[0])):
        return "it needs one Host, which is a name or an address with an optional port"
    return None


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
