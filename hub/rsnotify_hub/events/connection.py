"""One open event stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rsnotify_hub.events.encoding import HEARTBEAT
from rsnotify_hub.live.connection import CLOSE_SECONDS, LiveConnection
from rsnotify_hub.statistics import DeliveryTransport

#: How many bytes a client may send after its request, which nothing reads.
_MAX_INPUT = 16 * 1024


@dataclass(slots=True, eq=False, repr=False)
class EventStream(LiveConnection):
    """The response of `GET /events` after its head. The end of the connection ends it."""

    kind: ClassVar[DeliveryTransport] = DeliveryTransport.SSE

    _received: int = 0

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > _MAX_INPUT:
            self.transport.abort()

    def eof_received(self) -> None:
        # The transport closes itself after this.
        self._end(CLOSE_SECONDS)

    def close(self, *, seconds: float = CLOSE_SECONDS) -> None:
        """Close after everything that was sent; abort if the client does not read it in time."""
        if not self.has_ended:
            self._end(seconds)
            self.transport.close()

    def cut_off(self, *, seconds: float) -> None:
        self.close(seconds=seconds)

    def go_away(self) -> None:
        self.close()

    def check(self) -> None:
        """Send a comment, unless the client has yet to read; abort if it has read nothing."""
        if self._has_stalled():
            self.transport.abort()
        elif not self.is_paused:
            self.send(HEARTBEAT)
