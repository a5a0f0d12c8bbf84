"""A small HTTP/1.1 client for many short requests: persistent connections, bounded responses.

Theory of operation. An `HttpConnection` carries one request after another. A pool keeps a limited
number of idle connections for a limited time. The reply to a request is complete with the head of a
2xx response, unless the caller needs its content, or with the first bytes of the body of any other
response. The rest of the body is read and discarded, so that the connection can be reused. One
limit covers all bytes of a response: heads, preceding 1xx responses, chunk extensions, trailers and
bodies.

A parser uses more memory than the rest of a connection. A connection therefore borrows one only
while a response arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from msgspec import Struct

from rsnotify.errors import RsnotifyError
from rsnotify.runtime.tasks import settle

#: Maximum size of a response, in bytes. Beyond it, the connection is aborted.
MAX_RESPONSE_BYTES = 64 * 1024
#: Maximum size of a response while its head is incomplete, in bytes.
MAX_HEAD_BYTES = 16 * 1024
#: Maximum number of bytes to keep from the body of a failed response.
MAX_EXCERPT_BYTES = 4096
#: Maximum number of 1xx responses before the final response.
MAX_INTERIM_RESPONSES = 20


class HttpReply(Struct, frozen=True, gc=False):
    """A final response. The excerpt of the body is empty, except for a failed response."""

    status: int
    retry_after: str = ""
    excerpt: bytes = b""


class ContentReply(HttpReply, frozen=True, gc=False):
    """A complete response, with its header fields in the order received."""

    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


class NoReply(RsnotifyError):
    """The host was reached, but its response is missing, too long or not valid HTTP."""


class Unreachable(RsnotifyError):
    """No connection could be opened. `__cause__` has the reason."""


class StaleConnection(NoReply):
    """A pooled connection had already ended. The request may have arrived."""


class ResponseReader:
    """Reads the responses of one connection, one after another.

    Attributes:
        status: The status of the current response; 0 while unknown.
        size: Number of bytes of the response received so far.
        complete: Whether the whole response has arrived.
        reusable: Whether the connection can be reused after the response.
        waits_for_excerpt: Whether a failed response needs only the first bytes of its body.
    """

    waits_for_excerpt = True

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.start()

    def start(self) -> None:
        """Prepare to read the response to a new request."""
        self.complete = self.reusable = False
        self.status = self.size = self._interim = 0
        self._retry_after = self._excerpt = b""

    def feed(self, data: bytes) -> None:
        """Parse received bytes.

        Raises:
            NoReply: The bytes are not an HTTP response, or exceed a limit. `rest` returns the part
                of the response that is known.
        """
        if self.size > (MAX_RESPONSE_BYTES if self.status else MAX_HEAD_BYTES):
            raise NoReply("sends too long a response")
        self.size += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise NoReply("answers with another protocol") from None
        except HttpParserError as error:
            if isinstance(error.__context__, NoReply):
                raise error.__context__ from None
            raise NoReply("does not answer with HTTP") from None

    def reply(self) -> HttpReply | None:
        """Return the response if enough of it has arrived, else None."""
        if 200 <= self.status < 300:
            return HttpReply(self.status)
        if self.complete or len(self._excerpt) >= MAX_EXCERPT_BYTES:
            return self.rest()
        return None

    def rest(self) -> HttpReply | None:
        """Return the incomplete response; None if its status has not arrived."""
        if not self.status:
            return None
        excerpt = self._excerpt[:MAX_EXCERPT_BYTES]
        return HttpReply(self.status, self._retry_after.decode("latin-1"), excerpt)

    # Called by llhttp.

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False  # no request was sent for this response
            raise NoReply("sends a response without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 11 and name.lower() == b"retry-after":
            self._retry_after = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            return
        self._interim += 1
        self._retry_after = b""
        if status == 101:
            raise NoReply("answers with another protocol")
        if self._interim > MAX_INTERIM_RESPONSES:
            raise NoReply("sends too many 1xx responses")

    def on_body(self, body: bytes) -> None:
        if len(self._excerpt) < MAX_EXCERPT_BYTES and self.status >= 300:
            self._excerpt += body

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()


class ContentReader(ResponseReader):
    """Reads complete responses of limited size. The reply is a `ContentReply`."""

    waits_for_excerpt = False

    def start(self) -> None:
        super().start()
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = b""

    def reply(self) -> ContentReply | None:
        if not self.complete:
            return None
        return ContentReply(self.status, headers=tuple(self._headers), body=self._body)

    rest = reply

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if not self.status:
            self._headers.clear()

    def on_body(self, body: bytes) -> None:
        self._body += body


#: Maximum wait for the body of a failed response after its head, in seconds.
EXCERPT_SECONDS = 1.0

_ENDED = "ends the connection without an answer"
#: A callback with the outcome of a request.
Done = Callable[[HttpReply | Exception], None]


class HttpOrigin(NamedTuple):
    """The server that a connection is opened to. An IPv6 host has no brackets."""

    secure: bool
    host: str
    port: int


class HttpConnection(asyncio.Protocol):
    __slots__ = (
        "_busy",
        "_done",
        "_excerpt_timer",
        "_loop",
        "_pool",
        "_reader",
        "_transport",
        "_used",
        "origin",
    )

    def __init__(self, origin: HttpOrigin, pool: ConnectionPool) -> None:
        self.origin = origin
        self._pool = pool
        self._reader: ResponseReader | None = None  # set while a response is incomplete
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._done: Done | None = None
        self._busy = False
        self._used = False
        self._excerpt_timer: asyncio.TimerHandle | None = None

    def send(self, request: bytes, done: Done) -> bool:
        """Send a request, unless the connection has ended, and return whether it was sent.

        `done` is called later, once, with the reply, or with a `StaleConnection`, `NoReply` or
        OSError.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        self._busy = True
        self._done = done
        transport.write(request)
        return True

    async def request(self, request: bytes) -> HttpReply:
        """Send a request, and return its reply or raise its error."""
        waiting: asyncio.Future[HttpReply] = self._loop.create_future()
        done = partial(settle, waiting)
        if not self.send(request, done):
            raise StaleConnection(_ENDED)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._done is done:  # otherwise another request is using the connection
                self.cancel()
            raise

    @property
    def received(self) -> int:
        """Number of bytes of the current response received so far."""
        return 0 if self._reader is None else self._reader.size

    def cancel(self) -> None:
        self._done = None
        self.abort()

    def fail(self, error: Exception) -> None:
        """Abort the connection, and fail its request with an error."""
        self.abort()
        self._settle(error)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports do not inherit from `asyncio.Transport`.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            self.abort()  # a response without a request
            return
        reader = self._reader
        if reader is None:
            reader = self._reader = self._pool.lend_reader()
        try:
            reader.feed(data)
        except NoReply as error:
            self.abort()
            self._settle(reader.rest() or error)
            return
        reply = reader.reply()
        if reader.complete:
            self._busy = False
            self._used = True
            if reader.reusable:
                self._reader = None
                self._pool.return_reader(reader)
                self._pool.keep(self)
            else:
                self.abort()
        elif reply is None:
            if reader.waits_for_excerpt and reader.status and self._excerpt_timer is None:
                self._excerpt_timer = self._loop.call_later(EXCERPT_SECONDS, self._end_excerpt)
        elif self._done is not None:
            self._pool.drain(self)
        if reply is not None:
            self._settle(reply)

    def _end_excerpt(self) -> None:
        self.abort()
        if (reply := self._rest()) is not None:
            self._settle(reply)

    def _rest(self) -> HttpReply | None:
        return None if self._reader is None else self._reader.rest()

    def _settle(self, outcome: HttpReply | Exception) -> None:
        """Report the outcome of the request. The callback may already send the next one."""
        if self._excerpt_timer is not None:
            self._excerpt_timer.cancel()
            self._excerpt_timer = None
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._busy = False
        self._pool.lost(self)
        if self._used and self._reader is None:
            error = StaleConnection(_ENDED)
        self._settle(self._rest() or error or NoReply(_ENDED))


#: Maximum time that a connection stays idle, in seconds.
IDLE_SECONDS = 30.0
#: Maximum time to receive the rest of a response, in seconds.
DRAIN_SECONDS = 2.0
#: Maximum number of idle connections, in total and per origin.
MAX_IDLE = 1000
MAX_IDLE_PER_ORIGIN = 50
#: Time between two searches for connections to close, in seconds.
_SWEEP_INTERVAL = 1.0


class ConnectionPool:
    """Keeps idle connections, and a spare reader."""

    def __init__(
        self,
        *,
        most: int = MAX_IDLE,
        per_origin: int = MAX_IDLE_PER_ORIGIN,
        seconds: float = IDLE_SECONDS,
        reader: type[ResponseReader] = ResponseReader,
    ) -> None:
        self._new_reader = reader
        self._spare: ResponseReader | None = None
        self._most = most
        self._per_origin = per_origin
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._origins: dict[HttpOrigin, list[HttpConnection]] = {}
        # Ordered by value, the time at which to close the connection.
        self._idle: dict[HttpConnection, float] = {}
        self._draining: dict[HttpConnection, float] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._idle)

    def acquire(self, origin: HttpOrigin) -> HttpConnection | None:
        """Remove and return the most recently used connection to an origin, if there is one."""
        found = self._origins.get(origin)
        if not found:
            return None
        connection = found.pop()  # `lost` later removes an empty list
        del self._idle[connection]
        return connection

    def lend_reader(self) -> ResponseReader:
        """Return a reader for one response."""
        reader, self._spare = self._spare, None
        return reader or self._new_reader()

    def return_reader(self, reader: ResponseReader) -> None:
        """Keep a reader, which has read a complete response, for another one."""
        reader.start()
        self._spare = reader

    def keep(self, connection: HttpConnection) -> None:
        self._draining.pop(connection, None)
        others = self._origins.get(connection.origin)
        if others is None:
            others = self._origins[connection.origin] = []
        others.append(connection)
        self._idle[connection] = self._loop.time() + self._seconds
        if self._sweep_timer is None:
            self._schedule_sweep()
        if self._closed or len(others) > self._per_origin:
            self._abort(connection)
        elif len(self._idle) > self._most:
            self._abort(next(iter(self._idle)))

    def drain(self, connection: HttpConnection) -> None:
        """Limit the time for the rest of a response. Later, `keep` or `lost` is called."""
        self._draining[connection] = self._loop.time() + DRAIN_SECONDS
        self._schedule_sweep()

    def lost(self, connection: HttpConnection) -> None:
        """Remove a connection that has ended."""
        self._draining.pop(connection, None)
        others = self._origins.get(connection.origin, [])
        if self._idle.pop(connection, None) is not None:
            others.remove(connection)
        if not others:
            self._origins.pop(connection.origin, None)

    def _abort(self, connection: HttpConnection) -> None:
        self.lost(connection)
        connection.abort()

    def _schedule_sweep(self) -> None:
        if self._sweep_timer is None and not self._closed:
            self._sweep_timer = self._loop.call_later(_SWEEP_INTERVAL, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now = self._loop.time()
        for group in (self._idle, self._draining):
            while group and (oldest := next(iter(group))) and group[oldest] <= now:
                self._abort(oldest)
        if self._idle or self._draining:
            self._schedule_sweep()

    def close(self) -> None:
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in [*self._idle, *self._draining]:
            self._abort(connection)
