"""One connection to a callback, on which one request after another is made."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from rsnotify_hub.websub.posting.places import Origin
from rsnotify_hub.websub.posting.reading import Reader
from rsnotify_hub.websub.posting.replies import NoReply, Reply, Stale

#: How long the beginning of a failed answer's body may take after its head, in seconds.
EXCERPT_SECONDS = 1.0

_ENDED = "ends the connection without an answer"

# All read into one buffer, which is parsed before the next one is filled: a buffer for each read
# is what a read costs most.
_BUFFER = memoryview(bytearray(64 * 1024))


class Keeper(Protocol):
    """Who keeps connections when they are not used."""

    def keep(self, connection: Connection) -> None:
        """Take one that another request can be sent on."""

    def drain(self, connection: Connection) -> None:
        """Take one whose answer is known, but goes on: it ends with `keep` or `lost`."""

    def lost(self, connection: Connection) -> None:
        """Forget one that has ended."""


class Connection(asyncio.BufferedProtocol):
    """One connection.

    Args:
        origin: Where it goes.
        keeper: Who is told when it can be used again, and when it has ended.
    """

    def __init__(self, origin: Origin, keeper: Keeper) -> None:
        self.origin = origin
        self._keeper = keeper
        self._reader = Reader()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Reply] | None = None
        self._busy = False
        self._used = False
        self._late: asyncio.TimerHandle | None = None

    async def post(self, head: bytes, body: bytes) -> Reply:
        """Send a request, and wait for the answer.

        Raises:
            Stale: It was used before, and has ended without an answer.
            NoReply: There is none that can be understood.
            OSError: The connection has failed.
        """
        if self._transport is None or self._transport.is_closing():
            raise Stale(_ENDED)
        self._busy = True
        self._reader.start()
        waiting: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting = waiting
        self._transport.writelines((head, body))
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._waiting is waiting:  # else it is somebody else's by now
                self._waiting = None
                self.abort()
            raise

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
            self._settle(self._reader.rest() or error)
            self.abort()
            return
        if (reply := self._reader.reply()) is not None:
            self._settle(reply)
        elif self._reader.status and self._late is None:
            self._late = self._loop.call_later(EXCERPT_SECONDS, self._end_excerpt)
        if self._reader.complete:
            self._end_answer()

    def _end_excerpt(self) -> None:
        self._late = None
        if (reply := self._reader.rest()) is not None:
            self._settle(reply)
        self.abort()

    def _end_answer(self) -> None:
        self._busy = False
        self._used = True
        if self._reader.reusable:
            self._keeper.keep(self)
        else:
            self.abort()

    def _settle(self, outcome: Reply | Exception) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.done():
            return
        if isinstance(outcome, Exception):
            waiting.set_exception(outcome)
        else:
            waiting.set_result(outcome)
        if not self._reader.complete:
            self._keeper.drain(self)

    def connection_lost(self, error: Exception | None) -> None:
        """It has ended."""
        self._settle(self._reader.rest() or self._reason(error))
        self._transport = None
        self._busy = False
        self._keeper.lost(self)

    def _reason(self, error: Exception | None) -> Exception:
        if self._used and not self._reader.begun:
            return Stale(_ENDED)
        return error or NoReply(_ENDED)
