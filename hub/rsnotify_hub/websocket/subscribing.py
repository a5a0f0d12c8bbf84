"""The Destination's side of `GET /ws`: it receives a topic, or one of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rsnotify.format.datetimes import format_datetime
from rsnotify_hub.fragments.fragment import Fragment
from rsnotify_hub.live.encoding import Encoding
from rsnotify_hub.live.subscribers import LiveSubscriber, Opening
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import DeliveryTransport
from rsnotify_hub.websocket.connection import FrameHandler, WebSocketConnection
from rsnotify_hub.websocket.frames import (
    INTERNAL_ERROR,
    DocumentsFrame,
    GapFrame,
    SubscribedFrame,
    document_frames,
    encode,
    instant,
    text_frame,
)


class WebSocketFrames(Encoding):
    """One frame for each fragment."""

    def encode(self, fragments: Sequence[Fragment]) -> bytes:
        return document_frames(fragments)


FRAMES = WebSocketFrames(DeliveryTransport.WEBSOCKET)
DASHBOARD_FRAMES = WebSocketFrames(DeliveryTransport.DASHBOARD)


class NamedFrames(Encoding):
    """A frame that names the topic, and one for each fragment. Those of a topic are equal."""

    def __init__(self, topic: str) -> None:
        super().__init__(DeliveryTransport.WEBSOCKET)
        self._head = text_frame(encode(DocumentsFrame(topic)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedFrames) and self._head == other._head

    def __hash__(self) -> int:
        return hash(self._head)

    def encode(self, fragments: Sequence[Fragment]) -> bytes:
        return self._head + document_frames(fragments) if fragments else b""


@dataclass(slots=True, eq=False, repr=False)
class WebSocketSubscriber(LiveSubscriber, FrameHandler):
    """A WebSocket that receives a topic. `refuse` sends a refusal, and closes it."""

    connection: WebSocketConnection
    refuse: Callable[[Refusal], None] = field(kw_only=True)

    def opened(self, opening: Opening) -> None:
        frame = SubscribedFrame(
            topic=self.topic,
            through=instant(opening.through),
            audience=opening.audience,
            select=opening.select,
        )
        self.connection.send_text(encode(frame))
        if opening.begins is not None:
            begins = format_datetime(opening.begins)
            self.connection.send_text(encode(GapFrame(topic=self.topic, from_=begins)))

    def received(self, payload: bytes, *, is_text: bool) -> None:
        self.refuse(Refusal(Code.BAD_REQUEST, "a subscriber sends one frame only"))

    def refused(self, refusal: Refusal) -> None:
        self.refuse(refusal)

    def failed(self) -> None:
        self.connection.close(INTERNAL_ERROR, "the hub failed")


@dataclass(slots=True, eq=False, repr=False)
class TopicSubscriber(WebSocketSubscriber):
    """One of many topics of a WebSocket. `refuse` sends a refusal, and ends the topic."""

    def opened(self, opening: Opening) -> None:
        # What waits may be of an earlier subscription, which ends before this one begins.
        self.connection.send_queue(everything=True)
        WebSocketSubscriber.opened(self, opening)

    def failed(self) -> None:
        self.refuse(Refusal(Code.UNAVAILABLE, "the hub failed"))
