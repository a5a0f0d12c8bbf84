"""The demo's link between the hub and the Destination: a TCP proxy that the user can cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from rsnotify.runtime.tasks import first_completed

_CHUNK_BYTES = 65536


class PushLink:
    """Forwards bytes to the hub and back unless it is cut. `open_link` creates a link.

    A client that connects while the link is cut waits until the link is restored or it gives up, as
    if the network were down.

    Attributes:
        carried: The number of bytes that the hub has sent to the Destination.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._connected = asyncio.Event()
        self._connected.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.carried = 0

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    def cut(self) -> None:
        self._connected.clear()
        for writer in self._writers:
            writer.transport.abort()

    def restore(self) -> None:
        self._connected.set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            early = await self._wait(reader)
            if early is not None:
                await self._forward(reader, writer, early)
        writer.transport.abort()

    async def _wait(self, reader: asyncio.StreamReader) -> bytes | None:
        """Wait until the link is restored, and return the bytes received from the client so far.

        Return None if the client disconnects.
        """
        early = b""
        while not self.connected:
            async with first_completed(reader.read(_CHUNK_BYTES), self._connected.wait()) as (
                more,
                _,
            ):
                if more.done():
                    chunk = more.result()
                    if not chunk:
                        return None
                    early += chunk
        return early

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, early: bytes
    ) -> None:
        hub_reader, hub_writer = await asyncio.open_connection(self._host, self._port)
        writers = {writer, hub_writer}
        self._writers |= writers
        try:
            hub_writer.write(early)
            to_hub = self._copy(reader, hub_writer)
            from_hub = self._copy(hub_reader, writer, counted=True)
            async with first_completed(to_hub, from_hub):
                pass  # one side has closed the connection, or the link was cut
        finally:
            self._writers -= writers
            hub_writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False
    ) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
            self.carried += len(chunk) if counted else 0


@asynccontextmanager
async def open_link(hub: str) -> AsyncIterator[tuple[PushLink, str]]:
    """Return a context with an open link to a hub, and its URL."""
    parts = urlsplit(hub)
    link = PushLink(parts.hostname or "127.0.0.1", parts.port or 80)
    server = await asyncio.start_server(link.handle, "127.0.0.1", 0)
    try:
        yield link, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        link.cut()
