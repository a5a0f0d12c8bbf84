"""Attacks on `GET /ws`; `test_websocket_connections.py` has the frames that end a connection."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from tests.hub.helpers import TOPIC, Client, fragment
from tests.hub.raw_sockets import PING, TEXT, connect, frame

SUBSCRIBE = json.dumps({"type": "subscribe", "topic": TOPIC, "since": None}).encode()


@pytest.mark.parametrize(
    "offer",
    [
        "permessage-deflate",
        "permessage-deflate; client_max_window_bits",
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
        "x-webkit-deflate-frame",
    ],
)
async def test_no_compression_is_negotiated(hub: Client, offer: str):
    async with connect(hub, f"Sec-WebSocket-Extensions: {offer}") as (head, _):
        assert head.startswith("HTTP/1.1 101")
        assert "sec-websocket-extensions" not in head.lower()


async def test_a_fragmented_message_has_the_limit_of_a_whole_one(hub: Client):
    async with connect(hub) as (_, socket):
        part = frame(0, b"x" * 1000, fin=False)
        with suppress(ConnectionError):
            await socket.send(frame(TEXT, b"{", fin=False))
            for _ in range(20_000):
                await socket.send(part)
        await socket.end()  # the hub disconnects, though the message does not end


async def test_a_client_that_pings_and_reads_nothing_delays_no_other(hub: Client):
    async with connect(hub) as (_, socket):
        await socket.send(frame(TEXT, SUBSCRIBE))

        async def flood() -> None:
            while True:
                await socket.send(frame(PING, b"x" * 125) * 500)

        flooding = asyncio.create_task(flood())
        listener = await hub.listen()
        for second in range(1, 6):
            await hub.accepted(fragment(second - 1, second))
            heard = await listener.receive_str()
            assert heard == fragment(second - 1, second).decode()
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
