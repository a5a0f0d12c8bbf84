"""A hub that sends something before it is requested does not end the subscriber."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from websockets.utils import accept_key

from rsnotify.errors import Unavailable
from rsnotify_subscriber.push.transport import TransportListener
from rsnotify_subscriber.push.websocket_transport import WebSocketTransport


async def test_a_message_in_one_packet_with_the_handshake_is_ignored() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.split(": ", 1) for line in request.splitlines()[1:] if line)
        accept = accept_key(fields["Sec-WebSocket-Key"])
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept.encode() + b"\r\n\r\n\x81\x02{}"
        )
        await reader.readexactly(2)  # the subscription
        writer.close()

    async def trusts(host: str | None) -> bool:
        return True

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        hub = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(Unavailable, match="lost"):
            await WebSocketTransport(hub, "t", trusts).receive(None, cast(TransportListener, None))
