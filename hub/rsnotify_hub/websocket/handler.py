"""`GET /ws`: who may open a WebSocket, and the role that its first frame gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from aiohttp import web

from rsnotify.errors import ConfigurationError
from rsnotify.selection.push_selection import EVERYTHING, PushSelection
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.live.connection import CLOSE_SECONDS, LiveConnection
from rsnotify_hub.live.connections import LiveConnections
from rsnotify_hub.live.replay import Replays
from rsnotify_hub.live.selections import SelectionGroups
from rsnotify_hub.live.subscribers import LiveChannel
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal, parse_since
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.urls import check_url
from rsnotify_hub.websocket.connection import (
    DashboardConnection,
    FrameHandler,
    WebSocketConnection,
)
from rsnotify_hub.websocket.frames import (
    POLICY_VIOLATION,
    TRY_AGAIN_LATER,
    ErrorFrame,
    PublishFrame,
    SubscribeFrame,
    decode,
    encode,
)
from rsnotify_hub.websocket.handshake import accept_upgrade
from rsnotify_hub.websocket.many_topics import ManyTopics
from rsnotify_hub.websocket.publishing import WebSocketPublication
from rsnotify_hub.websocket.subscribing import DASHBOARD_FRAMES, FRAMES, WebSocketSubscriber

_CLOSE_CODES = {
    Code.BAD_REQUEST: POLICY_VIOLATION,
    Code.FORBIDDEN: POLICY_VIOLATION,
    Code.INVALID_FRAGMENT: POLICY_VIOLATION,
    Code.UNAVAILABLE: TRY_AGAIN_LATER,
    Code.TOO_MANY: TRY_AGAIN_LATER,
}

#: Handles the first message of a connection.
_Begin = Callable[..., None]

_NO_FIRST_FRAME = Refusal(Code.BAD_REQUEST, "no subscribe or publish frame arrived")


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
        answer, of_many = accept_upgrade(request)
        begin = self._begin_many if of_many else self._begin
        return self._connections.accept(request, answer, partial(self._connect, request, begin))

    def _connect(
        self,
        request: web.Request,
        begin: _Begin,
        transport: asyncio.Transport,
        lost: Callable[[LiveConnection], None],
    ) -> WebSocketConnection:
        kind = DashboardConnection if "dashboard" in request.query else WebSocketConnection
        connection = kind(transport, lost, max_bytes=self._intake.max_bytes)
        connection.handler = _FirstFrame(
            partial(begin, connection, request),
            partial(self.refuse, connection, _NO_FIRST_FRAME),
            self._intake.request_seconds,
        )
        return connection

    def _begin(
        self,
        connection: WebSocketConnection,
        request: web.Request,
        payload: bytes,
        *,
        is_text: bool,
    ) -> None:
        """Handle the first message of a connection for one topic."""
        refuse = partial(self.refuse, connection)
        try:
            if not is_text:
                raise Refusal(Code.BAD_REQUEST, "frames are text frames")
            frame = decode(payload)
            check_url(frame.topic, "topic")
            if isinstance(frame, PublishFrame):
                connection.handler = self._publish(connection, request, frame.topic, refuse)
            else:
                is_page = isinstance(connection, DashboardConnection)
                subscriber = WebSocketSubscriber(
                    connection,
                    frame.topic,
                    self._channel,
                    DASHBOARD_FRAMES if is_page else FRAMES,
                    refuse=refuse,
                )
                self._subscribe(request, subscriber, frame)
                connection.handler = subscriber
        except Refusal as refusal:
            refuse(refusal)

    def _begin_many(
        self,
        connection: WebSocketConnection,
        request: web.Request,
        payload: bytes,
        *,
        is_text: bool,
    ) -> None:
        """Handle the first message of a connection for many topics."""
        connection.handler = topics = ManyTopics(
            connection,
            self._channel,
            partial(self._subscribe, request),
            partial(self._publish, connection, request),
            partial(self._connections.add_topic, request.remote),
            partial(self.refuse, connection),
        )
        topics.received(payload, is_text=is_text)

    def _publish(
        self,
        connection: WebSocketConnection,
        request: web.Request,
        topic: str,
        refuse: Callable[[Refusal], None],
    ) -> WebSocketPublication:
        permission = self._intake.authorizer.check_publisher(request, topic)
        connection.allow_large()
        publication = WebSocketPublication(
            connection, topic, self._topics, self._intake, permission.check, refuse
        )
        self._publishing.add(publication)
        publication.ended.add_done_callback(lambda _: self._publishing.discard(publication))
        publication.start()
        return publication

    def _subscribe(
        self, request: web.Request, subscriber: WebSocketSubscriber, frame: SubscribeFrame
    ) -> None:
        since, select = parse_since(frame.since), select_of(frame)
        address, group = request.remote or "", None
        if select:
            group = self._groups.enter(TopicSelection(frame.topic, select), address)
        if group is not None:
            subscriber.key = group.selection.key
            subscriber.leave = partial(self._groups.leave, group, address)
        self._replays.start(subscriber, since, group, select)

    def refuse(
        self, connection: WebSocketConnection, refusal: Refusal, topic: str | None = None
    ) -> None:
        """Send a refusal; close the connection unless it is of one of its many topics."""
        if connection.has_ended:
            return
        self._statistics.refused[refusal.code] += 1
        frame = ErrorFrame(code=refusal.code, message=refusal.reason, topic=topic)
        connection.send_text(encode(frame))
        if topic is None:
            connection.close(_CLOSE_CODES[refusal.code], refusal.code)

    async def finish(self) -> None:
        """Acknowledge what Sources have sent, and accept no more of it."""
        for publication in self._publishing:
            publication.finish()
        if self._publishing:
            ended = [publication.ended for publication in self._publishing]
            await asyncio.wait(ended, timeout=CLOSE_SECONDS)


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
