"""One open WebSocket: bytes of a transport in, messages out, and the rules that hold for all.

Theory of operation. The sans-I/O protocol of `websockets` parses the bytes; this shell reads,
writes and keeps time. Whole messages go to a *handler*, which is replaced when the client's first
frame gives the connection its role. The handler is informed once that the connection has ended,
which is when either side begins to close: from then on nothing is sent, and input is read only, for
a moment, to find the client's own close.

A connection that only receives has no task and no timer. Its cost is this object, that protocol,
and the transport.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import InitVar, dataclass, field
from typing import ClassVar

from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from rsnotify_hub.fragments.fragment import is_utf_8
from rsnotify_hub.live.connection import CLOSE_SECONDS, ConnectionHandler, LiveConnection
from rsnotify_hub.statistics import DeliveryTransport
from rsnotify_hub.websocket.frames import (
    GOING_AWAY,
    INVALID_DATA,
    MESSAGE_TOO_BIG,
    POLICY_VIOLATION,
    TRY_AGAIN_LATER,
    text_frame,
)

_log = logging.getLogger("rsnotify.hub.websocket.protocol")
# Below this level it logs each connection and every byte.
_log.setLevel(logging.WARNING)

#: How much is parsed at once: a flood of tiny frames must not block the event loop for long.
_SLICE = 8 * 1024

#: The largest message of a client that may not publish.
_SMALL = 16 * 1024

#: How many frames such a client may send between two pings of the hub; for all clients, how many
#: control frames.
_FRAMES = 100

#: The same for a connection for many topics: ten frames for each of 500.
_FRAMES_OF_TOPICS = 5_000

_PING = b"\x89\x00"
_CONTROL = 0x8


class FrameHandler(ConnectionHandler):
    """The role of a WebSocket."""

    __slots__ = ()

    @abstractmethod
    def received(self, payload: bytes, *, is_text: bool) -> None:
        """Handle a whole message."""


@dataclass(slots=True, eq=False, repr=False)
class WebSocketConnection(LiveConnection):
    """A WebSocket after its opening handshake."""

    kind: ClassVar[DeliveryTransport] = DeliveryTransport.WEBSOCKET

    max_bytes: InitVar[int] = field(kw_only=True)
    handler: FrameHandler | None = None
    _protocol: ServerProtocol = field(init=False)
    _small: bool = True
    _parts: list[bytes] = field(default_factory=list)
    _is_held: bool = False
    _is_text: bool = True
    _pending: int = 0
    _frames: int = 0
    _has_received: bool = True
    _late_reply: bytes | None = None

    def __post_init__(self, max_bytes: int) -> None:
        self._protocol = ServerProtocol(state=State.OPEN, max_size=max_bytes, logger=_log)
        LiveConnection.__post_init__(self)

    def allow_large(self) -> None:
        """Accept messages up to `max_bytes`, and any number of them."""
        self._small = False

    # Calls of the transport.

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        for begin in range(0, len(data), _SLICE):
            piece = data[begin : begin + _SLICE]
            self._pending += len(piece)
            self._protocol.receive_data(piece)
            self._process_events()
            if self._small and self._pending > _SMALL:
                self._fail(MESSAGE_TOO_BIG, "the message is too big")

    def eof_received(self) -> None:
        # The transport closes itself after this.
        self._protocol.receive_eof()
        self._end(CLOSE_SECONDS)

    # Input.

    def _process_events(self) -> None:
        for frame in self._protocol.events_received():
            if isinstance(frame, Frame) and not self.has_ended:
                self._process_frame(frame)
        self._reply(self._protocol.data_to_send())
        if self._protocol.state is not State.OPEN:
            self._end(CLOSE_SECONDS)

    def _process_frame(self, frame: Frame) -> None:
        if self._small or frame.opcode & _CONTROL:
            self._count_frame()
        if frame.opcode & _CONTROL:
            return  # the protocol answers it
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        if frame.data:  # else the number of empty parts would be unbounded
            self._parts.append(bytes(frame.data))
        if frame.fin and not self.has_ended:
            self._process_message(
                self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            )

    def _process_message(self, payload: bytes) -> None:
        self._parts = []
        self._pending = 0
        if self._small and len(payload) > _SMALL:
            self._fail(MESSAGE_TOO_BIG, "the message is too big")
        elif self._is_text and not is_utf_8(payload):
            self._fail(INVALID_DATA, "a text frame is not UTF-8")
        elif self.handler is not None:
            self.handler.received(payload, is_text=self._is_text)

    def _count_frame(self) -> None:
        self._frames += 1
        if self._frames > (_FRAMES if self.turns is None else _FRAMES_OF_TOPICS):
            self._fail(POLICY_VIOLATION, "too many frames")

    def pause_reading(self) -> None:
        self._is_held = True
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_held = False
        self._has_received = True
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # Output.

    def send_text(self, text: bytes) -> None:
        self.send(text_frame(text))

    def _send_late(self) -> None:
        late, self._late_reply = self._late_reply, None
        if late is not None:
            self.send(late)

    def _reply(self, replies: list[bytes]) -> None:
        """Send the replies of the protocol: pongs, a close, and an empty one for the end."""
        for reply in replies:
            if self.transport.is_closing():
                return
            if not reply:
                self.transport.write_eof()
            elif not self.is_paused or self._protocol.state is not State.OPEN:
                self.transport.write(reply)
            else:
                self._late_reply = reply  # only the last ping needs a pong (RFC 6455 §5.5.3)

    # The end.

    def close(self, code: int, reason: str, *, seconds: float = CLOSE_SECONDS) -> None:
        """Close after everything that was sent; abort if the client does not answer in time.

        The reason is for the client, at most 123 bytes (RFC 6455 §7.4).
        """
        if self.has_ended or self._protocol.state is not State.OPEN:
            return
        self._protocol.send_close(code, reason)
        self._reply(self._protocol.data_to_send())
        self._end(seconds)

    def _fail(self, code: int, reason: str) -> None:
        """Close because of a violation, and process no more input (RFC 6455 §7.1.7)."""
        if not self.has_ended:
            self._protocol.fail(code, reason)
            self._reply(self._protocol.data_to_send())
            self._end(CLOSE_SECONDS)

    def cut_off(self, *, seconds: float) -> None:
        # The close follows the frame that is being sent.
        self.close(TRY_AGAIN_LATER, "queue overflow", seconds=seconds)

    def go_away(self) -> None:
        self.close(GOING_AWAY, "the hub stops")

    def _ended(self) -> None:
        self._parts = []
        self._late_reply = None
        self.resume_reading()
        LiveConnection._ended(self)

    # Liveness.

    def check(self) -> None:
        """Ping, and abort if the client did not answer the last ping.

        A client for which data waits must have read some of it instead.
        """
        if self._is_held:
            return  # it may have answered, unread
        if self._has_stalled() or not (self.is_paused or self._has_received):
            self.transport.abort()
            return
        self._has_received, self._frames = self.is_paused, 0
        if not self.is_paused:
            self.send(_PING)


class DashboardConnection(WebSocketConnection):
    """A WebSocket of a page of the dashboard, which is not counted as a subscriber."""

    __slots__ = ()

    kind: ClassVar[DeliveryTransport] = DeliveryTransport.DASHBOARD
