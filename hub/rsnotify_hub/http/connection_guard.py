"""A protocol that keeps slow and hostile clients from occupying connections.

aiohttp's server has no timeout for the head of a request, for its body, or for a client that does
not read its answer. So a protocol between the transport and aiohttp's knows which step each
connection waits for:

    HEAD   since it was opened, or since the first byte after an answer: a complete head
    BODY   since the head was complete: the rest of the request
    DRAIN  since its write buffer was full: the client reads some of it
    IDLE   since an answer: another request

A connection that exceeds the timeout of its step is closed. A connection that waits for none of
these costs nothing here, nor does a WebSocket after the handshake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from aiohttp import StreamReader

from rsnotify.runtime.open_files import allow_files
from rsnotify_hub.access.clients import TrustedProxies, is_loopback
from rsnotify_hub.config.configuration import ServerConfig
from rsnotify_hub.http.connection_limit import ConnectionLimit
from rsnotify_hub.http.timeouts import AwaitedStep, TimeoutWatch
from rsnotify_hub.statistics import Statistics

#: A handler that reads a body with a timeout of its own answers before the connection is closed.
_GRACE_SECONDS = 1.0

#: File descriptors for other uses than connections of clients: callbacks, the store, the log.
_OTHER_FILES = 1024

#: How many waiting bytes a client has to read before its timeout starts again.
_PROGRESS = 16 * 1024


@dataclass(slots=True, eq=False, repr=False)
class ConnectionGuard(asyncio.Protocol):
    """Stands between the transport of one connection and the protocol that serves it."""

    serve: Callable[[], asyncio.Protocol]
    watch: TimeoutWatch
    _protocol: asyncio.Protocol | None = None
    _transport: asyncio.Transport | None = None
    _address: str | None = None
    _body: StreamReader | None = None
    _answered: bool = False
    _unsent: int = 0

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it if there are too many."""
        # A cast, since uvloop's transports are not subclasses.
        transport = self._transport = cast(asyncio.Transport, made)
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        if not self.watch.admits(address):
            self.watch.refused()
            transport.abort()
            return
        self.watch.limit.acquire(address)
        self._address = address
        self._protocol = self.serve()
        self.watch.begin(self, AwaitedStep.HEAD)
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on; the first after an answer begin a head."""
        if self._protocol is None:
            return
        if self._answered:
            self._answered = False
            self.watch.end(self, AwaitedStep.IDLE)
            self.watch.begin(self, AwaitedStep.HEAD)
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received() if self._protocol is not None else None

    def pause_writing(self) -> None:
        self._unsent = self._transport.get_write_buffer_size() if self._transport else 0
        self.watch.end(self, AwaitedStep.IDLE)
        self.watch.begin(self, AwaitedStep.DRAIN)
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self.watch.end(self, AwaitedStep.DRAIN)
        if self._answered:
            self.watch.begin(self, AwaitedStep.IDLE)
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.watch.end(self, *AwaitedStep)
        self._release()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
        if self._body is not None and not self._body.is_eof():
            self._body.feed_eof()  # aiohttp still waits for the rest after an early answer

    def _release(self) -> None:
        if self._address is not None:
            self.watch.limit.release(self._address)
            self._address = None

    def request_began(self, body: StreamReader) -> None:
        """Note that the head of a request is complete."""
        self._answered = False
        self.watch.end(self, AwaitedStep.HEAD, AwaitedStep.IDLE)
        self._body = body
        if not body.is_eof():
            self.watch.begin(self, AwaitedStep.BODY)

    def request_ended(self) -> None:
        self._answered = True
        self.watch.end(self, AwaitedStep.BODY)
        if self._address is not None:
            self.watch.begin(self, AwaitedStep.IDLE)

    def still_waits(self, step: AwaitedStep) -> bool:
        if step is AwaitedStep.BODY:
            return self._body is not None and not self._body.is_eof()
        return step is not AwaitedStep.DRAIN or not self._drains()

    def _drains(self) -> bool:
        unsent = self._transport.get_write_buffer_size() if self._transport else 0
        sent, self._unsent = self._unsent - unsent, unsent
        if sent >= _PROGRESS:
            self.watch.begin(self, AwaitedStep.DRAIN)
        return sent >= _PROGRESS

    def cut_off(self) -> None:
        self.watch.end(self, *AwaitedStep)
        self._release()
        self.watch.refused()
        if self._transport is not None:
            self._transport.abort()

    def hand_over(self) -> Callable[[], None]:
        """Stop watching this connection; return the function that counts it as closed."""
        self.watch.end(self, *AwaitedStep)
        address, self._address = self._address, None
        limit, released = self.watch.limit, address is None

        def release() -> None:
            nonlocal released
            if not released and address is not None:
                released = True
                limit.release(address)

        return release


def make_timeout_watch(
    server: ServerConfig, *, request_seconds: float, statistics: Statistics
) -> TimeoutWatch:
    proxies = TrustedProxies(server.trusted_proxies, server.forwarded_header)
    files = allow_files(server.max_connections + _OTHER_FILES)
    limit = ConnectionLimit(
        min(server.max_connections, max(1, files - _OTHER_FILES)),
        server.connections_per_client,
        exempt=lambda address: is_loopback(address) or proxies.trusts(address),
    )
    seconds = {
        AwaitedStep.HEAD: server.header_seconds,
        AwaitedStep.BODY: request_seconds + _GRACE_SECONDS,
        AwaitedStep.DRAIN: request_seconds,
        AwaitedStep.IDLE: server.idle_seconds,
    }
    return TimeoutWatch(seconds, limit, lambda: statistics.refused.update(("connection",)))


def find_guard(transport: asyncio.BaseTransport | None) -> ConnectionGuard | None:
    if transport is None or transport.is_closing():
        return None
    protocol = transport.get_protocol()
    return protocol if isinstance(protocol, ConnectionGuard) else None


def take_over(transport: asyncio.BaseTransport) -> Callable[[], None]:
    """Release a connection to another protocol; call this just before `set_protocol`.

    Returns the function that the other protocol calls once the connection is lost.
    """
    guard = find_guard(transport)
    return guard.hand_over() if guard is not None else lambda: None
