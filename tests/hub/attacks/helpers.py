"""Servers and names for attacks: victims that the hub must not reach, and hostile servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.hub.posting.servers import Request, Server

#: Answers one request, given by its head.
Answer = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(
    answer: Answer, *, host: str = "127.0.0.1", port: int = 0, reads_heads: bool = True
) -> AsyncIterator[Server]:
    """Serve each connection, once the head of its request is there, by a function."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    listener.setblocking(False)
    server = Server(*listener.getsockname()[:2])

    def accept() -> None:
        with suppress(BlockingIOError):
            serving = _serve(server, answer, listener.accept()[0], reads_heads=reads_heads)
            tasks.add(loop.create_task(serving))

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


async def _serve(
    server: Server, answer: Answer, connection: socket.socket, *, reads_heads: bool
) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    number = server.begin(writer)
    try:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = b""
            if reads_heads:
                head = await reader.readuntil(b"\r\n\r\n")
                await server.note(Request(number, head, b""))
            await answer(head, reader, writer)
        writer.close()
        await server.end()
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
