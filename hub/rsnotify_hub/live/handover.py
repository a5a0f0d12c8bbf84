"""Takes the transport of a connection over from aiohttp once its request was read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from rsnotify_hub.http.connection_guard import take_over


class HandedOver(web.StreamResponse):
    """The response of a handler whose connection is no longer aiohttp's: it sends nothing."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        pass


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
    connect: Callable[[asyncio.Transport, Callable[[], None]], asyncio.Protocol],
) -> HandedOver:
    """Answer a request, and give its transport to a connection.

    `connect` makes the connection from the transport and a function to call when it is lost.
    """
    transport, protocol = request.transport, request.protocol
    if transport is None or transport.is_closing():
        return HandedOver()  # the client has left, so there is nobody to answer
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
    return HandedOver()
