"""A TCP proxy that delays, stalls, cuts and resets, and repeats and reorders whole messages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from random import Random

from tests.ports import free_port

_LENGTH = re.compile(rb"(?im)^content-length:[ \t]*([0-9]+)[ \t]*\r?$")
_UPGRADE = re.compile(rb"(?im)^upgrade:[ \t]*websocket[ \t]*\r?$")
_TEXT = 0x81
_REPEAT_WITHIN = 1.0


class _Messages:
    """Divides one direction of an HTTP connection into requests and WebSocket frames."""

    def __init__(self, *, requests: bool) -> None:
        self._requests = requests
        self._buffer = b""
        self._frames = False
        self._raw = False

    def take(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield what is complete, and whether it may be repeated."""
        self._buffer += data
        while self._buffer:
            if self._raw:
                size, may = len(self._buffer), False
            elif self._frames:
                size, may = self._frame()
            else:
                size, may = self._message()
            if not 0 < size <= len(self._buffer):
                return
            yield self._buffer[:size], may
            self._buffer = self._buffer[size:]

    def _message(self) -> tuple[int, bool]:
        head, end, _ = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return 0, False
        size = len(head) + len(end)
        if _UPGRADE.search(head):
            self._frames = self._requests or head.startswith(b"HTTP/1.1 101 ")
            return size, False
        if not self._requests:
            self._raw = True  # only the first response of a connection can be an upgrade
            return len(self._buffer), False
        if b"chunked" in head.lower():
            self._raw = True
            return len(self._buffer), False
        length = _LENGTH.search(head)
        return size + (int(length[1]) if length else 0), head.startswith(b"POST ")

    def _frame(self) -> tuple[int, bool]:
        buffer = self._buffer
        start = {126: 4, 127: 10}.get(buffer[1] & 0x7F, 2) if len(buffer) > 1 else 2
        masked = len(buffer) > 1 and bool(buffer[1] & 0x80)
        if len(buffer) < start + 4 * masked:
            return 0, False
        length = int.from_bytes(buffer[2:start]) if start > 2 else buffer[1] & 0x7F
        mask = buffer[start] if masked else 0
        start += 4 * masked
        first = buffer[start] ^ mask if length and len(buffer) > start else 0
        return start + length, buffer[0] == _TEXT and first == ord("<")


class FaultyPath:
    """What is between two processes.

    Args:
        name: What is sent by it.
        target: The port that connections to its own `port` lead to.
        random: Decides what is repeated.
        aware: Whether it is HTTP and WebSocket, and messages can be told apart.

    Attributes:
        delay: The longest delay of what is sent, in seconds.
        refuses: Whether new connections are refused.
        cut_after: After so many more bytes, a connection is reset.
        shuffles: Whether fragments are repeated and reordered.
        shuffled: How many were.
        resets: How many connections were reset.
    """

    def __init__(self, name: str, target: int, random: Random, *, aware: bool = True) -> None:
        self.name = name
        self.port = free_port()
        self.delay = 0.0
        self.refuses = False
        self.cut_after: int | None = None
        self.shuffles = False
        self.shuffled = 0
        self.resets = 0
        self.open = asyncio.Event()
        self.open.set()
        self._target = target
        self._random = random
        self._aware = aware
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.open.set()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reset(self) -> None:
        self.resets += len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        try:
            away = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, away[1]}
        pumps = [
            asyncio.create_task(self._pump(reader, away[1], requests=True)),
            asyncio.create_task(self._pump(away[0], writer, requests=False)),
        ]
        self._tasks.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            # The other direction may have something to say to one that only ended its own.
            await asyncio.wait(pumps, timeout=1)
        finally:
            for pump in pumps:
                pump.cancel()
            self._tasks.difference_update(pumps)
            for each in (writer, away[1]):
                self._writers.discard(each)
                each.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, requests: bool
    ) -> None:
        messages = _Messages(requests=requests)
        held: list[bytes] = []
        with suppress(OSError):
            while data := await reader.read(65_536):
                if self.delay:
                    await asyncio.sleep(self._random.uniform(0, self.delay))
                await self.open.wait()
                if self._cut(writer, data):
                    return
                if not self._aware:
                    writer.write(data)
                else:
                    for message, may in messages.take(data):
                        # What follows a control frame may be of another topic.
                        for each in self._disturb(message, held) if may else [*held, message]:
                            writer.write(each)
                        if not may:
                            held.clear()
                await writer.drain()
            writer.write_eof()

    def _cut(self, writer: asyncio.StreamWriter, data: bytes) -> bool:
        """Send only a part if this connection is to be cut; then return whether it was."""
        if self.cut_after is None:
            return False
        self.cut_after -= len(data)
        if self.cut_after >= 0:
            return False
        writer.write(data[: self.cut_after])
        self.cut_after = None
        asyncio.get_running_loop().call_later(0.01, self.reset)  # the part is sent before
        return True

    def _disturb(self, message: bytes, held: list[bytes]) -> list[bytes]:
        """Return what is sent now: nothing, the message, or others, too, in any order."""
        if message.startswith(b"POST "):
            if self.shuffles and self._random.random() < 0.5:
                self.shuffled += 1
                task = asyncio.create_task(self._repeat(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return [message]
        chance = self._random.random() if self.shuffles else 1.0
        now = [message] if chance > 0.3 else []
        if chance < 0.6:
            self.shuffled += 1
            held.append(message)
        if held and (not self.shuffles or self._random.random() < 0.5):
            now += held
            held.clear()
            self._random.shuffle(now)
        return now

    async def _repeat(self, request: bytes) -> None:
        """Send a request once more, after those that follow it."""
        await asyncio.sleep(self._random.uniform(0, _REPEAT_WITHIN))
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                async with asyncio.timeout(_REPEAT_WITHIN):
                    writer.write(request)
                    await reader.read(1_000)
            finally:
                writer.close()
