"""Exchanges requests and responses with an ASGI server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from rsnotify.errors import RsnotifyError
from rsnotify.runtime.web.messages import WebRequest, WebResponse, text_response

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
    """The client went away before its request was complete."""


async def read_asgi_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body of a request.

    Raises:
        ClientDisconnected: The client went away.
    """
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def send_response(response: WebResponse, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a response, reading its pieces in threads, until the client goes away.

    Raises:
        TruncatedBody: The body was shorter than announced; the server closes the connection.
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
    """Answer every request with 404: an application without any path."""
    if scope["type"] == "http":
        await send_response(text_response(404), scope, receive, send)
    elif scope["type"] == "websocket":
        await send({"type": "websocket.close"})
    else:
        for _ in range(2):  # lifespan: startup, shutdown
            await send({"type": (await receive())["type"] + ".complete"})
