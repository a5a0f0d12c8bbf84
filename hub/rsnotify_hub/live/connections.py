"""The open WebSockets and event streams: admission of clients, and shared connection handling.

aiohttp reads the request. `LiveConnections.accept` then takes over the transport from aiohttp, and
a `LiveConnection` answers. A connection that only receives has no task and no timer: one timer
checks all connections in turn (`KeepAlive`). While a client reads too slowly, the data for it waits
in a `SendQueue`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from itertools import cycle
from random import getrandbits
from sys import intern
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify_hub.access.client_addresses import is_loopback
from rsnotify_hub.access.limits import RateLimits
from rsnotify_hub.config.configuration import WebSocketConfig
from rsnotify_hub.connection_guard import ConnectionLimit, take_over
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import DeliveryTransport, Statistics

_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class Origins:
    """The allowed origins of web pages: the origin of the hub's public URL, and others.

    A browser allows a page to open a WebSocket to any host, including this machine, and sends the
    page's origin in `Origin` (RFC 6455 §10.2). It also allows any page to open an event stream, but
    hides the content from a page of another origin unless the response names that origin. The hub
    therefore refuses both to pages of unknown origins. Other clients send no `Origin`, or may forge
    it.
    """

    def __init__(self, public_url: str, others: Iterable[str]) -> None:
        self._allowed = {_origin(each) for each in (public_url, *others)} - {None}

    def allows(self, origin: str | None, host: str) -> bool:
        """Return whether a page may connect, given the `Origin` and host of its request.

        A page from the same host may also connect if the host is an IP address or `localhost`. An
        attacker may have pointed any other name to this machine (DNS rebinding).
        """
        if origin is None:
            return True
        found = _origin(origin)
        if found is None:
            return False
        return found in self._allowed or (_is_fixed(found[1]) and found == _origin(host, found[0]))


def _origin(text: str, scheme: str = "") -> tuple[str, str, int] | None:
    """Return the scheme, host and port of an origin; None if it is not a valid HTTP origin."""
    try:
        parts = urlsplit(f"{scheme}://{text}" if scheme else text.strip())
        port = parts.port
    except ValueError:
        return None
    if parts.hostname is None or parts.scheme not in _PORTS:
        return None
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


def _is_fixed(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


#: Seconds that a client has to read everything and to answer the close.
CLOSE_SECONDS = 3.0
#: A client is slow if data has waited for it for at least this many seconds.
SLOW_SECONDS = 5.0
#: Maximum number of characters to keep of a `User-Agent`.
_MAX_AGENT_LENGTH = 120
#: Number of batches in which the connections are checked, so that pings are not sent all at once.
_KEEP_ALIVE_BATCHES = 30


class ConnectionRole(ABC):
    """What a connection does for its client. A WebSocket's first frame determines its role."""

    __slots__ = ()

    def receives(self) -> bool:
        """Return whether the client receives at least one topic."""
        return False

    def publishes(self) -> bool:
        """Return whether the client publishes on at least one topic."""
        return False

    def replays(self) -> bool:
        """Return whether a log is still being replayed to the client."""
        return False

    def topic_roles(self) -> Collection[TopicRole]:
        """Return the connection's role for each topic."""
        return ()

    def paused(self) -> None:  # noqa: B027  (most roles do nothing)
        """Handle a client that reads more slowly than the hub sends."""

    def resumed(self) -> None:  # noqa: B027
        """Continue after everything that was sent has left the transport."""

    @abstractmethod
    def lost(self) -> None:
        """Handle the end of the connection."""


class TopicRole(Protocol):
    """What a connection does for one topic."""

    topic: str

    def publishes(self) -> bool:
        """Return whether the client publishes on the topic instead of receiving it."""

    @property
    def passed(self) -> int:
        """The number of fragments sent to a subscriber, or received from a Source."""

    def replays(self) -> bool:
        """Return whether the log is still being replayed to the client."""

    def remaining(self, end: int) -> int:
        """Return the number of log positions up to `end` that are still to be replayed."""


class ConnectionClient(Struct, frozen=True, gc=False):
    """The client of a connection. `agent` is the beginning of its `User-Agent`."""

    number: int
    address: str
    agent: str
    since: Instant

    @property
    def id(self) -> str:
        return f"{self.number:032x}"


@dataclass(slots=True, eq=False, repr=False)
class LiveConnection(asyncio.Protocol):
    """A connection after the response to its request. The caller calls `set_protocol`.

    Attributes:
        is_paused: Whether sent data is waiting in the transport.
        has_ended: Whether either side has begun to close the connection.
        paused_at: The event-loop time at which data began to wait; None if no data is waiting.
        client: The client; set by `LiveConnections.accept`.
        replay_lock: On a connection for many topics, held during each replay; otherwise None.
    """

    kind: ClassVar[DeliveryTransport]

    transport: asyncio.Transport
    on_lost: Callable[[Any], None]
    role: ConnectionRole | None = None
    is_paused: bool = False
    has_ended: bool = False
    paused_at: float | None = None
    client: ConnectionClient = field(init=False)
    replay_lock: asyncio.Lock | None = None
    queue: SendQueue | None = None
    _last_unsent: int = -1
    _drained: asyncio.Future[None] | None = None
    _end_timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        # asyncio then calls `pause_writing` as soon as the kernel does not accept all data.
        self.transport.set_write_buffer_limits(high=0)

    # Callbacks from the transport.

    def pause_writing(self) -> None:
        self.is_paused = True
        if self.paused_at is None:
            self.paused_at = asyncio.get_running_loop().time()
        if self.role is not None:
            self.role.paused()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._last_unsent = -1
        self._send_late()
        self.send_queue()
        if self.is_paused:
            return
        self.paused_at = None
        self._wake()
        if self.role is not None:
            self.role.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(0)
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._wake()
        self.on_lost(self)

    # Output.

    def send(self, data: bytes) -> None:
        """Send complete frames or events. Do nothing if the connection has ended."""
        if not self.has_ended and not self.transport.is_closing():
            self.transport.write(data)

    def _send_late(self) -> None:
        """Send data that was waiting for the transport."""

    def send_queue(self, *, everything: bool = False) -> None:
        """Send as much of the queue as the transport accepts, or all of it."""
        while self.queue and (everything or not self.is_paused):
            self.send(self.queue.take())
        if not self.queue:
            self.queue = None

    async def drain(self) -> None:
        """Wait until everything has left the transport, or the connection has ended."""
        while self.is_paused and not self.has_ended:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def _wake(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # Closing.

    @abstractmethod
    def cut_off(self, *, seconds: float) -> None:
        """Close within `seconds`, because the client is too slow."""

    @abstractmethod
    def go_away(self, reason: str = "the hub stops") -> None:
        """Close. The client should reconnect later or to another node."""

    def _end(self, seconds: float) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self._end_timer = asyncio.get_running_loop().call_later(seconds, self.transport.abort)
        self._wake()
        self._ended()

    def _ended(self) -> None:
        role, self.role = self.role, None
        if role is not None:
            role.lost()

    # State.

    @property
    def unsent(self) -> int:
        """The number of bytes waiting in the transport and the queue."""
        waiting = self.transport.get_write_buffer_size()
        return waiting + self.queue.size if self.queue else waiting

    def stalled(self, now: float) -> float:
        """Return how long data has been waiting at the event-loop time `now`, in seconds."""
        return 0.0 if self.paused_at is None else max(0.0, now - self.paused_at)

    def is_slow(self, now: float) -> bool:
        return self.paused_at is not None and self.stalled(now) >= SLOW_SECONDS

    # Liveness.

    @abstractmethod
    def check(self) -> None:
        """Ping the client. Abort if it has neither read nor answered since the last check."""

    def _has_stalled(self) -> bool:
        """Return whether data is waiting and the client has read none since the last check."""
        unsent = self.transport.get_write_buffer_size() if self.is_paused else -1
        before, self._last_unsent = self._last_unsent, unsent
        return self.is_paused and unsent == before


@dataclass(slots=True, eq=False, repr=False)
class SendQueue:
    """The frames that are waiting for a slow client."""

    max_bytes: int
    max_frames: int
    size: int = 0
    frames: int = 0
    _waiting: deque[tuple[bytes, int]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, data: bytes, count: int, *, ahead: int) -> bool:
        """Append frames, or return False if that would exceed a limit.

        `ahead` is the number of bytes in the transport, which count towards the limit.
        """
        if ahead + self.size + len(data) > self.max_bytes:
            return False
        if self.frames + count > self.max_frames:
            return False
        self._waiting.append((data, count))
        self.size += len(data)
        self.frames += count
        return True

    def take(self) -> bytes:
        data, count = self._waiting.popleft()
        self.size -= len(data)
        self.frames -= count
        return data


class ConnectionCounts(Struct, frozen=True):
    """The numbers of open connections, as described in `StatusInfo` of the admin API.

    Only `live_queue` includes the dashboard's connections.
    """

    websockets: int = 0
    event_streams: int = 0
    websocket_subscribers: int = 0
    publishers: int = 0
    slow: int = 0
    slow_seconds: float = 0.0
    live_queue: int = 0


#: Creates a connection from its transport and a function to call when the connection is lost.
Connect = Callable[[asyncio.Transport, Callable[[LiveConnection], None]], LiveConnection]


@dataclass(eq=False, repr=False)
class LiveConnections:
    """Accepts connections within the limits, and keeps track of them.

    Pages of the hub's public URL may connect.
    """

    limits: RateLimits
    statistics: Statistics
    configuration: WebSocketConfig
    public_url: str
    clock: Callable[[], Instant]

    def __post_init__(self) -> None:
        configuration = self.configuration
        self._origins = Origins(self.public_url, configuration.websocket_origins)
        self._limit = ConnectionLimit(
            configuration.max_websockets, configuration.websockets_per_client, is_loopback
        )
        self._keep_alive = KeepAlive(configuration.websocket_ping_seconds)

    def all(self) -> list[LiveConnection]:
        """Return the open connections, except the dashboard's."""
        dashboard = DeliveryTransport.DASHBOARD
        return [
            each
            for each in self._keep_alive.connections()
            if each.kind is not dashboard and not each.has_ended
        ]

    def counts(self) -> ConnectionCounts:
        now, slow = asyncio.get_running_loop().time(), []
        open_of = Counter[DeliveryTransport]()
        subscribers = publishers = 0
        for each in self.all():
            open_of[each.kind] += 1
            if each.role is not None and each.kind is DeliveryTransport.WEBSOCKET:
                subscribers += each.role.receives()
                publishers += each.role.publishes()
            if each.is_slow(now):
                slow.append(each.stalled(now))
        return ConnectionCounts(
            websockets=open_of[DeliveryTransport.WEBSOCKET],
            event_streams=open_of[DeliveryTransport.SSE],
            websocket_subscribers=subscribers,
            publishers=publishers,
            slow=len(slow),
            slow_seconds=max(slow, default=0.0),
            live_queue=sum(each.unsent for each in self._keep_alive.connections()),
        )

    def end(self, id: str, reason: str) -> bool:
        """Close a connection. Return False if it does not exist."""
        found = next((each for each in self.all() if each.client.id == id), None)
        if found is not None:
            found.go_away(reason)
        return found is not None

    def check_admission(self, request: web.Request) -> None:
        """Check whether the client of a request may connect.

        Raises:
            HTTPForbidden: The request comes from a page whose origin may not connect.
            Refusal: The client connects too often, or there are too many connections, of this
                client or in total.
        """
        if not self._origins.allows(request.headers.get("Origin"), request.host):
            # A Refusal would ask for a token, but no token would help.
            self.statistics.refused[Code.FORBIDDEN] += 1
            raise web.HTTPForbidden(text="pages of this origin may not connect here\n")
        self._check_limits(request.remote)

    def _check_limits(self, address: str | None) -> None:
        self.limits.connections.check(address)
        if self._limit.is_full or self._limit.is_client_full(address or ""):
            raise Refusal(
                Code.TOO_MANY, "too many WebSockets and event streams are open; try again later"
            )

    def add_topic(self, address: str | None) -> Callable[[], None]:
        """Count another topic of a connection as a connection, or refuse it (`Refusal`).

        Returns:
            A function that stops counting the topic.
        """
        self._check_limits(address)
        self._limit.acquire(address or "")
        return partial(self._limit.release, address or "")

    def accept(self, request: web.Request, answer: bytes, connect: Connect) -> HandedOver:
        """Answer a checked request, and hand its transport over to a connection."""
        address = request.remote or ""
        agent = intern(request.headers.get("User-Agent", "")[:_MAX_AGENT_LENGTH])
        client = ConnectionClient(getrandbits(128), address, agent, self.clock())

        def take(transport: asyncio.Transport, release: Callable[[], None]) -> LiveConnection:
            def lost(connection: LiveConnection) -> None:
                release()
                self._limit.release(address)
                self._keep_alive.remove(connection)

            self._limit.acquire(address)
            connection = connect(transport, lost)
            connection.client = client
            self._keep_alive.add(connection)
            return connection

        return hand_over(request, answer, take)

    async def close(self) -> None:
        """Close all connections, and abort those whose clients do not answer in time."""
        for connection in self._keep_alive.connections():
            connection.go_away()
        await self._keep_alive.wait_until_empty()


class HandedOver(web.StreamResponse):
    """A response that sends nothing, because aiohttp no longer owns the connection."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        pass


class _TailParser:
    """Replaces aiohttp's parser, and collects the bytes that follow the request."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        pass


def hand_over(
    request: web.Request,
    answer: bytes,
    connect: Callable[[asyncio.Transport, Callable[[], None]], asyncio.Protocol],
) -> HandedOver:
    """Answer a request, and hand its transport over to a connection.

    `connect` creates the connection from the transport and a function to call when it is lost.
    """
    transport, protocol = request.transport, request.protocol
    if transport is None or transport.is_closing():
        return HandedOver()  # the client has disconnected
    tail = _TailParser()
    protocol.set_parser(tail)  # type: ignore[arg-type]
    protocol.keep_alive(False)
    # Makes aiohttp release the connection without closing it.
    protocol.transport = None
    protocol.connection_lost(None)
    connection = connect(transport, take_over(transport))
    transport.set_protocol(connection)
    transport.write(answer)
    if tail.data:
        connection.data_received(tail.data)
    return HandedOver()


class KeepAlive:
    """The open connections, each of which is checked once per `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._interval = seconds / _KEEP_ALIVE_BATCHES
        batches: list[dict[LiveConnection, None]] = [{} for _ in range(_KEEP_ALIVE_BATCHES)]
        self._batch_of: dict[LiveConnection, dict[LiveConnection, None]] = {}
        self._next_to_join, self._next_to_check = cycle(batches), cycle(batches)
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def connections(self) -> list[LiveConnection]:
        return list(self._batch_of)

    def add(self, connection: LiveConnection) -> None:
        batch = next(self._next_to_join)
        batch[connection] = None
        self._batch_of[connection] = batch
        self._empty.clear()
        if self._timer is None:
            self._schedule()

    def remove(self, connection: LiveConnection) -> None:
        batch = self._batch_of.pop(connection, None)
        if batch is not None:
            del batch[connection]
        if not self._batch_of:
            self._empty.set()

    async def wait_until_empty(self) -> None:
        await self._empty.wait()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._check_batch)

    def _check_batch(self) -> None:
        self._timer = None
        for connection in list(next(self._next_to_check)):
            if not connection.has_ended:
                connection.check()
        if self._batch_of:
            self._schedule()
