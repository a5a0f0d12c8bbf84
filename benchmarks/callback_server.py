"""Many WebSub callbacks in a separate process, with the least possible cost for the hub.

`callback_server.py` listens on a free port of every loopback address, and prints the port. Each
callback has its own address. Then for each line on its standard input, a number, it prints `done`
once working callbacks have answered so many requests (or any callbacks, for GETs).
"""

from __future__ import annotations

import re
import selectors
import socket
import struct
import sys
import time
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

#: How many callbacks there are, and how many of them work.
COUNT = 500
SOUND = COUNT - COUNT // 10

_TICK = 0.005
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_GOOD = b"HTTP/1.1 204 No Content\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nServer: bench\r\n\r\n"
_CONFIRMING = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"
_BROKEN = {
    "error": b"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nno\n",
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
    "reset": None,
    "hang": b"",
}


def callbacks(port: int) -> list[str]:
    """Return the URLs of all; one in ten is broken in one of four ways."""
    broken = list(_BROKEN)
    return [
        f"http://127.0.{1 + number // 250}.{1 + number % 250}:{port}/"
        + (broken[number // 10 % len(broken)] if number % 10 == 0 else "sound")
        for number in range(COUNT)
    ]


def secret_of(callback: str) -> str:
    """Return the secret for deliveries to a callback."""
    return "the secret of " + callback


class CallbackClient:
    """One connection of a client, which sends one request after another."""

    @property
    def closed(self) -> bool:
        return self._socket.fileno() == -1

    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        self._got = b""

    def receive(self) -> int:
        """Process received data, and return how many relevant requests were answered."""
        try:
            data = self._socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self._socket.close()
            return 0
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or len(body) < (int(length[1]) if length else 0):
            return 0
        self._got = b""
        return self._answer(*head.split(b" ", 2)[:2])

    def _answer(self, method: bytes, target: bytes) -> int:
        parts = urlsplit(target.decode())
        kind = parts.path.strip("/")
        if method == b"GET":
            challenge = parse_qs(parts.query)["hub.challenge"][0].encode()
            self._send(_CONFIRMING % (len(challenge), challenge))
            return 1
        answer = _BROKEN.get(kind, _GOOD)
        if answer is None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._socket.close()
        elif answer:
            self._send(answer)
        return answer is _GOOD

    def _send(self, answer: bytes) -> None:
        with suppress(ConnectionError):
            self._socket.send(answer)


def accept(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    """Accept all pending connections."""
    while True:
        try:
            own, _ = listener.accept()
        except BlockingIOError:
            return
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own.setblocking(False)
        selector.register(own, selectors.EVENT_READ, CallbackClient(own))


def main() -> None:
    selector = selectors.EpollSelector()
    listener = socket.create_server(("0.0.0.0", 0), backlog=COUNT)
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    print(listener.getsockname()[1], flush=True)
    selector.register(sys.stdin, selectors.EVENT_READ)
    answered, expected = 0, None
    while True:
        time.sleep(_TICK)  # so that requests do not wake this process, as in `websocket_clients`
        for key, _ in selector.select(0):
            if key.fileobj is sys.stdin:
                if not (line := sys.stdin.readline()):
                    return
                expected = int(line)
            elif key.data is None:
                accept(listener, selector)
            else:
                answered += key.data.receive()
                if key.data.closed:
                    selector.unregister(key.fileobj)
        if expected is not None and answered >= expected:
            answered, expected = answered - expected, None
            print("done", flush=True)


if __name__ == "__main__":
    main()
