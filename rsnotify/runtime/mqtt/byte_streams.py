"""What paho takes for its socket: bytes in memory, which the event loop carries.

paho-mqtt wants a non-blocking socket. It gets a `ByteStream`, which has the few methods that paho calls;
name lookups, TLS and the handshakes of WebSockets are then asyncio's, without a thread, and can
be cancelled. Two classes carry the bytes: `TcpByteStream` over TCP, `WebSocketByteStream` over frames.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from rsnotify.runtime.mqtt.framing import PacketLengths, PacketTooLong
from rsnotify.runtime.mqtt.topics import Broker

#: Connects a socket to a host and port, if these may be dialled.
Dial = Callable[[str, int], Awaitable[socket.socket]]

#: How much may wait to be sent before paho has to wait.
_HIGH_WATER = 256 * 1024


class ByteStream(ABC):
    """A socket to paho.

    Args:
        most: The longest packet that is taken.

    Attributes:
        on_data: Called when there is something to read, or the end.
        on_room: Called when there is room again to write.
        error: What ended it, if anything did.
    """

    def __init__(self, most: int) -> None:
        self.on_data: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] = lambda: None
        self.error: Exception | None = None
        self.full = False
        self._framing = PacketLengths(most)
        self._buffer = bytearray()
        self._ended = False

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Begin to send."""

    @abstractmethod
    def close(self) -> None:
        """Send what was written, then end; called by paho, and maybe twice."""

    @abstractmethod
    async def closed(self, seconds: float) -> None:
        """Wait until it has ended, and end it without regard when that takes too long."""

    @property
    def readable(self) -> bool:
        """Whether there is something to read, or the end was reached."""
        return bool(self._buffer) or self._ended

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        try:
            self._framing.feed(data)
        except PacketTooLong as error:
            self.end(error)
            self.close()
            return
        self._buffer += data
        self.on_data()

    def end(self, error: Exception | None) -> None:
        """Hear that nothing arrives any more."""
        if not self._ended:
            self._ended = True
            self.error = error
            self.on_data()

    def recv(self, size: int) -> bytes:
        """Return what arrived, at most so many bytes; nothing at the end (as a socket)."""
        if not self._buffer and not self._ended:
            raise BlockingIOError
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def send(self, data: bytes | bytearray) -> int:
        """Take all of what is to be sent, or nothing (as a socket)."""
        if self._ended:
            raise ConnectionError("the connection has ended")
        if self.full:
            raise BlockingIOError
        self.write(bytes(data))
        return len(data)

    def setblocking(self, blocking: bool) -> None:
        """Hear that it should not block, as it never does (as a socket)."""
        assert not blocking

    def fileno(self) -> int:
        """Return that it has no descriptor (as a socket)."""
        return -1


class TcpByteStream(ByteStream, asyncio.Protocol):
    """Carries the bytes over TCP, or TLS."""

    _transport: asyncio.Transport

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport (`asyncio.Protocol`)."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's are none by class
        self._transport.set_write_buffer_limits(_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        """Take what arrived (`asyncio.Protocol`)."""
        self.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Hear of the end (`asyncio.Protocol`)."""
        if not self._gone.done():
            self._gone.set_result(None)
        self.end(error)

    def pause_writing(self) -> None:
        """Hear that much waits to be sent (`asyncio.Protocol`)."""
        self.full = True

    def resume_writing(self) -> None:
        """Hear that most was sent (`asyncio.Protocol`)."""
        self.full = False
        self.on_room()

    def write(self, data: bytes) -> None:
        """Begin to send (`ByteStream`)."""
        self._transport.write(data)

    def close(self) -> None:
        """End it (`ByteStream`)."""
        self._transport.close()

    async def closed(self, seconds: float) -> None:
        """Wait for its end (`ByteStream`)."""
        self._transport.close()
        await asyncio.wait([self._gone], timeout=seconds)
        self._transport.abort()
        await self._gone


class WebSocketByteStream(ByteStream):
    """Carries the bytes in binary frames (MQTT 5 §6).

    Args:
        most: The longest packet that is taken.
        connection: The WebSocket.
    """

    def __init__(self, most: int, connection: ClientConnection) -> None:
        super().__init__(most)
        self._connection = connection
        self._waiting = bytearray()
        self._news = asyncio.Event()
        self._closing = False
        self._tasks = [asyncio.create_task(self._hear()), asyncio.create_task(self._say())]

    async def _hear(self) -> None:
        try:
            async for frame in self._connection:
                self.feed(frame.encode() if isinstance(frame, str) else frame)
        except (OSError, WebSocketException) as error:
            self.end(error)
        else:
            self.end(None)

    async def _say(self) -> None:
        while not self._closing or self._waiting:
            await self._news.wait()
            self._news.clear()
            data, self._waiting = bytes(self._waiting), bytearray()
            try:
                if data:
                    await self._connection.send(data)
            except (OSError, WebSocketException) as error:
                self.end(error)
                return
            if self.full:
                self.full = False
                self.on_room()

    def write(self, data: bytes) -> None:
        """Begin to send (`ByteStream`)."""
        self._waiting += data
        self.full = len(self._waiting) > _HIGH_WATER
        self._news.set()

    def close(self) -> None:
        """End it (`ByteStream`)."""
        self._closing = True
        self._news.set()

    async def closed(self, seconds: float) -> None:
        """Wait for its end (`ByteStream`)."""
        self.close()
        hearing, saying = self._tasks
        await asyncio.wait([saying], timeout=seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._connection.close()
        except TimeoutError:
            self._connection.transport.abort()
        for task in (hearing, saying):
            task.cancel()
        await asyncio.gather(hearing, saying, return_exceptions=True)


async def open_byte_stream(
    broker: Broker, tls: ssl.SSLContext | None, dial: Dial | None, *, most: int
) -> ByteStream:
    """Connect to a broker.

    Args:
        broker: Which.
        tls: What TLS needs; None where there is none.
        dial: Makes the connection of TCP; None connects to any address.
        most: The longest packet that is taken.

    Raises:
        OSError: There is no connection to be had.
        WebSocketException: It speaks no WebSocket.
    """
    sock = await dial(broker.host, broker.port) if dial is not None else None
    try:
        if broker.path is not None:
            return await _open_websocket(broker, tls, sock, most)
        return await _open_stream(broker, tls, sock, most)
    except BaseException:
        if sock is not None:
            sock.close()
        raise


async def _open_stream(
    broker: Broker, tls: ssl.SSLContext | None, sock: socket.socket | None, most: int
) -> ByteStream:
    loop = asyncio.get_running_loop()
    name = broker.host if tls is not None else None
    if sock is not None:
        _, wire = await loop.create_connection(
            lambda: TcpByteStream(most), sock=sock, ssl=tls, server_hostname=name
        )
    else:
        _, wire = await loop.create_connection(
            lambda: TcpByteStream(most), broker.host, broker.port, ssl=tls, server_hostname=name
        )
    return wire


async def _open_websocket(
    broker: Broker, tls: ssl.SSLContext | None, sock: socket.socket | None, most: int
) -> ByteStream:
    scheme = "ws" if tls is None else "wss"
    authority = broker.url.partition("://")[2]
    connection = await connect(
        f"{scheme}://{authority}{broker.path}",
        sock=sock,
        ssl=tls,
        subprotocols=[Subprotocol("mqtt")],
        # A broker that does not compress costs less, and cannot send a bomb.
        compression=None,
        # MQTT has pings of its own.
        ping_interval=None,
        max_size=most,
        close_timeout=1,
    )
    if connection.subprotocol != "mqtt":
        await connection.close()
        raise WebSocketException("it has a WebSocket that speaks no MQTT")
    return WebSocketByteStream(most, connection)
