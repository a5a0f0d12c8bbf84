"""Attacks on `GET /ws` with frames that no library would send."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from contextlib import suppress

import pytest

from tests.hub.helpers import TOPIC, Client, fragment
from tests.hub.raw_sockets import BINARY, CLOSE, PING, TEXT, connect, frame

SUBSCRIBE = json.dumps({"type": "subscribe", "topic": TOPIC, "since": None}).encode()

#: Frames that a client must not send, before or after it has subscribed.
AGAINST_THE_RULES = {
    "not masked": frame(TEXT, SUBSCRIBE, masked=False),
    "reserved bits": frame(TEXT, SUBSCRIBE, flags=0x40),
    "an unknown opcode": frame(5, b""),
    "a ping in parts": frame(PING, b"", fin=False),
    "a long ping": frame(PING, b"x" * 126),
    "a part of nothing": frame(0, b"x"),
    "no UTF-8": frame(TEXT, b"\xff\xfe"),
    "no JSON": frame(TEXT, b"{" * 1000),
    "deep JSON": frame(TEXT, b'{"type":' + b"[" * 60_000 + b"]" * 60_000 + b"}"),
    "an unknown type": frame(TEXT, b'{"type":"eval"}'),
    "numbers without bound": frame(TEXT, b'{"type":"subscribe","since":1' + b"0" * 50_000 + b"}"),
    "a large frame": frame(TEXT, b"x" * 70_000),
    "a promise of 2^62 bytes": b"\x81\xff" + struct.pack(">Q", 1 << 62) + bytes(4),
    "a promise of 2^64 bytes": b"\x81\xff" + b"\xff" * 8 + bytes(4),
    "binary": frame(BINARY, SUBSCRIBE),
    "garbage": random.Random(4).randbytes(4096),
}


async def test_a_client_that_violates_the_protocol_is_disconnected(hub: Client):
    listener = await hub.listen()
    for second, what in enumerate(AGAINST_THE_RULES):
        async with connect(hub) as (head, socket):
            assert head.startswith("HTTP/1.1 101"), what
            await socket.send(AGAINST_THE_RULES[what], frame(CLOSE, struct.pack(">H", 1000)))
            assert TOPIC.encode() not in await socket.end(), what
        sent = fragment(second, second + 1)
        await hub.accepted(sent)
        assert await listener.receive_str() == sent.decode(), what


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
