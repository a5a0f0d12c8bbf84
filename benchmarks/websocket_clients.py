"""Many clients in a separate process, with the least possible cost for the server.

`websocket_clients.py HOST PORT PATH COUNT [FIRST]` opens COUNT connections, sends the text FIRST
on each and prints `ready` once all are open (and, with FIRST, have answered). Then for each line on
its standard input, a number, it reads that many bytes of frames from all of them together, and
prints `done`. A PATH of `/events` is opened as event streams, any other as WebSockets.
"""

from __future__ import annotations

import base64
import os
import selectors
import socket
import struct
import sys
import time

_CHUNK = 1 << 18
_TICK = 0.005
_COMMENT = b":\n\n"
_PING, _PONG = b"\x89\x00", b"\x8a\x80\x00\x00\x00\x00"


def frame(text: bytes) -> bytes:
    """Encode a text frame as a client does; its mask is zero, so that it costs nothing to make."""
    size = len(text)
    if size < 126:
        head = struct.pack("!BB", 0x81, 0x80 | size)
    elif size < 65_536:
        head = struct.pack("!BBH", 0x81, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
    return head + bytes(4) + text


def frame_size(payload: int) -> int:
    """Return the bytes of a whole frame as a server sends it."""
    return payload + (2 if payload < 126 else 4 if payload < 65_536 else 10)


def connect(host: str, port: int, path: str) -> socket.socket:
    """Open a WebSocket.

    Raises:
        ConnectionError: The server does not upgrade.
    """
    connection = socket.create_connection((host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not (byte := connection.recv(1)):
            raise ConnectionError("the server ended the handshake")
        head += byte
    if b" 101 " not in head.partition(b"\r\n")[0]:
        raise ConnectionError(head.decode(errors="replace"))
    return connection


def open_stream(host: str, port: int, path: str) -> socket.socket:
    """Open an event stream, and read its first event.

    Raises:
        ConnectionError: The server refuses.
    """
    connection = socket.create_connection((host, port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"}\n\n"):
        if not (byte := connection.recv(1)):
            raise ConnectionError(head.decode(errors="replace"))
        head += byte
    return connection


def receive_frame(connection: socket.socket) -> bytes:
    """Read one frame of a server, and return its payload."""
    with connection.makefile("rb", buffering=0) as file:

        def exactly(size: int) -> bytes:
            data = b""
            while len(data) < size:
                if not (more := file.read(size - len(data))):
                    raise ConnectionError("the server has gone")
                data += more
            return data

        size = exactly(2)[1]
        if size == 126:
            (size,) = struct.unpack("!H", exactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", exactly(8))
        return exactly(size)


def receive(connection: socket.socket, buffer: bytearray) -> int:
    """Process what was received, answer pings, and return the bytes of everything else."""
    size = connection.recv_into(buffer)
    if not size:
        raise ConnectionError("the server has gone")
    # What is published is ASCII, and two bytes are never split on loopback.
    pings = buffer.count(_PING, 0, size)
    if pings:
        connection.send(_PONG * pings)
    comments = buffer.count(_COMMENT, 0, size)
    return size - pings * len(_PING) - comments * len(_COMMENT)


def main(host: str, port: int, path: str, count: int, first: str = "") -> None:
    selector = selectors.EpollSelector()
    for _ in range(count):
        opened = open_stream if path.startswith("/events") else connect
        connection = opened(host, port, path)
        if first:
            connection.sendall(frame(first.encode()))
            receive_frame(connection)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
    print("ready", flush=True)
    buffer, got = bytearray(_CHUNK), 0
    for line in sys.stdin:
        expected = int(line)
        while got < expected:
            # The server's writes should not wake this process, since clients of a real server are
            # on other machines.
            time.sleep(_TICK)
            for key, _ in selector.select(0):
                assert isinstance(key.fileobj, socket.socket)
                got += receive(key.fileobj, buffer)
        got -= expected
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
