"""What keeps careless and hostile clients from holding connections for nothing.

aiohttp's server waits without end for a request's head, for its body, and for a client to take
its answer. So a protocol of ours stands between the transport and aiohttp's, and knows what each
connection waits for:

    HEAD  since it was opened, or since the first byte after an answer: a whole head
    BODY  since its head was complete: the rest of the request
    TAKE  since its buffer was full: that the client takes some of it
    IDLE  since an answer: another request

Whatever takes longer than it may is cut off. A connection that waits for nothing of these costs
nothing here; a WebSocket is none of them once it is taken over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import StreamReader

from rsnotify.runtime.open_files import allow_files
from rsnotify_hub.access.clients import TrustedProxies, is_loopback
from rsnotify_hub.config.configuration import HubConfiguration
from rsnotify_hub.http.connection_limit import ConnectionLimit
from rsnotify_hub.http.timeouts import AwaitedStep, TimeoutWatch
from rsnotify_hub.statistics import Statistics

#: A handler that reads a body with a limit of its own answers before the connection is cut off.
_GRACE_SECONDS = 1.0

#: Files that are no clients' connections: callbacks, the store, the log.
_OTHER_FILES = 1024

#: How much a client has to take of what waits for it, in bytes, to get as much time again.
_PROGRESS = 16 * 1024


class ConnectionGuard(asyncio.Protocol):
    """Stands between one connection's transport and the protocol that serves it.

    Args:
        serve: Makes that protocol.
        watch: Takes note of who waits.
    """

    __slots__ = (
        "_address", "_answered", "_body", "_protocol", "_serve", "_transport", "_unsent", "_watch",
    )  # fmt: skip

    def __init__(self, serve: Callable[[], asyncio.Protocol], watch: TimeoutWatch) -> None:
        self._serve = serve
        self._watch = watch
        self._protocol: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._address: str | None = None
        self._body: StreamReader | None = None
        self._answered = False
        self._unsent = 0

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        """Take a seat, or go."""
        # A cast, since uvloop's transports are none by class.
        transport = self._transport = cast(asyncio.Transport, made)
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        if not self._watch.has_room(address):
            self._watch.refused()
            transport.abort()
            return
        self._watch.seats.take(address)
        self._address = address
        self._protocol = self._serve()
        self._watch.begin(self, AwaitedStep.HEAD)
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Hand on; what ends an idle time begins a head."""
        if self._protocol is None:
            return
        if self._answered:
            self._answered = False
            self._watch.end(self, AwaitedStep.IDLE)
            self._watch.begin(self, AwaitedStep.HEAD)
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """Hand on."""
        return self._protocol.eof_received() if self._protocol is not None else None

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        self._unsent = self._transport.get_write_buffer_size() if self._transport else 0
        self._watch.end(self, AwaitedStep.IDLE)
        self._watch.begin(self, AwaitedStep.TAKE)
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self._watch.end(self, AwaitedStep.TAKE)
        if self._answered:
            self._watch.begin(self, AwaitedStep.IDLE)
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the seat back."""
        self._watch.end(self, *AwaitedStep)
        self._leave()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
        if self._body is not None and not self._body.is_eof():
            self._body.feed_eof()  # aiohttp still waits for the rest, having answered by the head

    def _leave(self) -> None:
        if self._address is not None:
            self._watch.seats.leave(self._address)
            self._address = None

    def request_began(self, body: StreamReader) -> None:
        """Take note of a whole head."""
        self._answered = False
        self._watch.end(self, AwaitedStep.HEAD, AwaitedStep.IDLE)
        self._body = body
        if not body.is_eof():
            self._watch.begin(self, AwaitedStep.BODY)

    def request_ended(self) -> None:
        """Take note of an answer."""
        self._answered = True
        self._watch.end(self, AwaitedStep.BODY)
        if self._address is not None:
            self._watch.begin(self, AwaitedStep.IDLE)

    def still_waits(self, wait: AwaitedStep) -> bool:
        """Tell whether what was waited for has not come after all."""
        if wait is AwaitedStep.BODY:
            return self._body is not None and not self._body.is_eof()
        return wait is not AwaitedStep.TAKE or not self._takes_some()

    def _takes_some(self) -> bool:
        unsent = self._transport.get_write_buffer_size() if self._transport else 0
        taken, self._unsent = self._unsent - unsent, unsent
        if taken >= _PROGRESS:
            self._watch.begin(self, AwaitedStep.TAKE)
        return taken >= _PROGRESS

    def cut_off(self) -> None:
        """End the connection at once, and free its seat for others."""
        self._watch.end(self, *AwaitedStep)
        self._leave()
        self._watch.refused()
        if self._transport is not None:
            self._transport.abort()

    def hand_over(self) -> Callable[[], None]:
        """Watch this connection no more; return what gives its seat back in the end."""
        self._watch.end(self, *AwaitedStep)
        address, self._address = self._address, None
        seats, left = self._watch.seats, address is None

        def leave() -> None:
            nonlocal left
            if not left and address is not None:
                left = True
                seats.leave(address)

        return leave


def make_timeout_watch(configuration: HubConfiguration, statistics: Statistics) -> TimeoutWatch:
    """Make the watch of one server.

    Args:
        configuration: How long, and how many.
        statistics: Where it is counted who was turned away.
    """
    proxies = TrustedProxies(configuration.trusted_proxies, configuration.forwarded_header)
    files = allow_files(configuration.max_connections + _OTHER_FILES)
    seats = ConnectionLimit(
        min(configuration.max_connections, max(1, files - _OTHER_FILES)),
        configuration.connections_per_client,
        exempt=lambda address: is_loopback(address) or proxies.trusts(address),
    )
    seconds = {
        AwaitedStep.HEAD: configuration.header_seconds,
        AwaitedStep.BODY: configuration.request_seconds + _GRACE_SECONDS,
        AwaitedStep.TAKE: configuration.request_seconds,
        AwaitedStep.IDLE: configuration.idle_seconds,
    }
    return TimeoutWatch(seconds, seats, lambda: statistics.refused.update(("connection",)))


def find_guard(transport: asyncio.BaseTransport | None) -> ConnectionGuard | None:
    """Return the guard of a connection, if it has one."""
    if transport is None or transport.is_closing():
        return None
    protocol = transport.get_protocol()
    return protocol if isinstance(protocol, ConnectionGuard) else None


def take_over(transport: asyncio.BaseTransport) -> Callable[[], None]:
    """Let another protocol have a connection; call this just before `set_protocol`.

    Returns:
        What the other protocol calls once the connection is lost.
    """
    guard = find_guard(transport)
    return guard.hand_over() if guard is not None else lambda: None
