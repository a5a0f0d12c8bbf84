"""One connection, which carries one request after another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, cast

from rsnotify.runtime.http.direct_writes import descriptor_of
from rsnotify.runtime.http.response import (
    HttpReply,
    NoReply,
    ResponseReader,
    StaleConnection,
)

#: How long the first bytes of a failed response's body may take after its head, in seconds.
EXCERPT_SECONDS = 1.0

_ENDED = "ends the connection without an answer"

# All connections read into one buffer, which is parsed before the next read: allocating a buffer
# for each read would cost more than the read itself.
_BUFFER = memoryview(bytearray(64 * 1024))

#: Receives the outcome of a request.
Done = Callable[[HttpReply | Exception], None]


class HttpOrigin(NamedTuple):
    """What a connection is opened to; the host has no brackets."""

    secure: bool
    host: str
    port: int


class ConnectionOwner(Protocol):
    def keep(self, connection: HttpConnection) -> None: ...

    def drain(self, connection: HttpConnection) -> None:
        """Bound the time of a response whose outcome is known; `keep` or `lost` follows."""

    def lost(self, connection: HttpConnection) -> None:
        """Forget a connection that has ended."""


class HttpConnection(asyncio.BufferedProtocol):
    def __init__(
        self, origin: HttpOrigin, owner: ConnectionOwner, reader: ResponseReader | None = None
    ) -> None:
        self.origin = origin
        self._owner = owner
        self._reader = ResponseReader() if reader is None else reader
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1  # for direct writes; -1 if the transport must be used
        self._done: Done | None = None
        self._busy = False
        self._used = False
        self._excerpt_timer: asyncio.TimerHandle | None = None

    def send(self, head: bytes, body: bytes, done: Done) -> bool:
        """Send a request, unless the connection has ended; return whether it was sent.

        `done` is called once, later, with the reply, or with `StaleConnection`, `NoReply` or
        OSError.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        self._busy = True
        self._reader.start()
        self._done = done
        data = head + body
        sent = self._write(data)
        if sent != len(data):
            transport.write(memoryview(data)[sent:])
        return True

    def _write(self, data: bytes) -> int:
        """Write as much to the socket as it accepts; the transport must write the rest."""
        if self._descriptor == -1:
            return 0
        try:
            sent = os.write(self._descriptor, data)
        except OSError:  # the transport will have it, too
            sent = 0
        if sent != len(data):
            self._descriptor = -1  # nothing may overtake the rest
        return sent

    async def request(self, head: bytes, body: bytes = b"") -> HttpReply:
        """Send a request, and return the reply, or raise what `send` reports."""
        waiting: asyncio.Future[HttpReply] = self._loop.create_future()
        done = partial(_resolve, waiting)
        if not self.send(head, body, done):
            raise StaleConnection(_ENDED)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._done is done:  # else another request uses the connection by now
                self.cancel()
            raise

    @property
    def received(self) -> int:
        """How many bytes of the current response have arrived."""
        return self._reader.size

    def cancel(self) -> None:
        self._done = None
        self.abort()

    def fail(self, error: Exception) -> None:
        """End the connection, and the request with an error."""
        self.abort()
        self._settle(error)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Calls of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        if not self.origin.secure:
            self._descriptor = descriptor_of(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        if not self._busy:
            self.abort()  # a response without a request
            return
        try:
            self._reader.feed(_BUFFER[:nbytes])
        except NoReply as error:
            self.abort()
            self._settle(self._reader.rest() or error)
            return
        reply = self._reader.reply()
        if self._reader.complete:
            self._end_response()
        elif reply is None:
            self._wait_for_excerpt()
        elif self._done is not None:
            self._owner.drain(self)
        if reply is not None:
            self._settle(reply)

    def _wait_for_excerpt(self) -> None:
        reader = self._reader
        if reader.waits_for_excerpt and reader.status and self._excerpt_timer is None:
            self._excerpt_timer = self._loop.call_later(EXCERPT_SECONDS, self._end_excerpt)

    def _end_excerpt(self) -> None:
        self.abort()
        if (reply := self._reader.rest()) is not None:
            self._settle(reply)

    def _end_response(self) -> None:
        self._busy = False
        self._used = True
        if self._reader.reusable:
            self._owner.keep(self)
        else:
            self.abort()

    def _settle(self, outcome: HttpReply | Exception) -> None:
        """Report the outcome of the request; the next one may be sent within this call."""
        if self._excerpt_timer is not None:
            self._excerpt_timer.cancel()
            self._excerpt_timer = None
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._busy = False
        self._owner.lost(self)
        self._settle(self._reader.rest() or self._reason(error))

    def _reason(self, error: Exception | None) -> Exception:
        if self._used and not self._reader.begun:
            return StaleConnection(_ENDED)
        return error or NoReply(_ENDED)


def _resolve(waiting: asyncio.Future[HttpReply], outcome: HttpReply | Exception) -> None:
    if waiting.done():
        return
    if isinstance(outcome, Exception):
        waiting.set_exception(outcome)
    else:
        waiting.set_result(outcome)
