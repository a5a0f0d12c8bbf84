"""One connection to a callback, on which one request after another is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from rsnotify_hub.websub.delivery.posting.replies import HttpReply, NoReply, Stale
from rsnotify_hub.websub.delivery.posting.request_head import CallbackOrigin
from rsnotify_hub.websub.delivery.posting.response import ResponseReader

#: How long the beginning of a failed answer's body may take after its head, in seconds.
EXCERPT_SECONDS = 1.0

_ENDED = "ends the connection without an answer"

# All read into one buffer, which is parsed before the next one is filled: a buffer for each read
# is what a read costs most.
_BUFFER = memoryview(bytearray(64 * 1024))


#: Takes what became of a request.
Done = Callable[[HttpReply | Exception], None]


class ConnectionOwner(Protocol):
    """Who keeps connections when they are not used."""

    def keep(self, connection: CallbackConnection) -> None:
        """Take one that another request can be sent on."""

    def drain(self, connection: CallbackConnection) -> None:
        """Take one whose answer is known, but goes on: it ends with `keep` or `lost`."""

    def lost(self, connection: CallbackConnection) -> None:
        """Forget one that has ended."""


class CallbackConnection(asyncio.BufferedProtocol):
    """One connection.

    Args:
        origin: Where it goes.
        keeper: Who is told when it can be used again, and when it has ended.
    """

    def __init__(self, origin: CallbackOrigin, keeper: ConnectionOwner) -> None:
        self.origin = origin
        self._keeper = keeper
        self._reader = ResponseReader()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._done: Done | None = None
        self._busy = False
        self._used = False
        self._late: asyncio.TimerHandle | None = None

    def send(self, head: bytes, body: bytes, done: Done) -> bool:
        """Send a request.

        Args:
            head: All of its head.
            body: Its body.
            done: Called once, later, with the answer; or with `Stale`, `NoReply` or OSError.

        Returns:
            Whether it was sent; not where the connection has ended.
        """
        if self._transport is None or self._transport.is_closing():
            return False
        self._busy = True
        self._reader.start()
        self._done = done
        self._transport.writelines((head, body))
        return True

    async def post(self, head: bytes, body: bytes) -> HttpReply:
        """Send a request, and wait for the answer.

        Raises:
            Stale: The connection has ended without an answer, and was used before.
            NoReply: There is none that can be understood.
            OSError: The connection has failed.
        """
        waiting: asyncio.Future[HttpReply] = self._loop.create_future()
        done = partial(_resolve, waiting)
        if not self.send(head, body, done):
            raise Stale(_ENDED)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._done is done:  # else it is somebody else's by now
                self.cancel()
            raise

    def cancel(self) -> None:
        """Give up the request that is under way, and end the connection."""
        self._done = None
        self.abort()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by class

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where to read into."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        if not self._busy:
            self.abort()  # nobody asked
            return
        try:
            self._reader.feed(_BUFFER[:nbytes])
        except NoReply as error:
            self.abort()
            self._settle(self._reader.rest() or error)
            return
        reply = self._reader.reply()
        if self._reader.complete:
            self._end_answer()
        elif reply is None:
            self._wait_for_excerpt()
        elif self._done is not None:
            self._keeper.drain(self)
        if reply is not None:
            self._settle(reply)

    def _wait_for_excerpt(self) -> None:
        if self._reader.status and self._late is None:
            self._late = self._loop.call_later(EXCERPT_SECONDS, self._end_excerpt)

    def _end_excerpt(self) -> None:
        self.abort()
        if (reply := self._reader.rest()) is not None:
            self._settle(reply)

    def _end_answer(self) -> None:
        self._busy = False
        self._used = True
        if self._reader.reusable:
            self._keeper.keep(self)
        else:
            self.abort()

    def _settle(self, outcome: HttpReply | Exception) -> None:
        """Hand on what became of the request; the next one may be sent meanwhile."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    def connection_lost(self, error: Exception | None) -> None:
        """It has ended."""
        self._transport = None
        self._busy = False
        self._keeper.lost(self)
        self._settle(self._reader.rest() or self._reason(error))

    def _reason(self, error: Exception | None) -> Exception:
        if self._used and not self._reader.begun:
            return Stale(_ENDED)
        return error or NoReply(_ENDED)


def _resolve(waiting: asyncio.Future[HttpReply], outcome: HttpReply | Exception) -> None:
    if waiting.done():
        return
    if isinstance(outcome, Exception):
        waiting.set_exception(outcome)
    else:
        waiting.set_result(outcome)
