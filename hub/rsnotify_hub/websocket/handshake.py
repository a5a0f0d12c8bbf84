"""From an HTTP request of aiohttp to a WebSocket of ours.

aiohttp reads the request; `websockets` says what the answer to it is; then the transport gets
another protocol, and aiohttp lets go of the connection with all that it holds for it.
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
from rsnotify_hub.websocket.connection import Connection

#: What the answer of aiohttp has of its own.
_OWN = frozenset(("connection", "content-length", "content-type", "date"))


class Upgraded(web.StreamResponse):
    """What a handler returns when the connection is no longer aiohttp's: nothing to send."""

    def __init__(self) -> None:
        super().__init__(status=101)

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send nothing."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Send nothing."""


def shake_hands(request: web.Request) -> bytes:
    """Check a request to upgrade (RFC 6455 §4.2).

    Returns:
        The answer to it, as it is sent.

    Raises:
        HTTPException: It is none, or one that cannot be granted.
    """
    protocol = ServerProtocol()
    headers = Headers([(name, value) for name, value in request.headers.items()])
    answer = protocol.accept(Request(path=request.raw_path, headers=headers))
    if answer.status_code != 101:
        raise _refused(answer.status_code, answer.body or b"", answer.headers)
    return answer.serialize()


def _refused(status: int, body: bytes | bytearray, headers: Headers) -> web.HTTPException:
    class Refused(web.HTTPException):
        status_code = status

    kept = {name: value for name, value in headers.raw_items() if name.lower() not in _OWN}
    return Refused(text=body.decode(), headers=kept)


class _Tail:
    """Gets what came behind the request, in place of a parser of aiohttp's."""

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
    connect: Callable[[asyncio.Transport, Callable[[], None]], Connection],
) -> None:
    """Answer a request, and let a connection of ours have its transport.

    Args:
        request: The request.
        answer: What `shake_hands` returned.
        connect: Makes the connection from the transport, and from what to call when it has gone.

    Raises:
        ConnectionResetError: The client has gone already.
    """
    transport, protocol = request.transport, request.protocol
    if transport is None or transport.is_closing():
        raise ConnectionResetError
    tail = _Tail()
    protocol.set_parser(tail)  # type: ignore[arg-type]
    protocol.keep_alive(False)
    # So that aiohttp lets go of the connection without closing it.
    protocol.transport = None
    protocol.connection_lost(None)
    connection = connect(transport, take_over(transport))
    transport.set_protocol(connection)
    transport.write(answer)
    if tail.data:
        connection.data_received(tail.data)
