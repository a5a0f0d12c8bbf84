"""Callbacks with scripted answers, byte by byte."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct

from tests.waiting import PATIENCE

OK = b"HTTP/1.1 204 No Content\r\n\r\n"
CLOSE = None

#: What each connection answers its requests with; after the last it ends.
Script = Sequence[bytes | None]


class Request(Struct, frozen=True):
    connection: int
    head: bytes
    body: bytes


class Server:
    """A server without an HTTP library, and what it has received."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port = port
        self.requests: list[Request] = []
        self.connections = 0
        self.at_once = 0  # the largest number of open connections
        self.ended = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.changed = asyncio.Condition()

    def url(self, path: str = "/", *, scheme: str = "http", host: str | None = None) -> str:
        host = host or (f"[{self.host}]" if ":" in self.host else self.host)
        return f"{scheme}://{host}:{self.port}{path}"

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE), self.changed:
            await self.changed.wait_for(holds)

    def begin(self, writer: asyncio.StreamWriter) -> int:
        """Count a connection; return its number."""
        self.writers.append(writer)
        self.connections += 1
        self.at_once = max(self.at_once, self.connections - self.ended)
        return self.connections - 1

    async def note(self, request: Request) -> None:
        async with self.changed:
            self.requests.append(request)
            self.changed.notify_all()

    async def end(self) -> None:
        async with self.changed:
            self.ended += 1
            self.changed.notify_all()


@asynccontextmanager
async def serving(
    *scripts: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Server]:
    """Serve; connections beyond the scripts follow the last of them."""
    server = Server()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        number = server.begin(writer)
        try:
            for answer in scripts[min(number, len(scripts) - 1)]:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await server.note(Request(number, head, body))
                if answer is CLOSE:
                    break
                writer.write(answer)
            else:
                await reader.read()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.transport.abort()
            await server.end()

    listening = await asyncio.start_server(serve, host, 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
