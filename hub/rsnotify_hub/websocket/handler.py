"""`GET /ws`: who may open a WebSocket, and the role that its first frame gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import format_datetime
from rsnotify.selection.push_selection import EVERYTHING, PushSelection
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.fragments.fragment import Fragment
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.live.connection import CLOSE_SECONDS, LiveConnection
from rsnotify_hub.live.connections import LiveConnections
from rsnotify_hub.live.encoding import Encoding
from rsnotify_hub.live.replay import Replays
from rsnotify_hub.live.selections import SelectionGroups
from rsnotify_hub.live.subscribers import LiveChannel, LiveSubscriber, Opening
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal, parse_since
from rsnotify_hub.statistics import DeliveryTransport, Statistics
from rsnotify_hub.urls import check_url
from rsnotify_hub.websocket.connection import FrameHandler, WebSocketConnection
from rsnotify_hub.websocket.frames import (
    INTERNAL_ERROR,
    POLICY_VIOLATION,
    TRY_AGAIN_LATER,
    ErrorFrame,
    GapFrame,
    PublishFrame,
    SubscribedFrame,
    SubscribeFrame,
    decode,
    document_frames,
    encode,
    instant,
)
from rsnotify_hub.websocket.handshake import accept_upgrade
from rsnotify_hub.websocket.publishing import WebSocketPublication

_CLOSE_CODES = {
    Code.BAD_REQUEST: POLICY_VIOLATION,
    Code.FORBIDDEN: POLICY_VIOLATION,
    Code.INVALID_FRAGMENT: POLICY_VIOLATION,
    Code.UNAVAILABLE: TRY_AGAIN_LATER,
    Code.TOO_MANY: TRY_AGAIN_LATER,
}

_NO_FIRST_FRAME = Refusal(Code.BAD_REQUEST, "no subscribe or publish frame arrived")


class WebSocketFrames(Encoding):
    """One frame for each fragment."""

    def encode(self, fragments: Sequence[Fragment]) -> bytes:
        return document_frames(fragments)


_FRAMES = WebSocketFrames(DeliveryTransport.WEBSOCKET)


class WebSocketHandler:
    """The handler of `GET /ws`."""

    def __init__(
        self,
        intake: FragmentIntake,
        topics: TopicLogs,
        channel: LiveChannel,
        groups: SelectionGroups,
        connections: LiveConnections,
        replays: Replays,
        statistics: Statistics,
    ) -> None:
        self._intake = intake
        self._topics = topics
        self._channel = channel
        self._groups = groups
        self._connections = connections
        self._replays = replays
        self._statistics = statistics
        self._publishing: set[WebSocketPublication] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self._connections.check(request)
        answer = accept_upgrade(request)
        return self._connections.accept(request, answer, partial(self._connect, request))

    def _connect(
        self,
        request: web.Request,
        transport: asyncio.Transport,
        lost: Callable[[LiveConnection], None],
    ) -> WebSocketConnection:
        connection = WebSocketConnection(transport, lost, max_bytes=self._intake.max_bytes)
        connection.handler = _FirstFrame(
            partial(self._first_message, connection, request),
            partial(self.refuse, connection, _NO_FIRST_FRAME),
            self._intake.request_seconds,
        )
        return connection

    def _first_message(
        self,
        connection: WebSocketConnection,
        request: web.Request,
        payload: bytes,
        *,
        is_text: bool,
    ) -> None:
        try:
            if not is_text:
                raise Refusal(Code.BAD_REQUEST, "frames are text frames")
            frame = decode(payload)
            check_url(frame.topic, "topic")
            if isinstance(frame, PublishFrame):
                self._publish(connection, request, frame)
            else:
                self._subscribe(connection, request, frame)
        except Refusal as refusal:
            self.refuse(connection, refusal)

    def _publish(
        self, connection: WebSocketConnection, request: web.Request, frame: PublishFrame
    ) -> None:
        permission = self._intake.authorizer.check_publisher(request, frame.topic)
        connection.allow_large()
        publication = WebSocketPublication(
            connection,
            frame.topic,
            self._topics,
            self._intake,
            permission.check,
            partial(self.refuse, connection),
        )
        connection.handler = publication
        self._publishing.add(publication)
        publication.ended.add_done_callback(lambda _: self._publishing.discard(publication))
        publication.start()

    def _subscribe(
        self, connection: WebSocketConnection, request: web.Request, frame: SubscribeFrame
    ) -> None:
        since, select = parse_since(frame.since), select_of(frame)
        address, group = request.remote or "", None
        if select:
            group = self._groups.enter(TopicSelection(frame.topic, select), address)
        subscriber = WebSocketSubscriber(
            connection, frame.topic, self._channel, _FRAMES, handler=self
        )
        if group is not None:
            subscriber.key = group.selection.key
            subscriber.leave = partial(self._groups.leave, group, address)
        connection.handler = subscriber
        self._replays.start(subscriber, since, group, select)

    def refuse(self, connection: WebSocketConnection, refusal: Refusal) -> None:
        if connection.has_ended:
            return
        self._statistics.refused[refusal.code] += 1
        connection.send_text(encode(ErrorFrame(code=refusal.code, message=refusal.reason)))
        connection.close(_CLOSE_CODES[refusal.code], refusal.code)

    async def finish(self) -> None:
        """Acknowledge what Sources have sent, and accept no more of it."""
        for publication in self._publishing:
            publication.finish()
        if self._publishing:
            ended = [publication.ended for publication in self._publishing]
            await asyncio.wait(ended, timeout=CLOSE_SECONDS)


@dataclass(slots=True, eq=False, repr=False)
class WebSocketSubscriber(LiveSubscriber, FrameHandler):
    """A WebSocket that receives a topic."""

    connection: WebSocketConnection
    handler: WebSocketHandler = field(kw_only=True)

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
        refusal = Refusal(Code.BAD_REQUEST, "a subscriber sends one frame only")
        self.handler.refuse(self.connection, refusal)

    def refused(self, refusal: Refusal) -> None:
        self.handler.refuse(self.connection, refusal)

    def failed(self) -> None:
        self.connection.close(INTERNAL_ERROR, "the hub failed")


class _FirstFrame(FrameHandler):
    """Waits for the first frame of a client, for a limited time."""

    __slots__ = ("_received", "_timer")

    def __init__(
        self, received: Callable[..., None], timed_out: Callable[[], None], seconds: float
    ) -> None:
        self._received = received
        self._timer = asyncio.get_running_loop().call_later(seconds, timed_out)

    def received(self, payload: bytes, *, is_text: bool) -> None:
        self._timer.cancel()
        self._received(payload, is_text=is_text)

    def lost(self) -> None:
        self._timer.cancel()


def select_of(frame: SubscribeFrame) -> PushSelection:
    try:
        return (frame.select or EVERYTHING).canonical()
    except ConfigurationError as error:
        raise Refusal(Code.BAD_REQUEST, f"select: {error}") from None
