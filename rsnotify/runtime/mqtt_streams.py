"""Byte streams that paho-mqtt uses as its socket, on the event loop.

paho-mqtt expects a non-blocking socket. A `ByteStream` replaces the socket, with the few methods
that paho calls, so that name resolution, TLS and WebSocket handshakes need no thread and can be
cancelled. `TcpByteStream` uses TCP, `WebSocketByteStream` a WebSocket. The lengths of incoming
packets are checked early, so that no broker can exhaust the memory.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from rsnotify.errors import RsnotifyError
from rsnotify.runtime.addresses import Dialer, is_proxied
from rsnotify.runtime.mqtt_broker import Broker
from rsnotify.runtime.tasks import cancel, running, settle


class PacketTooLong(RsnotifyError, ValueError):
    """A packet is longer than allowed, or its length field is malformed."""


class PacketLengths:
    """Tracks the packet boundaries in a stream of bytes.

    A packet consists of a fixed header (one byte, then the remaining length in one to four bytes of
    seven bits each, the least significant first), followed by that number of bytes (MQTT 5 §2.1).
    """

    def __init__(self, max_remaining: int) -> None:
        self._max_remaining = max_remaining
        self._header = bytearray()
        self._remaining = 0

    def feed(self, data: bytes) -> None:
        """Check the next bytes of the stream. Raises PacketTooLong if a packet is too long."""
        position = 0
        while position < len(data):
            if self._remaining:
                passed = min(self._remaining, len(data) - position)
                self._remaining -= passed
                position += passed
            else:
                self._header.append(data[position])
                position += 1
                self._parse_header()

    def _parse_header(self) -> None:
        if len(self._header) == 1:
            return
        if self._header[-1] & 0x80:
            if len(self._header) == 5:
                raise PacketTooLong
            return
        length = self._header[1:]
        self._remaining = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(length))
        self._header.clear()
        if self._remaining > self._max_remaining:
            raise PacketTooLong


#: Connects a socket to a host and port, if their address is allowed.
Dial = Callable[[str, int], Awaitable[socket.socket]]

#: Number of buffered bytes beyond which paho must wait.
_HIGH_WATER_BYTES = 256 * 1024


class ByteStream(ABC):
    """The part of a non-blocking socket that paho uses.

    Attributes:
        on_data: Called when there is data to read, or when the stream has ended.
        on_writable: Called when the stream is no longer full.
        error: The error that ended the stream, if there was one.
        full: Whether paho has to wait before it writes more.
    """

    def __init__(self, max_packet: int) -> None:
        self.on_data: Callable[[], None] = lambda: None
        self.on_writable: Callable[[], None] = lambda: None
        self.error: Exception | None = None
        self.full = False
        self._lengths = PacketLengths(max_packet)
        self._buffer = bytearray()
        self._ended = False

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Begin to send data."""

    @abstractmethod
    def close(self) -> None:
        """Send the data written so far, then close. paho may call this twice."""

    @abstractmethod
    async def wait_closed(self, seconds: float) -> None:
        """Close the connection, and abort it if this takes longer than `seconds`."""

    @property
    def readable(self) -> bool:
        """Whether there is data to read, or the stream has ended."""
        return bool(self._buffer) or self._ended

    def feed(self, data: bytes) -> None:
        try:
            self._lengths.feed(data)
        except PacketTooLong as error:
            self.end(error)
            self.close()
            return
        self._buffer += data
        self.on_data()

    def end(self, error: Exception | None) -> None:
        """Record the end of the stream, perhaps because of an error."""
        if not self._ended:
            self._ended = True
            self.error = error
            self.on_data()

    def recv(self, size: int) -> bytes:
        """Return up to `size` received bytes, or none at the end of the stream (like a socket)."""
        if not self._buffer and not self._ended:
            raise BlockingIOError
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def send(self, data: bytes | bytearray) -> int:
        """Accept all of the data or none of it (like a socket)."""
        if self._ended:
            raise ConnectionError("the connection has ended")
        if self.full:
            raise BlockingIOError
        self.write(bytes(data))
        return len(data)

    def setblocking(self, blocking: bool) -> None:
        """Do nothing, because the stream never blocks (like a socket)."""
        assert not blocking

    def fileno(self) -> int:
        return -1


class TcpByteStream(ByteStream, asyncio.Protocol):
    _transport: asyncio.Transport

    def __init__(self, max_packet: int) -> None:
        super().__init__(max_packet)
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # Methods of `asyncio.Protocol`

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's class has another base
        self._transport.set_write_buffer_limits(_HIGH_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        self.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        settle(self._lost, None)
        self.end(error)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self.on_writable()

    # Methods of `ByteStream`

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        # After a second `close`, asyncio's TLS transport could not be aborted.
        if not self._transport.is_closing():
            self._transport.close()

    async def wait_closed(self, seconds: float) -> None:
        self.close()
        await asyncio.wait([self._lost], timeout=seconds)
        self._transport.abort()
        await self._lost


class WebSocketByteStream(ByteStream):
    """A byte stream in the binary frames of a WebSocket (MQTT 5 §6)."""

    def __init__(self, max_packet: int, connection: ClientConnection) -> None:
        super().__init__(max_packet)
        self._connection = connection
        self._unsent = bytearray()
        self._wake = asyncio.Event()
        self._closing = False
        self._receiver = asyncio.create_task(self._receive())
        self._sender = asyncio.create_task(self._send())

    async def _receive(self) -> None:
        try:
            async for frame in self._connection:
                self.feed(frame.encode() if isinstance(frame, str) else frame)
        except (OSError, WebSocketException) as error:
            self.end(error)
        else:
            self.end(None)

    async def _send(self) -> None:
        while not self._closing or self._unsent:
            await self._wake.wait()
            self._wake.clear()
            data, self._unsent = bytes(self._unsent), bytearray()
            try:
                if data:
                    await self._connection.send(data)
            except (OSError, WebSocketException) as error:
                self.end(error)
                return
            if self.full:
                self.full = False
                self.on_writable()

    def write(self, data: bytes) -> None:
        self._unsent += data
        self.full = len(self._unsent) > _HIGH_WATER_BYTES
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._wake.set()

    async def wait_closed(self, seconds: float) -> None:
        self.close()
        await asyncio.wait([self._sender], timeout=seconds)
        # In its own task, because before Python 3.11.3, an `asyncio.timeout` that expires in a task
        # that is being cancelled raises CancelledError. `close` uses one, too.
        async with running(self._connection.close()) as closing:
            _, late = await asyncio.wait(closing, timeout=seconds)
            if late:
                self._connection.transport.abort()
        await cancel([self._receiver, self._sender])


async def open_byte_stream(
    broker: Broker, tls: ssl.SSLContext | None, dial: Dial | None, *, max_packet: int
) -> ByteStream:
    """Connect to a broker. Raises OSError, or WebSocketException if the handshake fails.

    Without `dial`, any address is allowed, and a proxy set in the environment is used for a
    WebSocket.
    """
    scheme = "ws" if tls is None else "wss"
    authority = broker.url.partition("://")[2]
    uri = None if broker.path is None else f"{scheme}://{authority}{broker.path}"
    sock = None
    if dial is not None or uri is None or not is_proxied(uri):
        sock = await (dial or Dialer().dial)(broker.host, broker.port)
    try:
        if uri is not None:
            return await _open_websocket(uri, tls, sock, max_packet)
        loop = asyncio.get_running_loop()
        make = partial(TcpByteStream, max_packet)
        name = None if tls is None else broker.host
        _, stream = await loop.create_connection(make, sock=sock, ssl=tls, server_hostname=name)
        return stream
    except BaseException:
        if sock is not None:
            sock.close()
        raise


async def _open_websocket(
    uri: str, tls: ssl.SSLContext | None, sock: socket.socket | None, max_packet: int
) -> ByteStream:
    connection = await connect(
        uri,
        sock=sock,
        ssl=tls,
        subprotocols=[Subprotocol("mqtt")],
        # Without compression, the broker cannot send a decompression bomb.
        compression=None,
        # MQTT has its own pings.
        ping_interval=None,
        max_size=max_packet,
        close_timeout=1,
    )
    if connection.subprotocol != "mqtt":
        await connection.close()
        raise WebSocketException("its WebSocket does not speak MQTT")
    return WebSocketByteStream(max_packet, connection)
