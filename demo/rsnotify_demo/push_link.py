"""The push link between hub and Destination: a TCP proxy that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

_CHUNK = 65536


class PushLink:
    """Carries bytes to the hub and back while it is whole. Made by `open_link`.

    What connects while it is cut waits, as on a network that is away: it gets through once the
    link is whole again, unless it gave up.

    Args:
        host: The hub's.
        port: The hub's.

    Attributes:
        carried: How many bytes went from the hub to the Destination.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._whole = asyncio.Event()
        self._whole.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.carried = 0

    @property
    def whole(self) -> bool:
        """Tell whether it carries."""
        return self._whole.is_set()

    def cut(self) -> None:
        """Break every connection, and let none through."""
        self._whole.clear()
        for writer in self._writers:
            writer.transport.abort()

    def restore(self) -> None:
        """Let connections through again."""
        self._whole.set()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to its end."""
        with suppress(OSError):
            early = await self._wait(reader)
            if early is not None:
                await self._carry(reader, writer, early)
        writer.transport.abort()

    async def _wait(self, reader: asyncio.StreamReader) -> bytes | None:
        """Wait until the link is whole; return what came meanwhile, or None if it gave up."""
        early = b""
        while not self.whole:
            whole = asyncio.create_task(self._whole.wait())
            more = asyncio.create_task(reader.read(_CHUNK))
            try:
                await asyncio.wait({whole, more}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                whole.cancel()
                more.cancel()  # which does nothing where it has read
            if more.done():
                chunk = more.result()
                if not chunk:
                    return None
                early += chunk
        return early

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, early: bytes
    ) -> None:
        hub_reader, hub_writer = await asyncio.open_connection(self._host, self._port)
        ends = {writer, hub_writer}
        self._writers |= ends
        try:
            hub_writer.write(early)
            there = asyncio.create_task(self._pump(reader, hub_writer))
            back = asyncio.create_task(self._pump(hub_reader, writer, counted=True))
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            for pump in (there, back):
                pump.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
        finally:
            self._writers -= ends
            hub_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False
    ) -> None:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
            self.carried += len(chunk) if counted else 0


@asynccontextmanager
async def open_link(hub: str) -> AsyncIterator[tuple[PushLink, str]]:
    """Open a link to a hub.

    Args:
        hub: The hub's URL.

    Returns:
        A context with the link and the URL at which Destinations reach the hub over it.
    """
    parts = urlsplit(hub)
    link = PushLink(parts.hostname or "127.0.0.1", parts.port or 80)
    server = await asyncio.start_server(link.take, "127.0.0.1", 0)
    try:
        yield link, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        link.cut()
