"""One open WebSocket: bytes of a transport in, messages out, and the rules that hold for all.

Theory of operation. The bytes are understood by the sans-I/O protocol of `websockets`; this shell
reads, writes and keeps time. Whole messages go to a *listener*, which is exchanged as the
connection takes on its role. It is told once that the connection has ended, which is when either
side begins to close: from then on nothing is sent, and what comes is read only to find the
client's own close, for a moment.

A connection that only listens has no task and no timer. What it costs is this object, that
protocol, and the transport.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from rsnotify_hub.websocket.frames import (
    INVALID_DATA,
    MESSAGE_TOO_BIG,
    POLICY_VIOLATION,
    text_frame,
)

_log = logging.getLogger("rsnotify.hub.websocket.protocol")
# It would tell of each connection, and of every byte in it.
_log.setLevel(logging.WARNING)

#: How long a client has to answer a close, in seconds.
CLOSE_SECONDS = 3.0

#: What is parsed at once: a flood of tiny frames must not keep the loop for long.
_SLICE = 8 * 1024

#: The largest message of a client that may not publish.
_SMALL = 16 * 1024

#: How many frames such a client may send between two pings of ours, and anybody pings and pongs.
_FRAMES = 100

_PING = b"\x89\x00"
_CONTROL = 0x8


class FrameHandler(Protocol):
    """Whoever a connection talks to."""

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """Take a whole message."""

    def paused(self) -> None:
        """Take note that the client does not read as fast as is sent."""

    def resumed(self) -> None:
        """Take note that all that was sent is on its way."""

    def lost(self) -> None:
        """Take note that the connection has ended."""


class WebSocketConnection(asyncio.Protocol):
    """A WebSocket whose opening handshake is done.

    Args:
        transport: What carries it; `set_protocol` is for the caller.
        max_bytes: The largest message of a client that may publish.
        gone: Called once, when the transport is lost.

    Attributes:
        transport: What carries it.
        listener: Whoever it talks to.
        is_paused: Whether something that was sent still waits in the transport.
        has_ended: Whether either side has begun to close it.
    """

    __slots__ = (
        "_drained",
        "_ending",
        "_frames",
        "_gone",
        "_heard",
        "_is_held",
        "_is_text",
        "_late",
        "_parts",
        "_pending",
        "_small",
        "_stuck",
        "_wire",
        "has_ended",
        "is_paused",
        "listener",
        "transport",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        max_bytes: int,
        gone: Callable[[WebSocketConnection], None],
    ) -> None:
        self.transport = transport
        self.listener: FrameHandler | None = None
        self.is_paused = False
        self.has_ended = False
        self._wire = ServerProtocol(state=State.OPEN, max_size=max_bytes, logger=_log)
        self._gone = gone
        self._small = True
        self._parts: list[bytes] = []
        self._is_held = False
        self._is_text = True
        self._pending = 0
        self._frames = 0
        self._heard = True
        self._stuck = -1
        self._late: bytes | None = None
        self._drained: asyncio.Future[None] | None = None
        self._ending: asyncio.TimerHandle | None = None
        # What the kernel does not take at once is known at once.
        transport.set_write_buffer_limits(high=0)

    def allow_large(self) -> None:
        """Take messages up to `max_bytes`, and any number of them."""
        self._small = False

    # What the transport tells.

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        self._heard = True
        for begin in range(0, len(data), _SLICE):
            piece = data[begin : begin + _SLICE]
            self._pending += len(piece)
            self._wire.receive_data(piece)
            self._take_frames()
            if self._small and self._pending > _SMALL:
                self._fail(MESSAGE_TOO_BIG, "the message is too big")

    def eof_received(self) -> None:
        """Take note that the client sends no more; the transport closes itself then."""
        self._wire.receive_eof()
        self._end(CLOSE_SECONDS)

    def pause_writing(self) -> None:
        """Tell that the client lags."""
        self.is_paused = True
        if self.listener is not None:
            self.listener.paused()

    def resume_writing(self) -> None:
        """Tell that it does not, after the answer to its last ping."""
        self.is_paused = False
        self._stuck = -1
        late, self._late = self._late, None
        if late is not None:
            self.send(late)
        self._wake()
        if self.listener is not None and not self.is_paused:
            self.listener.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        self._end(0)
        if self._ending is not None:
            self._ending.cancel()
        self._wake()
        self._gone(self)

    # What comes in.

    def _take_frames(self) -> None:
        for frame in self._wire.events_received():
            if isinstance(frame, Frame) and not self.has_ended:
                self._take(frame)
        self._reply(self._wire.data_to_send())
        if self._wire.state is not State.OPEN:
            self._end(CLOSE_SECONDS)

    def _take(self, frame: Frame) -> None:
        if self._small or frame.opcode & _CONTROL:
            self._count_frame()
        if frame.opcode & _CONTROL:
            return  # the protocol answers
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        if frame.data:  # or else nothing would bound how many there are
            self._parts.append(bytes(frame.data))
        if frame.fin and not self.has_ended:
            self._pass_on(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))

    def _pass_on(self, payload: bytes) -> None:
        self._parts = []
        self._pending = 0
        if self._small and len(payload) > _SMALL:
            self._fail(MESSAGE_TOO_BIG, "the message is too big")
        elif self._is_text and not _is_utf_8(payload):
            self._fail(INVALID_DATA, "a text frame is not UTF-8")
        elif self.listener is not None:
            self.listener.received(payload, is_text=self._is_text)

    def _count_frame(self) -> None:
        self._frames += 1
        if self._frames > _FRAMES:
            self._fail(POLICY_VIOLATION, "too many frames")

    def hold(self) -> None:
        """Read no more for now."""
        self._is_held = True
        self.transport.pause_reading()

    def release(self) -> None:
        """Read on."""
        self._is_held = False
        self._heard = True
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # What goes out.

    def send(self, frames: bytes) -> None:
        """Send whole frames; nothing once it has ended."""
        if not self.has_ended and not self.transport.is_closing():
            self.transport.write(frames)

    def send_text(self, text: bytes) -> None:
        """Send a text frame."""
        self.send(text_frame(text))

    async def drain(self) -> None:
        """Wait until all that was sent is on its way, or it has ended."""
        while self.is_paused and not self.has_ended:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def _wake(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def _reply(self, answers: list[bytes]) -> None:
        """Send what the protocol answers: pongs, a close, and an empty one for the end."""
        for answer in answers:
            if self.transport.is_closing():
                return
            if not answer:
                self.transport.write_eof()
            elif not self.is_paused or self._wire.state is not State.OPEN:
                self.transport.write(answer)
            else:
                self._late = answer  # only the last ping needs an answer (RFC 6455 §5.5.3)

    # The end.

    def close(self, code: int, reason: str, *, seconds: float = CLOSE_SECONDS) -> None:
        """Close, after what was sent; drop what the client has not taken some seconds later.

        Args:
            code: A close code (RFC 6455 §7.4).
            reason: For the client, at most 123 bytes.
            seconds: How long it has to take all and to answer.
        """
        if self.has_ended or self._wire.state is not State.OPEN:
            return
        self._wire.send_close(code, reason)
        self._reply(self._wire.data_to_send())
        self._end(seconds)

    def _fail(self, code: int, reason: str) -> None:
        """Close upon what no client should send, and read nothing more (RFC 6455 §7.1.7)."""
        if not self.has_ended:
            self._wire.fail(code, reason)
            self._reply(self._wire.data_to_send())
            self._end(CLOSE_SECONDS)

    def _end(self, seconds: float) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self._parts = []
        self._late = None
        self.release()
        self._ending = asyncio.get_running_loop().call_later(seconds, self.transport.abort)
        self._wake()
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.lost()

    # Whether it lives.

    def check(self) -> None:
        """Ping, and drop a client that did not answer the last time.

        One that still has something to take must have taken some of it instead.
        """
        if self._is_held:
            return  # it may have answered, and was not read
        waiting = self.transport.get_write_buffer_size() if self.is_paused else -1
        if waiting == self._stuck if self.is_paused else not self._heard:
            self.transport.abort()
            return
        self._stuck, self._heard, self._frames = waiting, self.is_paused, 0
        if not self.is_paused:
            self.send(_PING)


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
