"""Serves aiohttp applications, converts requests and responses, and refuses ambiguous requests."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, cast

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.typedefs import Handler

from rsnotify.runtime.web_messages import TruncatedBody, WebRequest, WebResponse

#: Headers of all responses, unless a handler sets others. Browsers do not execute, embed or sniff
#: the response, and send no referrer from its links.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
#: Headers of the files of a page. The page can load only its own files, and cannot evaluate strings
#: as markup or code.
PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_CONTENT_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


async def add_security_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "rsnotify"


def page_files(
    folder: Path, prefix: str = "/", headers: Mapping[str, str] = PAGE_HEADERS
) -> Iterator[web.RouteDef]:
    """Yield a route for each file of a page: `index.html` at `/`, and the others below `prefix`."""
    for path in folder.rglob("*"):
        if path.suffix in _CONTENT_TYPES:
            name = path.relative_to(folder).as_posix()
            yield web.get("/" if name == "index.html" else prefix + name, _file(path, headers))


def _file(
    path: Path, headers: Mapping[str, str]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    content_type = f"{_CONTENT_TYPES[path.suffix]}; charset=utf-8"

    async def answer(request: web.Request) -> web.FileResponse:
        return web.FileResponse(path, headers={**headers, "Content-Type": content_type})

    return answer


_REG_NAME = r"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+"
_HOST = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|{_REG_NAME})(?::[0-9]*)?")


def host_in(field: str) -> str | None:
    """Return the host in a `Host` field, in lower case, without brackets and port.

    Return None if the field is not `uri-host [":" port]` (RFC 9110 §7.2).
    """
    found = _HOST.fullmatch(field)
    return None if found is None else found[1].lower().removeprefix("[").removesuffix("]")


@web.middleware
async def without_ambiguity(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a request that another server may parse differently, and close the connection."""
    reason = _ambiguity_in(request)
    if reason is None:
        return await handler(request)
    response = web.Response(status=400, text=f"{reason}\n")
    response.force_close()  # the beginning of the next request is unknown
    return response


def _ambiguity_in(request: web.Request) -> str | None:
    headers = request.headers
    codings = headers.getall(hdrs.TRANSFER_ENCODING, [])
    # RFC 9112 §6.1: aiohttp does not decode other codings.
    if codings and (len(codings) > 1 or codings[0].lower() != "chunked"):
        return "the only accepted Transfer-Encoding is chunked"
    if codings and request.version < HttpVersion11:
        return "HTTP/1.0 has no Transfer-Encoding"
    hosts = headers.getall(hdrs.HOST, [])
    if (hosts or request.version >= HttpVersion11) and (len(hosts) != 1 or not host_in(hosts[0])):
        return "the request needs one Host: a name or address with an optional port"
    return None


def request_in(request: web.Request) -> WebRequest:
    # The raw query, because it is decoded later.
    query = request.rel_url.raw_query_string
    return WebRequest(request.method, request.path, query, request.headers)


async def send_response(response: WebResponse, request: web.Request) -> web.StreamResponse:
    """Send a response, reading its pieces in threads. Stop if the client disconnects."""
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
    with suppress(ConnectionError):  # the client may disconnect at any moment
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


#: Maximum time until the first request on a connection, and between two requests, in seconds.
_FIRST_REQUEST_TIMEOUT, _IDLE_TIMEOUT = 10.0, 60.0
#: Maximum time without progress while a client receives a response, in seconds.
_STALL_TIMEOUT = 60.0
#: Default maximum number of connections. Many Destinations may poll a Source.
_MAX_CONNECTIONS = 10_000


@asynccontextmanager
async def serving(
    app: web.Application,
    listener: socket.socket,
    *,
    shutdown_timeout: float,
    most: int = _MAX_CONNECTIONS,
    **options: Any,
) -> AsyncIterator[None]:
    """Serve an application while the context is active, and close the socket at the end.

    At the end, requests have `shutdown_timeout` seconds to finish. `most` is the maximum number of
    connections, and `options` are further options of `aiohttp.web.AppRunner`.
    """
    connections = _Connections(most)
    app.middlewares.extend([connections.keep, without_ambiguity])
    runner = web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=_IDLE_TIMEOUT,
        shutdown_timeout=shutdown_timeout,
        **options,
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


class _Connections:
    """The open connections, with a timer for the first request, for which aiohttp has no limit."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open: dict[object, asyncio.TimerHandle] = {}

    @web.middleware
    async def keep(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Cancel the timer of a connection whose request has arrived."""
        timer = self.open.get(request.transport)
        if timer is not None:
            timer.cancel()
        return await handler(request)


class _Connection(asyncio.Protocol):
    """Forwards events to the serving protocol, and enforces the limits for connections."""

    def __init__(self, serving: asyncio.Protocol, connections: _Connections) -> None:
        self._serving = serving
        self._open, self._most = connections.open, connections.most
        self._transport: asyncio.Transport | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports do not inherit from `asyncio.Transport`.
        made = self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        full = len(self._open) >= self._most
        self._open[made] = loop.call_later(0 if full else _FIRST_REQUEST_TIMEOUT, made.abort)
        self._serving.connection_made(made)

    def data_received(self, data: bytes) -> None:
        self._serving.data_received(data)

    def eof_received(self) -> bool | None:
        return self._serving.eof_received()

    def pause_writing(self) -> None:
        self._serving.pause_writing()
        self._check_progress()

    def resume_writing(self) -> None:
        self._cancel_check()
        self._serving.resume_writing()

    def _check_progress(self, waiting: float = inf) -> None:
        """Abort the connection if the client has received nothing since the last check."""
        assert self._transport is not None
        waits = self._transport.get_write_buffer_size()
        if waits >= waiting:
            self._transport.abort()
        else:
            loop = asyncio.get_running_loop()
            self._stalled = loop.call_later(_STALL_TIMEOUT, self._check_progress, waits)

    def _cancel_check(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_check()
        timer = self._open.pop(self._transport, None)
        if timer is not None:
            timer.cancel()
        self._serving.connection_lost(exc)
