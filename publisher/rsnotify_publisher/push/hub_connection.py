"""The WebSocket to a hub: fragments and acknowledgements pass without a task or queue.

`websockets` makes the connection, and handles everything that is rare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from websockets.asyncio.client import ClientConnection
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State

from rsnotify.format.datetimes import Instant


class _Accepted(Struct, frozen=True, tag="accepted"):
    """All fragments up to the one that ends at `until` are durable."""

    until: Annotated[Instant, Meta(tz=True)]


_decode = msgspec.json.Decoder(_Accepted).decode
#: Seconds after an acknowledgement until the next ones are read, all together: each would wake up a
#: thread, which costs more than to read them, and nothing waits for them.
_PAUSE = 0.05


class HubConnection(ClientConnection):
    """A connection that calls `on_accepted` for acknowledgements; `recv` returns the others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_accepted: Callable[[Instant], None] | None = None

    def process_event(self, event: Response | Frame) -> None:  # type: ignore[override]
        if self.on_accepted is not None and isinstance(event, Frame) and _is_text(event):
            try:
                accepted = _decode(event.data)
            except msgspec.MsgspecError:
                pass  # another frame, or a rare form of this one
            else:
                self.on_accepted(accepted.until)
                if self.transport.is_reading():
                    self.transport.pause_reading()
                    self.loop.call_later(_PAUSE, self.transport.resume_reading)
                return
        super().process_event(event)

    async def send_fragment(self, body: bytes) -> None:
        """Send a fragment; wait if the hub reads slowly."""
        if self.paused or self.protocol.state is not State.OPEN:
            await self.send(body, text=True)  # which raises if the connection is lost
        else:
            self.protocol.send_text(body)
            self.send_data()


def _is_text(frame: Frame) -> bool:
    return frame.opcode is Opcode.TEXT and frame.fin
