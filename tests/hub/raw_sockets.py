"""Connections byte by byte, and WebSockets frame by frame, that do what no library does."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.hub.helpers import Client
from tests.waiting import PATIENCE

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Streams]:
    """Open a connection to the server of a URL."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Return all that comes until the server ends the connection."""
    found = b""
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionError):
            while piece := await reader.read(65_536):
                found += piece
    return found


async def answer_to(url: str, sent: bytes) -> bytes:
    """Send bytes on a connection of their own; return all that comes until the server ends it."""
    async with opened(url) as (reader, writer):
        writer.write(sent)
        return await rest_of(reader)


TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(
    opcode: int, payload: bytes, *, fin: bool = True, masked: bool = True, flags: int = 0
) -> bytes:
    """A frame (RFC 6455 §5.2), which may be against the rules."""
    length = len(payload)
    size = min(length, 126) if length < 65536 else 127
    head = bytes([(fin << 7) | flags | opcode, (masked << 7) | size])
    if length > 125:
        head += struct.pack(">H" if size == 126 else ">Q", length)
    return head + (bytes(4) if masked else b"") + payload


class Socket:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))
        await self.writer.drain()

    async def message(self) -> tuple[int, bytes]:
        """The opcode and the payload of the next frame, which may be a ping."""
        async with asyncio.timeout(PATIENCE):
            head, size = await self.reader.readexactly(2)
            if size == 126:
                (size,) = struct.unpack(">H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
            return head & 0x0F, await self.reader.readexactly(size)

    async def text(self) -> bytes:
        """The next text; pings are answered."""
        while (message := await self.message())[0] != TEXT:
            assert message == (PING, b"")
            await self.send(frame(PONG, b""))
        return message[1]

    async def closed(self) -> int:
        """The code of the close that comes, after whatever else."""
        while True:
            opcode, payload = await self.message()
            if opcode == CLOSE:
                return int.from_bytes(payload[:2])

    async def end(self) -> bytes:
        """What comes until the hub hangs up."""
        return await rest_of(self.reader)


@asynccontextmanager
async def connect(
    hub: Client, *headers: str, early: bytes = b""
) -> AsyncIterator[tuple[str, Socket]]:
    """Shake hands, and send `early` with it; the context has the head of the answer."""
    lines = [
        "GET /ws HTTP/1.1",
        f"Host: {urlsplit(hub.url).netloc}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        *headers,
    ]
    async with opened(hub.url) as (reader, writer):
        writer.write("\r\n".join([*lines, "", ""]).encode() + early)
        async with asyncio.timeout(PATIENCE):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        yield head, Socket(reader, writer)
