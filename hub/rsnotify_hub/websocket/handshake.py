"""The opening handshake, and the hand-over of the transport from aiohttp to `WebSocketConnection`.

aiohttp reads the request, and `websockets` determines the answer to it; then the transport gets
another protocol, and aiohttp releases everything that it holds for the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from rsnotify_hub.http.connection_guard import take_over
from rsnotify_hub.websocket.connection import WebSocketConnection

#: The headers that aiohttp adds to a refusal itself.
_ADDED_BY_AIOHTTP = frozenset(("connection", "content-length", "content-type", "date"))


class Upgraded(web.StreamResponse):
    """The response of a handler whose connection is no longer aiohttp's: it sends nothing."""

    def __init__(self) -> None:
        super().__init__(status=101)

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        pass


def accept_upgrade(request: web.Request) -> bytes:
    """Return the answer to an upgrade request (RFC 6455 §4.2), as it is sent."""
    protocol = ServerProtocol()
    headers = Headers([(name, value) for name, value in request.headers.items()])
    answer = protocol.accept(Request(path=request.raw_path, headers=headers))
    if answer.status_code != 101:
        raise _refused(answer.status_code, answer.body or b"", answer.headers)
    return answer.serialize()


def _refused(status: int, body: bytes | bytearray, headers: Headers) -> web.HTTPException:
    class Refused(web.HTTPException):
        status_code = status

    kept = {
        name: value for name, value in headers.raw_items() if name.lower() not in _ADDED_BY_AIOHTTP
    }
    return Refused(text=body.decode(), headers=kept)


class _TailParser:
    """Collects what followed the request, in place of a parser of aiohttp."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        pass


def hand_over(
    request: web.Request,
    answer: bytes,
    connect: Callable[[asyncio.Transport, Callable[[], None]], WebSocketConnection],
) -> None:
    """Answer a request (`accept_upgrade`), and give its transport to a connection.

    `connect` makes the connection from the transport and a function to call when it is lost.
    """
    transport, protocol = request.transport, request.protocol
    if transport is None or transport.is_closing():
        raise ConnectionResetError
    tail = _TailParser()
    protocol.set_parser(tail)  # type: ignore[arg-type]
    protocol.keep_alive(False)
    # So that aiohttp releases the connection without closing it.
    protocol.transport = None
    protocol.connection_lost(None)
    connection = connect(transport, take_over(transport))
    transport.set_protocol(connection)
    transport.write(answer)
    if tail.data:
        connection.data_received(tail.data)
