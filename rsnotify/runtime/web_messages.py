"""HTTP requests and responses, independent of the server, with adapters for ASGI and WSGI.

`serving` has the adapter for aiohttp.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from msgspec import Struct

from rsnotify.errors import RsnotifyError


class WebRequest(Struct, frozen=True):
    """A request without its body.

    Args:
        path: The full path, decoded.
        query: The query as sent, without the question mark.
        headers: The header fields by lowercase name, unless the mapping ignores case.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]

    def parameters(self) -> dict[str, str]:
        """Return the first value of each parameter of the query."""
        return dict(reversed(parse_qsl(self.query, keep_blank_values=True)))


class TruncatedBody(RsnotifyError):
    """A body is shorter than announced, so the connection must be closed."""


class WebResponse(Struct):
    """A response.

    Args:
        headers: All header fields except Content-Length.
        body: The whole body, unless there are `pieces`.
        pieces: The body in pieces, which are read in a thread while the body is sent.
        length: The total length of the pieces, if known.
        close: Called at the end, even if the client disconnects.
    """

    status: int
    headers: dict[str, str]
    body: bytes = b""
    pieces: Iterator[bytes] | None = None
    length: int | None = None
    close: Callable[[], None] = lambda: None

    def fields(self) -> list[tuple[str, str]]:
        """Return all header fields, including Content-Length if it is known."""
        length = len(self.body) if self.pieces is None else self.length
        fields = list(self.headers.items())
        if length is not None and self.status not in (204, 304):
            fields.append(("Content-Length", str(length)))
        return fields

    def stream(self) -> Iterator[bytes]:
        """Yield the body. Raises TruncatedBody if it is shorter than announced."""
        if self.pieces is None:
            yield self.body
            return
        sent = 0
        for piece in self.pieces:
            sent += len(piece)
            yield piece
        if sent < (self.length or 0):
            raise TruncatedBody(f"the body ended after {sent} of {self.length} bytes")


def text_response(
    status: int, text: str | None = None, headers: Mapping[str, str] | None = None
) -> WebResponse:
    """Return a plain-text response. The default text is the name of the status."""
    if text is None:
        text = f"{status}: {HTTPStatus(status).phrase}"
    plain = {"Content-Type": "text/plain; charset=utf-8", **(headers or {})}
    return WebResponse(status, plain, text.encode())


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApplication = Callable[[Scope, Receive, Send], Awaitable[None]]


def asgi_request(scope: Scope) -> WebRequest:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    query = scope["query_string"].decode("latin-1")
    return WebRequest(scope["method"], scope["path"], query, headers)


class ClientDisconnected(RsnotifyError, ConnectionError):
    """The client disconnected before the request was complete."""


async def read_asgi_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body of a request. Raises ClientDisconnected if the client disconnects."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def send_response(response: WebResponse, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a response, reading its pieces in threads. Stop if the client disconnects.

    Raises TruncatedBody if the body is shorter than announced; the server then closes the
    connection.
    """
    fields = [(name.lower().encode(), value.encode("latin-1")) for name, value in response.fields()]
    is_head = scope["method"] == "HEAD"
    try:
        await send({"type": "http.response.start", "status": response.status, "headers": fields})
        if response.pieces is None or is_head:
            body = b"" if is_head else response.body
            await send({"type": "http.response.body", "body": body})
        else:
            await _stream(response, receive, send)
    finally:
        response.close()


async def _stream(response: WebResponse, receive: Receive, send: Send) -> None:
    pieces = response.stream()
    gone = asyncio.create_task(_disconnected(receive))
    try:
        while not gone.done():
            piece = await asyncio.to_thread(next, pieces, b"")
            await send({"type": "http.response.body", "body": piece, "more_body": bool(piece)})
            if not piece:
                break
    finally:
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def asgi_not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application that answers all requests with 404."""
    if scope["type"] == "http":
        await send_response(text_response(404), scope, receive, send)
    elif scope["type"] == "websocket":
        await send({"type": "websocket.close"})
    else:
        for _ in range(2):  # lifespan: startup, shutdown
            await send({"type": (await receive())["type"] + ".complete"})


Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WSGIApplication = Callable[[Environ, StartResponse], Iterable[bytes]]


def wsgi_request(environ: Environ) -> WebRequest:
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    return WebRequest(
        environ["REQUEST_METHOD"],
        path.encode("latin-1").decode(errors="replace"),  # PEP 3333: bytes as Latin-1
        environ.get("QUERY_STRING", ""),
        headers,
    )


def read_wsgi_body(environ: Environ, most: int) -> bytes:
    """Return the body, or `most + 1` bytes if it is longer than `most`.

    Raises ConnectionError if the body is incomplete, or its length is unknown.
    """
    length = environ.get("CONTENT_LENGTH", "")
    if not (length.isdecimal() if length else environ.get("wsgi.input_terminated")):
        raise ConnectionError("the request has no valid Content-Length")
    body = bytearray()
    wanted = min(int(length) if length else most + 1, most + 1)
    while piece := environ["wsgi.input"].read(wanted - len(body)):
        body += piece
    if length and len(body) < wanted:
        raise ConnectionError(f"the body ended after {len(body)} of {length} bytes")
    return bytes(body)


class ResponseBody:
    """The body of a response, which the server reads and then closes.

    Iteration raises `TruncatedBody` if the body is shorter than announced. The server then closes
    the connection.
    """

    def __init__(self, response: WebResponse, method: str) -> None:
        self._pieces = iter(()) if method == "HEAD" else response.stream()
        self.close = response.close

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


def begin_response(
    response: WebResponse, environ: Environ, start_response: StartResponse
) -> ResponseBody:
    """Pass the status and headers to the server, and return the body."""
    start_response(f"{response.status} {HTTPStatus(response.status).phrase}", response.fields())
    return ResponseBody(response, environ["REQUEST_METHOD"])


def wsgi_not_found(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """The WSGI application that answers all requests with 404."""
    return begin_response(text_response(404), environ, start_response)
