"""A proxy in front of a NATS server that can withhold its answers, and cut connections."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class LossyProxy:
    """Passes on everything, until a test changes that.

    Attributes:
        withholding: Whether what the server sends is lost.
        refusing: Whether new connections are reset.
        left: How many bytes it passes on to the server until it cuts all connections, refuses new
            ones, and sets `is_cut`; None without a limit.
    """

    def __init__(self, port: int) -> None:
        self.withholding = False
        self.refusing = False
        self.left: int | None = None
        self.is_cut = asyncio.Event()
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            # With a reset, since the library does not close what ends while it connects.
            connected = writer.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return
        with suppress(OSError):
            behind, to_server = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers |= {writer, to_server}
            self._tasks.add(asyncio.create_task(self._copy(behind, writer, is_answer=True)))
            self._tasks.add(asyncio.create_task(self._copy(reader, to_server, is_answer=False)))

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if is_answer and self.withholding:
                    continue
                if not is_answer and self.left is not None:
                    data = data[: self.left]
                    self.left -= len(data)
                writer.write(data)
                await writer.drain()
                if not is_answer and self.left == 0:
                    self.left, self.refusing = None, True
                    self.cut()
                    self.is_cut.set()
        writer.close()

    async def ended(self) -> None:
        """Wait until nothing is passed on any more."""
        await asyncio.gather(*self._tasks)

    def pass_on_again(self) -> None:
        """Withhold nothing any more; what was withheld is lost with its connection."""
        self.withholding = False
        self.cut()

    def cut(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@asynccontextmanager
async def lossy_proxy(port: int) -> AsyncIterator[tuple[LossyProxy, str]]:
    """Run a proxy to a port of loopback, and return its URL."""
    proxy = LossyProxy(port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    try:
        yield proxy, f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        proxy.cut()
        await proxy.ended()
