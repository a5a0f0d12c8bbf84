"""Limits the number of connections, and closes those of slow or hostile clients.

aiohttp's server has no timeout for the head of a request, for its body, or for a client that does
not read the response. Therefore `ConnectionGuard` sits between the transport and aiohttp's
protocol, and tracks what each connection is waiting for:

    step   begins when                               the hub waits for
    HEAD   the connection opens, or the first byte   the complete head of a request
           after a response arrives
    BODY   the head is complete                      the complete body
    DRAIN  the write buffer is full                  the client to read some of the buffer
    IDLE   the response was sent                     the next request

`TimeoutWatch` closes connections that exceed the timeout of their step. Other connections cost
nothing here, such as WebSockets after the handshake. `ConnectionLimit` limits the number of open
connections, in total and per client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import chain, takewhile
from typing import cast

from aiohttp import StreamReader

from rsnotify.runtime.processes import allow_files
from rsnotify_hub.access.client_addresses import TrustedProxies, client_network, is_loopback
from rsnotify_hub.config.configuration import ServerConfig
from rsnotify_hub.statistics import Statistics

#: Additional time for the body, so that a handler whose own timeout expires can still respond.
_BODY_GRACE_SECONDS = 1.0

#: Number of file descriptors reserved for other uses, such as callbacks and the store.
_RESERVED_FILES = 1024

#: Number of buffered bytes that a client must read to restart its timeout.
_MIN_DRAINED_BYTES = 16 * 1024

#: Maximum interval between checks of the timeouts: in seconds, and as a fraction of the shortest
#: timeout.
_MAX_CHECK_SECONDS = 1.0
_MAX_CHECK_FRACTION = 0.25


class AwaitedStep(Enum):
    """What a connection is waiting for. See the docstring of this module."""

    HEAD = auto()
    BODY = auto()
    DRAIN = auto()
    IDLE = auto()


def make_timeout_watch(
    server: ServerConfig, *, request_seconds: float, statistics: Statistics
) -> TimeoutWatch:
    proxies = TrustedProxies(server.trusted_proxies, server.forwarded_header)
    files = allow_files(server.max_connections + _RESERVED_FILES)
    limit = ConnectionLimit(
        min(server.max_connections, max(1, files - _RESERVED_FILES)),
        server.connections_per_client,
        exempt=lambda address: is_loopback(address) or proxies.trusts(address),
    )
    seconds = {
        AwaitedStep.HEAD: server.header_seconds,
        AwaitedStep.BODY: request_seconds + _BODY_GRACE_SECONDS,
        AwaitedStep.DRAIN: request_seconds,
        AwaitedStep.IDLE: server.idle_seconds,
    }
    return TimeoutWatch(seconds, limit, statistics)


def find_guard(transport: asyncio.BaseTransport | None) -> ConnectionGuard | None:
    if transport is None or transport.is_closing():
        return None
    protocol = transport.get_protocol()
    return protocol if isinstance(protocol, ConnectionGuard) else None


def take_over(transport: asyncio.BaseTransport) -> Callable[[], None]:
    """Stop guarding a connection. Call this just before giving it another protocol.

    Returns:
        A function that the new protocol must call when the connection is lost.
    """
    guard = find_guard(transport)
    return guard.hand_over() if guard is not None else lambda: None


@dataclass(slots=True, eq=False, repr=False)
class ConnectionGuard(asyncio.Protocol):
    """Sits between a connection's transport and the protocol that serves it.

    `make_protocol` creates that protocol.
    """

    make_protocol: Callable[[], asyncio.Protocol]
    watch: TimeoutWatch
    _protocol: asyncio.Protocol | None = None
    _transport: asyncio.Transport | None = None
    _address: str | None = None
    _body: StreamReader | None = None
    _is_answered: bool = False
    _unsent: int = 0

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it if too many are open."""
        # A cast, because uvloop's transports are not subclasses.
        transport = self._transport = cast(asyncio.Transport, made)
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        if not self.watch.admits(address):
            self.watch.count_refusal()
            transport.abort()
            return
        self.watch.limit.acquire(address)
        self._address = address
        self._protocol = self.make_protocol()
        self.watch.begin(self, AwaitedStep.HEAD)
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Forward the data. The first byte after a response begins the next request."""
        if self._protocol is None:
            return
        if self._is_answered:
            self._is_answered = False
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
        if self._is_answered:
            self.watch.begin(self, AwaitedStep.IDLE)
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.watch.end(self, *AwaitedStep)
        self._release()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
        if self._body is not None and not self._body.is_eof():
            self._body.feed_eof()  # after an early response, aiohttp waits for the rest

    def _release(self) -> None:
        if self._address is not None:
            self.watch.limit.release(self._address)
            self._address = None

    def request_began(self, body: StreamReader) -> None:
        """Record that the head of a request is complete."""
        self._is_answered = False
        self.watch.end(self, AwaitedStep.HEAD, AwaitedStep.IDLE)
        self._body = body
        if not body.is_eof():
            self.watch.begin(self, AwaitedStep.BODY)

    def request_ended(self) -> None:
        self._is_answered = True
        self.watch.end(self, AwaitedStep.BODY)
        if self._address is not None:
            self.watch.begin(self, AwaitedStep.IDLE)

    def still_waits(self, step: AwaitedStep) -> bool:
        """Return whether the connection still waits for a step whose timeout has expired."""
        if step is AwaitedStep.BODY:
            return self._body is not None and not self._body.is_eof()
        return step is not AwaitedStep.DRAIN or not self._has_drained()

    def _has_drained(self) -> bool:
        unsent = self._transport.get_write_buffer_size() if self._transport else 0
        sent, self._unsent = self._unsent - unsent, unsent
        if sent >= _MIN_DRAINED_BYTES:
            self.watch.begin(self, AwaitedStep.DRAIN)
        return sent >= _MIN_DRAINED_BYTES

    def cut_off(self) -> None:
        """Close the connection immediately, and stop counting it."""
        self.watch.end(self, *AwaitedStep)
        self._release()
        self.watch.count_refusal()
        if self._transport is not None:
            self._transport.abort()

    def hand_over(self) -> Callable[[], None]:
        """Stop watching the connection, and return a function that counts it as closed."""
        self.watch.end(self, *AwaitedStep)
        address, self._address = self._address, None
        return (lambda: None) if address is None else partial(self.watch.limit.release, address)


@dataclass(eq=False, repr=False)
class TimeoutWatch:
    """Tracks which connections wait for which step, and closes those that wait too long."""

    seconds: dict[AwaitedStep, float]
    limit: ConnectionLimit
    statistics: Statistics

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # All connections in a step have the same timeout, so they are in the order of their
        # deadlines.
        self._deadlines: dict[AwaitedStep, dict[ConnectionGuard, float]] = {
            step: {} for step in AwaitedStep
        }
        self._interval = min(
            _MAX_CHECK_SECONDS, *(each * _MAX_CHECK_FRACTION for each in self.seconds.values())
        )
        self._schedule_check()

    def close(self) -> None:
        self._timer.cancel()

    def begin(self, connection: ConnectionGuard, step: AwaitedStep) -> None:
        self._deadlines[step].pop(connection, None)
        self._deadlines[step][connection] = self._loop.time() + self.seconds[step]

    def end(self, connection: ConnectionGuard, *steps: AwaitedStep) -> None:
        for step in steps:
            self._deadlines[step].pop(connection, None)

    def count_refusal(self) -> None:
        self.statistics.refused["connection"] += 1

    def admits(self, address: str) -> bool:
        """Return whether an address may connect, after making room if necessary."""
        if self.limit.is_client_full(address):
            return False
        if self.limit.is_full:
            self._cut_off_longest()
        return not self.limit.is_full

    def _cut_off_longest(self) -> None:
        """Close the connection that has waited longest for a head, or else an idle one."""
        waiting = chain(self._deadlines[AwaitedStep.HEAD], self._deadlines[AwaitedStep.IDLE])
        if (connection := next(waiting, None)) is not None:
            connection.cut_off()

    def _schedule_check(self) -> None:
        due = self._loop.time() + self._interval
        self._timer = self._loop.call_at(due, self._check, due)

    def _check(self, due: float) -> None:
        now = self._loop.time()
        # If this check is late, the hub was busy and may not have read what clients have sent.
        if now - due <= self._interval / 2:
            self._cut_off_overdue(now)
        self._schedule_check()

    def _cut_off_overdue(self, now: float) -> None:
        for step, deadlines in self._deadlines.items():
            for connection, _ in list(takewhile(lambda each: each[1] <= now, deadlines.items())):
                del deadlines[connection]
                if connection.still_waits(step):
                    connection.cut_off()


class ConnectionLimit:
    """Counts open connections. Exempt addresses, such as proxies, have no limit per client."""

    def __init__(self, total: int, per_client: int, exempt: Callable[[str], bool]) -> None:
        self._total = total
        self._per_client = per_client
        self._exempt = exempt
        self._open: Counter[str] = Counter()
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self._total

    def is_client_full(self, address: str) -> bool:
        return self._open[client_network(address)] >= self._per_client and not self._exempt(address)

    def acquire(self, address: str) -> None:
        """Count a new connection. The caller has already checked the limits."""
        self._open[client_network(address)] += 1
        self.count += 1

    def release(self, address: str) -> None:
        client = client_network(address)
        self.count -= 1
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]
