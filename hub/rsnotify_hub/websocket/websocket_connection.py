"""One WebSocket of `GET /ws`: its opening handshake, its messages, and the frames of the protocol.

aiohttp reads the opening request, and `websockets` decides on the response (`accept_upgrade`). From
then on, the sans-I/O protocol of `websockets` parses the bytes, and `WebSocketConnection` handles
input, output and timeouts. It passes whole messages to the connection's *role*. The client's first
frame determines the final role. When either side begins to close the connection, the role's `lost`
is called, exactly once. From then on the hub sends nothing, and reads input only for a moment, to
receive the client's close frame.

Messages that are not documents are JSON (`docs/protocol.md`).
"""

from __future__ import annotations

import logging
import struct
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from typing import ClassVar

import msgspec
from aiohttp import web
from msgspec import Struct
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.selection import EVERYTHING, PushSelection
from rsnotify_hub.fragments import Fragment, is_utf_8
from rsnotify_hub.intake import is_text
from rsnotify_hub.live.connections import CLOSE_SECONDS, ConnectionRole, LiveConnection
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import DeliveryTransport

_protocol_logger = logging.getLogger("rsnotify.hub.websocket.protocol")
# At lower levels, `websockets` logs each connection and every byte.
_protocol_logger.setLevel(logging.WARNING)

#: Number of bytes parsed at once, so that a flood of tiny frames does not block the event loop.
_SLICE_BYTES = 8 * 1024

#: Maximum message size, in bytes, for a client that has no role yet or does not publish.
_MAX_SMALL_BYTES = 16 * 1024

#: Maximum number of frames that such a client may send between two pings of the hub. For other
#: clients, the limit applies only to control frames.
_MAX_FRAMES = 100

#: The same limit for a connection for many topics: ten frames for each of 500 topics.
_MAX_FRAMES_OF_TOPICS = 5_000

_PING_FRAME = b"\x89\x00"
#: The bit that the opcodes of control frames have in common.
_CONTROL_BIT = 0x8
#: Close codes (RFC 6455 §7.4.1 and its registry).
GOING_AWAY = 1001
INVALID_DATA = 1007
POLICY_VIOLATION = 1008
MESSAGE_TOO_BIG = 1009
INTERNAL_ERROR = 1011
TRY_AGAIN_LATER = 1013

#: The subprotocol of connections with many topics (docs/protocol.md).
TOPICS = Subprotocol("rsnotify.topics")

#: The headers that aiohttp itself adds to a refusal.
_ADDED_BY_AIOHTTP = frozenset(("connection", "content-length", "content-type", "date"))


# Shared by all connections, because each instance is part of a reference cycle, which stays in
# memory for some time.
_HANDSHAKES = ServerProtocol(
    select_subprotocol=lambda _, offered: TOPICS if TOPICS in offered else None
)


def accept_upgrade(request: web.Request) -> tuple[bytes, bool]:
    """Return the response to an upgrade request (RFC 6455 §4.2), and whether it is for many topics.

    Raises:
        HTTPException: The request is not a valid opening handshake.
    """
    headers = Headers([(name, value) for name, value in request.headers.items()])
    answer = _HANDSHAKES.accept(Request(path=request.raw_path, headers=headers))
    if answer.status_code != 101:
        raise _refused(answer.status_code, answer.body or b"", answer.headers)
    return answer.serialize(), answer.headers.get("Sec-WebSocket-Protocol") == TOPICS


def _refused(status: int, body: bytes | bytearray, headers: Headers) -> web.HTTPException:
    class Refused(web.HTTPException):
        status_code = status

    kept = {
        name: value for name, value in headers.raw_items() if name.lower() not in _ADDED_BY_AIOHTTP
    }
    return Refused(text=body.decode(), headers=kept)


class WebSocketRole(ConnectionRole):
    __slots__ = ()

    @abstractmethod
    def received(self, payload: bytes, *, is_text: bool) -> None:
        """Handle a whole message."""


@dataclass(slots=True, eq=False, repr=False)
class WebSocketConnection(LiveConnection):
    """A WebSocket after its opening handshake."""

    kind: ClassVar[DeliveryTransport] = DeliveryTransport.WEBSOCKET

    max_bytes: InitVar[int] = field(kw_only=True)
    role: WebSocketRole | None = None
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
        self._protocol = ServerProtocol(
            state=State.OPEN, max_size=max_bytes, logger=_protocol_logger
        )
        LiveConnection.__post_init__(self)

    def allow_large(self) -> None:
        """Accept messages of up to `max_bytes`, without limiting the number of frames."""
        self._small = False

    # Callbacks from the transport.

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        for begin in range(0, len(data), _SLICE_BYTES):
            piece = data[begin : begin + _SLICE_BYTES]
            self._pending += len(piece)
            self._protocol.receive_data(piece)
            self._process_events()
            if self._small and self._pending > _MAX_SMALL_BYTES:
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
        if self._small or frame.opcode & _CONTROL_BIT:
            self._count_frame()
        if frame.opcode & _CONTROL_BIT:
            return  # the protocol answers it
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        if frame.data:  # keep no empty parts, because their number is not limited
            self._parts.append(bytes(frame.data))
        if frame.fin and not self.has_ended:
            self._process_message(
                self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            )

    def _process_message(self, payload: bytes) -> None:
        self._parts = []
        self._pending = 0
        if self._small and len(payload) > _MAX_SMALL_BYTES:
            self._fail(MESSAGE_TOO_BIG, "the message is too big")
        elif self._is_text and not is_utf_8(payload):
            self._fail(INVALID_DATA, "a text frame is not UTF-8")
        elif self.role is not None:
            self.role.received(payload, is_text=self._is_text)

    def _count_frame(self) -> None:
        self._frames += 1
        limit = _MAX_FRAMES if self.replay_lock is None else _MAX_FRAMES_OF_TOPICS
        if self._frames > limit:
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

    def send_message(self, message: Sent) -> None:
        self.send(control_frame(message))

    def _send_late(self) -> None:
        late, self._late_reply = self._late_reply, None
        if late is not None:
            self.send(late)

    def _reply(self, replies: list[bytes]) -> None:
        """Send the protocol's replies: pongs, a close frame, and an empty reply that means EOF."""
        for reply in replies:
            if self.transport.is_closing():
                return
            if not reply:
                self.transport.write_eof()
            elif not self.is_paused or self._protocol.state is not State.OPEN:
                self.transport.write(reply)
            else:
                self._late_reply = reply  # a pong; only the last one matters (RFC 6455 §5.5.3)

    # The end.

    def close(self, code: int, reason: str, *, seconds: float = CLOSE_SECONDS) -> None:
        """Send a close frame after all other data. Abort if the client does not answer in time.

        The reason may have at most 123 bytes (RFC 6455 §7.4).
        """
        if self.has_ended or self._protocol.state is not State.OPEN:
            return
        self._protocol.send_close(code, reason)
        self._reply(self._protocol.data_to_send())
        self._end(seconds)

    def _fail(self, code: int, reason: str) -> None:
        """Close after a protocol violation, and process no more input (RFC 6455 §7.1.7)."""
        if not self.has_ended:
            self._protocol.fail(code, reason)
            self._reply(self._protocol.data_to_send())
            self._end(CLOSE_SECONDS)

    def cut_off(self, *, seconds: float) -> None:
        self.close(TRY_AGAIN_LATER, "queue overflow", seconds=seconds)

    def go_away(self, reason: str = "the hub stops") -> None:
        self.close(GOING_AWAY, reason)

    def _ended(self) -> None:
        self._parts = []
        self._late_reply = None
        self.resume_reading()
        LiveConnection._ended(self)

    # Liveness.

    def check(self) -> None:
        """Send a ping, or abort the connection if the client did not answer the last one.

        If data is waiting for the client, abort only if the client has not read any of it.
        """
        if self._is_held:
            return  # the answer may be waiting unread
        if self._has_stalled() or not (self.is_paused or self._has_received):
            self.transport.abort()
            return
        self._has_received, self._frames = self.is_paused, 0
        if not self.is_paused:
            self.send(_PING_FRAME)


class DashboardConnection(WebSocketConnection):
    """A WebSocket of a dashboard page. It does not count as a subscriber."""

    __slots__ = ()

    kind: ClassVar[DeliveryTransport] = DeliveryTransport.DASHBOARD


class SubscribeFrame(Struct, frozen=True, tag="subscribe"):
    """A Destination subscribes to a topic or a part of it, from a given instant or live only."""

    topic: str
    since: str | None = None
    select: PushSelection | None = None


class PublishFrame(Struct, frozen=True, tag="publish"):
    """A Source announces that fragments of a topic follow."""

    topic: str


class EndFrame(Struct, frozen=True, tag="end"):
    """A client ends its role for one of many topics."""

    topic: str


class DocumentsFrame(Struct, frozen=True, tag="documents"):
    """The documents that follow belong to this topic, on a connection for many topics."""

    topic: str


class SubscribedFrame(Struct, frozen=True, tag="subscribed", omit_defaults=True):
    """The hub accepts a subscription, and will send the selection.

    The log ends at `through`, and the topic has `audience` subscribers.
    """

    topic: str
    through: str | None
    audience: int
    select: PushSelection = EVERYTHING


class GapFrame(Struct, frozen=True, tag="gap"):
    """The log begins at `from`, after the requested instant."""

    topic: str
    from_: str = msgspec.field(name="from")


class PublishingFrame(Struct, frozen=True, tag="publishing"):
    """The hub will accept fragments. Its log ends at `through`."""

    topic: str
    through: str | None


class AcceptedFrame(Struct, frozen=True, tag="accepted"):
    """All fragments up to the one that ends at `until` are durable."""

    topic: str
    until: str


class ErrorFrame(Struct, frozen=True, tag="error", omit_defaults=True):
    """The hub refuses a frame, and closes the connection or ends one of many topics."""

    code: Code
    message: str
    topic: str | None = None


_TEXT, _BINARY = 0x81, 0x82

First = SubscribeFrame | PublishFrame
OfTopics = First | EndFrame | DocumentsFrame
Sent = SubscribedFrame | GapFrame | PublishingFrame | AcceptedFrame | ErrorFrame | DocumentsFrame

_decode = msgspec.json.Decoder(First).decode
_decode_of_topics = msgspec.json.Decoder(OfTopics).decode
_encode = msgspec.json.Encoder().encode


def decode(text: bytes) -> First:
    """Decode the first frame of a connection for one topic."""
    try:
        frame: First = _decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refusal(Code.BAD_REQUEST, f"not a subscribe or publish frame: {error}") from None
    return frame


def decode_of_topics(text: bytes) -> OfTopics:
    """Decode a frame of a connection for many topics."""
    try:
        frame: OfTopics = _decode_of_topics(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refusal(Code.BAD_REQUEST, f"not a frame of this protocol: {error}") from None
    return frame


def instant(value: Instant | None) -> str | None:
    return None if value is None else format_datetime(value)


def control_frame(message: Sent) -> bytes:
    return _frame(_encode(message))


def document_frames(fragments: Iterable[Fragment]) -> bytes:
    """Encode one frame per fragment. All subscribers of a topic share these bytes."""
    return b"".join([_frame(each.body, _TEXT if is_text(each) else _BINARY) for each in fragments])


def _frame(payload: bytes, head: int = _TEXT) -> bytes:
    """Encode an unmasked, unfragmented frame (RFC 6455 §5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((head, size)) + payload
    if size < 65_536:
        return struct.pack("!BBH", head, 126, size) + payload
    return struct.pack("!BBQ", head, 127, size) + payload
