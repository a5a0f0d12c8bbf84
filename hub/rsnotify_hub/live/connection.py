"""One open connection that receives topics: what WebSockets and event streams have in common.

A connection that only receives has no task and no timer.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from rsnotify_hub.live.send_queue import SendQueue
from rsnotify_hub.statistics import DeliveryTransport

#: How long a client has to answer a close, or to read what was sent before it, in seconds.
CLOSE_SECONDS = 3.0


class ConnectionHandler(ABC):
    """The role of a connection."""

    __slots__ = ()

    def paused(self) -> None:  # noqa: B027  (most roles need not know)
        """The client does not read as fast as the hub sends."""

    def resumed(self) -> None:  # noqa: B027
        """Everything that was sent has left the transport."""

    @abstractmethod
    def lost(self) -> None:
        """The connection has ended."""


@dataclass(slots=True, eq=False, repr=False)
class LiveConnection(asyncio.Protocol):
    """A connection after its request was answered. The caller calls `set_protocol`.

    Attributes:
        is_paused: Whether something that was sent still waits in the transport.
        has_ended: Whether either side has begun to close it.
        turns: The lock for the replays of its topics, if it may have several.
        queue: What waits while it is slow.
    """

    kind: ClassVar[DeliveryTransport]

    transport: asyncio.Transport
    on_lost: Callable[[Any], None]
    handler: ConnectionHandler | None = None
    is_paused: bool = False
    has_ended: bool = False
    turns: asyncio.Lock | None = None
    queue: SendQueue | None = None
    _last_unsent: int = -1
    _drained: asyncio.Future[None] | None = None
    _end_timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        # So that `pause_writing` is called as soon as the kernel does not accept everything.
        self.transport.set_write_buffer_limits(high=0)

    # Calls of the transport.

    def pause_writing(self) -> None:
        self.is_paused = True
        if self.handler is not None:
            self.handler.paused()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._last_unsent = -1
        self._send_late()
        self.send_queue()
        if self.is_paused:
            return
        self._wake()
        if self.handler is not None:
            self.handler.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(0)
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._wake()
        self.on_lost(self)

    # Output.

    def send(self, data: bytes) -> None:
        """Send whole frames or events; nothing once the connection has ended."""
        if not self.has_ended and not self.transport.is_closing():
            self.transport.write(data)

    def _send_late(self) -> None:
        """Send what had to wait until the transport accepts more."""

    def send_queue(self, *, everything: bool = False) -> None:
        """Send as much of what waits as the transport accepts, or all."""
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

    # The end.

    @abstractmethod
    def cut_off(self, *, seconds: float) -> None:
        """Close because the client does not keep up, at the latest after some seconds."""

    @abstractmethod
    def go_away(self) -> None:
        """Close because the hub stops, so that the client connects to another node or later."""

    def _end(self, seconds: float) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self._end_timer = asyncio.get_running_loop().call_later(seconds, self.transport.abort)
        self._wake()
        self._ended()

    def _ended(self) -> None:
        """Inform the handler."""
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.lost()

    # Liveness.

    @abstractmethod
    def check(self) -> None:
        """Send a sign of life, and abort if the client did not read or answer since the last."""

    def _has_stalled(self) -> bool:
        """Return whether data waits, and the client has read none of it since the last check."""
        unsent = self.transport.get_write_buffer_size() if self.is_paused else -1
        before, self._last_unsent = self._last_unsent, unsent
        return self.is_paused and unsent == before
