"""Servers and names for attacks: victims that the hub must not reach, and hostile servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.hub.helpers import PATIENCE

#: Answers one request, given by its head.
Answer = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A raw server on a loopback address, without an HTTP library."""

    def __init__(self) -> None:
        self.host = ""
        self.port = 0
        self.connections = 0
        self.at_once = 0  # the largest number of open connections
        self.ended = 0
        self.requests: list[bytes] = []
        self.came = asyncio.Condition()

    def url(self, path: str = "/") -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{path}"

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE), self.came:
            await self.came.wait_for(holds)

    async def record(self, request: bytes) -> None:
        async with self.came:
            self.requests.append(request)
            self.came.notify_all()

    async def finish(self) -> None:
        async with self.came:
            self.ended += 1
            self.came.notify_all()


@asynccontextmanager
async def raw_server(
    answer: Answer, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Server]:
    """Serve each request, once its headers are there, by a function of the streams."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    server = Server()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    listener.setblocking(False)
    server.host, server.port = listener.getsockname()[:2]

    def accept() -> None:
        with suppress(BlockingIOError):
            tasks.add(loop.create_task(_serve(server, answer, listener.accept()[0])))

    loop.add_reader(listener, accept)
    try:
        yield server
    finally:
        loop.remove_reader(listener)
        listener.close()
        await asyncio.sleep(0)  # so that each task has begun, and closes its connection
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(server: Server, answer: Answer, connection: socket.socket) -> None:
    server.connections += 1
    server.at_once = max(server.at_once, server.connections - server.ended)
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            await server.record(head)
            await answer(head, reader, writer)
        writer.close()
        await server.finish()
        with suppress(OSError):
            await writer.wait_closed()
    finally:
        writer.transport.abort()  # even if unread bytes are left
        with suppress(OSError):
            await writer.wait_closed()


def response(body: bytes, *headers: str, status: int = 200) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body


async def obliging(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as a victim would."""
    writer.write(response(b"secret"))
    await writer.drain()


async def confirm(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as a callback: with the challenge, if there is one."""
    query = head.split(b" ")[1].decode().partition("?")[2]
    writer.write(response(dict(parse_qsl(query)).get("hub.challenge", "").encode()))
    await writer.drain()


def sending_to(status: int, location: str) -> Answer:
    """Answer with a redirect."""

    async def answer(
        head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(response(b"", f"Location: {location}", status=status))
        await writer.drain()

    return answer


class Names:
    """The name server of a test: names of `.test`, and their present addresses."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.asked: list[str] = []

    def look_up(self, host: str, port: int) -> list[Any]:
        self.asked.append(host)
        found: list[Any] = []
        for address in self.addresses[host]:
            if ":" in address:
                place: Any = (address, port, 0, 0)
                found.append((socket.AF_INET6, socket.SOCK_STREAM, 6, "", place))
            else:
                found.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)))
        return found


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(host, str) and host in names.addresses:
            return names.look_up(host, int(port or 0))
        return real(host, port, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return names
