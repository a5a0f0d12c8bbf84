"""A bare sender of signed POSTs over kept connections: no limits, checks, retries or cursors.

`bare_sender.py PORT` reads bodies in hex, one per line, from its standard input, and POSTs each to
the working callbacks of the process at that port (`callback_server.py`). It shows what the system
calls, the signature and the parsing of the answer cost alone.
"""

from __future__ import annotations

import asyncio
import hmac
import sys
from typing import cast
from urllib.parse import urlsplit

import uvloop
from callback_server import callbacks, secret_of
from fanout import TOPIC
from httptools import HttpResponseParser

_HEAD = (
    "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/xml\r\n"
    f'Link: <{TOPIC}>; rel="self", <http://127.0.0.1:8080/websub>; rel="hub"\r\n'
)


class BareCallback(asyncio.Protocol):
    """One connection to one callback; if that lags behind, it is sent only the newest body."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._head = _HEAD.format(path=parts.path, host=parts.netloc).encode()
        self._secret = secret_of(url).encode()
        self._waiting: bytes | None = None
        self._is_busy = False
        self._parser = HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another base class

    def post(self, body: bytes) -> None:
        """Send a body, at once or after the request in progress."""
        if self._is_busy:
            self._waiting = body
            return
        self._is_busy = True
        signed = hmac.digest(self._secret, body, "sha256").hex().encode()
        length = str(len(body)).encode()
        self._transport.write(
            self._head
            + b"X-Hub-Signature: sha256="
            + signed
            + b"\r\nContent-Length: "
            + length
            + b"\r\n\r\n"
            + body
        )

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._is_busy = False
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self.post(waiting)


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    senders = []
    for url in callbacks(port):
        if url.endswith("/sound"):
            host = urlsplit(url).hostname
            _, sender = await loop.create_connection(lambda url=url: BareCallback(url), host, port)  # type: ignore[misc]
            senders.append(sender)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        body = bytes.fromhex(line)
        for sender in senders:
            sender.post(body)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
