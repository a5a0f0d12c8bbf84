"""The frames of the hub's WebSocket (docs/protocol.md), as values and bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.selection.push_selection import EVERYTHING, PushSelection
from rsnotify_hub.fragments.content import is_text
from rsnotify_hub.fragments.fragment import Fragment
from rsnotify_hub.refusals import Code, Refusal


class SubscribeFrame(Struct, frozen=True, tag="subscribe"):
    """A Destination subscribes to a topic or a selection from it, since an instant or live only."""

    topic: str
    since: str | None = None
    select: PushSelection | None = None


class PublishFrame(Struct, frozen=True, tag="publish"):
    """A Source announces that fragments of a topic follow."""

    topic: str


class EndFrame(Struct, frozen=True, tag="end"):
    """A client ends one of many topics."""

    topic: str


class DocumentsFrame(Struct, frozen=True, tag="documents"):
    """The documents after it are of this one of many topics."""

    topic: str


class SubscribedFrame(Struct, frozen=True, tag="subscribed", omit_defaults=True):
    """The hub will send the selection; its log ends at `through`; `audience` counts subscribers."""

    topic: str
    through: str | None
    audience: int
    select: PushSelection = EVERYTHING


class GapFrame(Struct, frozen=True, tag="gap"):
    """The log begins only at `from`."""

    topic: str
    from_: str = msgspec.field(name="from")


class PublishingFrame(Struct, frozen=True, tag="publishing"):
    """The hub accepts fragments; its log ends at `through`."""

    topic: str
    through: str | None


class AcceptedFrame(Struct, frozen=True, tag="accepted"):
    """All fragments up to the one that ends at `until` are durable."""

    topic: str
    until: str


class ErrorFrame(Struct, frozen=True, tag="error", omit_defaults=True):
    """The hub refuses a frame, and closes the connection, or ends one of its many topics."""

    code: Code
    message: str
    topic: str | None = None


#: Close codes (RFC 6455 §7.4.1 and its registry).
GOING_AWAY = 1001
INVALID_DATA = 1007
POLICY_VIOLATION = 1008
MESSAGE_TOO_BIG = 1009
INTERNAL_ERROR = 1011
TRY_AGAIN_LATER = 1013

_TEXT, _BINARY = 0x81, 0x82

First = SubscribeFrame | PublishFrame
OfTopics = First | EndFrame | DocumentsFrame
Sent = SubscribedFrame | GapFrame | PublishingFrame | AcceptedFrame | ErrorFrame | DocumentsFrame

_decode = msgspec.json.Decoder(First).decode
_decode_of_topics = msgspec.json.Decoder(OfTopics).decode
encode: Callable[[Sent], bytes] = msgspec.json.Encoder().encode


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


def text_frame(payload: bytes) -> bytes:
    """Encode an unmasked, unfragmented text frame (RFC 6455 §5.2)."""
    return _frame(_TEXT, payload)


def document_frames(fragments: Iterable[Fragment]) -> bytes:
    """Encode one frame for each fragment; all subscribers of a topic share these bytes."""
    return b"".join([_frame(_TEXT if is_text(each) else _BINARY, each.body) for each in fragments])


def _frame(head: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return bytes((head, size)) + payload
    if size < 65_536:
        return struct.pack("!BBH", head, 126, size) + payload
    return struct.pack("!BBQ", head, 127, size) + payload
