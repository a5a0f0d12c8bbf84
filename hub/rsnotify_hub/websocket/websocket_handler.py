"""`GET /ws`: who may open a WebSocket, and the role that its first frame gives it.

The Destination's side of `GET /ws`: it receives a topic, or one of many.

A WebSocket for many topics: its subscriptions and publications, each of which ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from aiohttp import web

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import format_datetime
from rsnotify.selection import EVERYTHING, PushSelection
from rsnotify_hub.filtering import TopicSelection
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.live.connections import CLOSE_SECONDS, LiveConnection, LiveConnections
from rsnotify_hub.live.replay import Replays, SelectionGroups
from rsnotify_hub.live.subscribers import (
    CUT_OFF_SECONDS,
    Encoding,
    LiveChannel,
    LiveSubscriber,
    Opening,
)
from rsnotify_hub.log.topic_log import TopicLogs
from rsnotify_hub.refusals import Code, Refusal, parse_since
from rsnotify_hub.statistics import DeliveryTransport, Statistics
from rsnotify_hub.urls import check_url
from rsnotify_hub.websocket.publication import WebSocketPublication
from rsnotify_hub.websocket.websocket_connection import (
    INTERNAL_ERROR,
    POLICY_VIOLATION,
    TRY_AGAIN_LATER,
    DashboardConnection,
    DocumentsFrame,
    EndFrame,
    ErrorFrame,
    GapFrame,
    PublishFrame,
    SubscribedFrame,
    SubscribeFrame,
    WebSocketConnection,
    WebSocketRole,
    accept_upgrade,
    decode,
    decode_of_topics,
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
class WebSocketSubscriber(LiveSubscriber, WebSocketRole):
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


_Role: TypeAlias = TopicSubscriber | WebSocketPublication
_Refuse: TypeAlias = Callable[[Refusal], None]

#: How many bytes of frames are answered while the client does not read the answers.
_UNREAD = 4 * 1024 * 1024
#: The most that an answer adds to what it repeats of its frame, in bytes.
_OVERHEAD = 256


class ManyTopics(WebSocketRole):
    """The role of a WebSocket for many topics.

    Args:
        subscribe: Begins the replay to a subscriber.
        publish: Begins a publication on a topic, which calls a function if it is refused.
        add_topic: Counts a topic in the limits, and returns what ends that.
        refuse: Sends a refusal of a topic, or, without a topic, of all, and then closes.
    """

    def __init__(
        self,
        connection: WebSocketConnection,
        channel: LiveChannel,
        subscribe: Callable[[TopicSubscriber, SubscribeFrame], None],
        publish: Callable[[str, _Refuse], WebSocketPublication],
        add_topic: Callable[[], Callable[[], None]],
        refuse: Callable[[Refusal, str | None], None],
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._subscribe = subscribe
        self._publish = publish
        self._add_topic = add_topic
        self._refuse = refuse
        self._roles: dict[str, tuple[_Role, Callable[[], None]]] = {}
        #: The topic of the documents that follow.
        self._current: str | None = None
        self._unread = 0
        connection.replay_lock = asyncio.Lock()

    # Calls of the connection.

    def received(self, payload: bytes, *, is_text: bool) -> None:
        try:
            if is_text and payload.startswith(b"{"):
                self._process(decode_of_topics(payload))
                self._limit_answers(payload)
            elif self._current is None:
                raise Refusal(Code.BAD_REQUEST, "a document came before a documents frame")
            else:
                self._pass_on(self._current, payload, is_text=is_text)
        except Refusal as refusal:
            self._refuse(refusal, None)

    def resumed(self) -> None:
        self._unread = 0
        for role, _ in self._roles.values():
            if isinstance(role, WebSocketPublication):
                role.resumed()

    def lost(self) -> None:
        for topic in list(self._roles):
            self._end(topic)

    # Topics.

    def _limit_answers(self, payload: bytes) -> None:
        if self._connection.is_paused:
            self._unread += len(payload) + _OVERHEAD
            if self._unread > _UNREAD:
                self._connection.cut_off(seconds=CUT_OFF_SECONDS)

    def _process(self, frame: SubscribeFrame | PublishFrame | EndFrame | DocumentsFrame) -> None:
        if isinstance(frame, DocumentsFrame):
            self._current = frame.topic
            return
        self._end(frame.topic)
        if isinstance(frame, EndFrame):
            return
        try:
            self._begin(frame)
        except Refusal as refusal:
            self._refuse_topic(frame.topic, refusal)

    def _begin(self, frame: SubscribeFrame | PublishFrame) -> None:
        topic = check_url(frame.topic, "topic")
        refuse = partial(self._refuse_topic, topic)
        release = self._add_topic()
        try:
            role: _Role
            if isinstance(frame, PublishFrame):
                role = self._publish(topic, refuse)
            else:
                encoding = NamedFrames(topic)
                role = TopicSubscriber(
                    self._connection, topic, self._channel, encoding, refuse=refuse
                )
                self._subscribe(role, frame)
        except BaseException:
            release()
            raise
        self._roles[topic] = role, release

    def _pass_on(self, topic: str, payload: bytes, *, is_text: bool) -> None:
        role, _ = self._roles.get(topic, (None, None))
        # A document of a topic that was refused may have been on its way.
        if isinstance(role, WebSocketPublication):
            role.received(payload, is_text=is_text)

    def _refuse_topic(self, topic: str, refusal: Refusal) -> None:
        self._end(topic)
        self._refuse(refusal, topic)

    def _end(self, topic: str) -> None:
        if topic in self._roles:
            role, release = self._roles.pop(topic)
            role.lost()
            release()
            if isinstance(role, WebSocketPublication):
                # It reads no more once it was refused, however much has arrived.
                self._connection.resume_reading()


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
        connection.role = _FirstFrame(
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
                connection.role = self._publish(connection, request, frame.topic, refuse)
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
                connection.role = subscriber
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
        connection.role = topics = ManyTopics(
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


class _FirstFrame(WebSocketRole):
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
