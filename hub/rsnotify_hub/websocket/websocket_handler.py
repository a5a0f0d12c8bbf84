"""`GET /ws`: the client publishes or receives a topic, as its first frame says.

With the subprotocol `rsnotify.topics`, a client uses many topics on one connection. It may publish
on some and subscribe to others, and each of these roles ends independently (`ManyTopics`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from aiohttp import web

from rsnotify.errors import ConfigurationError, DocumentError, StorageError
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.selection import EVERYTHING, PushSelection
from rsnotify_hub.filtering import TopicSelection
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.live.connections import CLOSE_SECONDS, LiveConnection, LiveConnections, TopicRole
from rsnotify_hub.live.subscribers import (
    CUT_OFF_SECONDS,
    Encoding,
    LiveChannel,
    LiveSubscriber,
    Opening,
    Replays,
    SelectionGroups,
)
from rsnotify_hub.refusals import Code, Refusal, parse_since
from rsnotify_hub.statistics import DeliveryTransport, Statistics
from rsnotify_hub.topic_log import TopicLogs
from rsnotify_hub.urls import check_url
from rsnotify_hub.websocket.websocket_connection import (
    INTERNAL_ERROR,
    AcceptedFrame,
    DashboardConnection,
    DocumentsFrame,
    EndFrame,
    ErrorFrame,
    GapFrame,
    PublishFrame,
    PublishingFrame,
    SubscribedFrame,
    SubscribeFrame,
    WebSocketConnection,
    WebSocketRole,
    accept_upgrade,
    control_frame,
    decode,
    decode_of_topics,
    document_frames,
    instant,
)

logger = logging.getLogger("rsnotify.hub.websocket")

#: Number of fragments from one connection that may wait for the disk before the hub stops reading.
_MAX_IN_FLIGHT = 256
#: Number of bytes that the hub reads ahead on one connection.
_MAX_AHEAD_BYTES = 512 * 1024
#: Number of fragments read from one connection before the event loop continues.
_MAX_READ_AT_ONCE = 16


@dataclass(eq=False, repr=False)
class WebSocketPublication(WebSocketRole):
    """Appends the fragments of a Source to the log of its topic, and acknowledges them.

    Theory of operation. Small fragments are read and published without a task. Fragments that
    arrive while another is being read in a thread, or while many are waiting for the disk, go into
    a queue. While the queue is large, the hub does not read from the connection. An acknowledgement
    covers all earlier fragments, so the hub sends a single one for all fragments that became
    durable together.

    Args:
        check: Raises `Refusal` if the Source may no longer publish.
        refuse: Sends a refusal, and ends the publication. By then, everything that arrived earlier
            is durable and acknowledged.

    Attributes:
        ended: Done when, after `finish`, everything that arrived is durable or refused.
        passed: The number of published fragments.
    """

    connection: WebSocketConnection
    topic: str
    topics: TopicLogs
    intake: FragmentIntake
    check: Callable[[], None]
    refuse: Callable[[Refusal], None]

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # None is a message that is not text. It is refused after the earlier messages.
        self._messages: deque[bytes | None] = deque()
        self._size = 0
        self._has_finished = False
        self._refusal: Refusal | None = None
        self._reading: asyncio.Task[Fragment] | None = None
        self._in_flight = 0
        self.passed = 0
        self._last_append: asyncio.Future[None] | None = None
        self._failure: Refusal | None = None
        self._durable: Instant | None = None
        self._is_scheduled = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Send the end of the log to the Source."""
        state = self.topics.state(self.topic)
        through = instant(state.through if state else None)
        self.connection.send_message(PublishingFrame(topic=self.topic, through=through))

    def finish(self) -> None:
        """Accept no more messages, but append those that have arrived."""
        self._has_finished = True
        self._schedule()

    def received(self, payload: bytes, *, is_text: bool) -> None:
        if self._has_finished:
            return
        if not is_text:
            self._messages.append(None)
            self._has_finished = True
        else:
            self._messages.append(payload)
            self._size += len(payload)
        if self._size > _MAX_AHEAD_BYTES:
            self.connection.pause_reading()
        if not self._is_scheduled:
            self._continue()

    def publishes(self) -> bool:
        return True

    def topic_roles(self) -> Collection[WebSocketPublication]:
        return (self,)

    def remaining(self, end: int) -> int:
        return 0

    def resumed(self) -> None:
        self._schedule()

    def lost(self) -> None:
        self.finish()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        self._acknowledge()
        for _ in range(_MAX_READ_AT_ONCE):
            if not self._can_read():
                break
            self._refusal = self._attempt(self._read_next)
        else:
            self._schedule()
        self._end_if_done()

    def _attempt(self, work: Callable[[], None]) -> Refusal | None:
        """Call `work`, and return the refusal if it fails."""
        try:
            work()
        except Refusal as refusal:
            return refusal
        except DocumentError as error:
            return Refusal(Code.INVALID_FRAGMENT, str(error))
        except StorageError:
            return Refusal(Code.UNAVAILABLE, "the hub cannot write its log; try again later")
        except Exception:
            # An internal error must not affect other connections.
            logger.exception("internal error: a publication failed")
            return Refusal(Code.UNAVAILABLE, "internal error of the hub")
        return None

    def _can_read(self) -> bool:
        return bool(
            self._messages
            and self._reading is None
            and self._refusal is None
            and self._in_flight < _MAX_IN_FLIGHT
        )

    def _read_next(self) -> None:
        payload = self._messages.popleft()
        if payload is None:
            raise Refusal(Code.BAD_REQUEST, "send text frames, not binary frames")
        before, self._size = self._size, self._size - len(payload)
        if before > _MAX_AHEAD_BYTES >= self._size:
            self.connection.resume_reading()
        self.check()
        fragment = self.intake.read_small_fragment(payload)
        if fragment is not None:
            self._publish(fragment)
        else:
            self._reading = asyncio.create_task(self.intake.read_large_fragment(payload))
            self._reading.add_done_callback(self._on_large_read)

    def _on_large_read(self, reading: asyncio.Task[Fragment]) -> None:

        def publish() -> None:
            fragment = reading.result()
            if self._refusal is not None:
                raise self._refusal
            self.check()
            self._publish(fragment)

        self._reading = None
        self._refusal = self._attempt(publish)
        self._continue()

    def _publish(self, fragment: Fragment) -> None:
        last = self._last_append
        if last is not None and last.done() and last.exception() is not None:
            return  # `_on_append_done`, which is about to be called, ends the publication
        self._in_flight += 1
        self.passed += 1
        self._last_append = append = self.topics.publish(self.topic, fragment)
        append.add_done_callback(partial(self._on_append_done, fragment.until))

    def _on_append_done(self, until: Instant, append: asyncio.Future[None]) -> None:
        self._in_flight -= 1
        refusal = self._attempt(append.result)
        # No fragment after a lost one may be acknowledged.
        if refusal is not None:
            self._failure = self._failure or refusal
        elif self._failure is None:
            self._durable = until
        if self._in_flight or self._is_scheduled:
            self._schedule()
        else:
            self._continue()  # no other append is pending, so acknowledge at once

    def _acknowledge(self) -> None:
        if self._durable is None or self.connection.is_paused:
            return
        frame = AcceptedFrame(topic=self.topic, until=format_datetime(self._durable))
        self._durable = None
        self.connection.send_message(frame)

    def _expects_more(self) -> bool:
        return self._refusal is None and (bool(self._messages) or not self._has_finished)

    def _end_if_done(self) -> None:
        """End the publication after a failure, or when everything that arrived is durable."""
        if self.ended.done():
            return
        if self._failure is not None:
            self._refusal = self._failure
        elif self._in_flight or self._reading is not None or self._expects_more():
            return
        self._has_finished = True
        self.ended.set_result(None)
        if self._refusal is not None:
            self.refuse(self._refusal)


_NO_FIRST_FRAME = Refusal(Code.BAD_REQUEST, "no subscribe or publish frame arrived")

#: Maximum size of the answers that a client has not read, in bytes.
_MAX_UNREAD_BYTES = 4 * 1024 * 1024
#: Maximum size of an answer without what it repeats from the client's frame, in bytes.
_ANSWER_OVERHEAD_BYTES = 256

_Refuse: TypeAlias = Callable[[Refusal], None]


@dataclass(eq=False, repr=False)
class WebSocketHandler:
    intake: FragmentIntake
    topics: TopicLogs
    channel: LiveChannel
    groups: SelectionGroups
    connections: LiveConnections
    replays: Replays
    statistics: Statistics

    def __post_init__(self) -> None:
        self._publishing: set[WebSocketPublication] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.connections.check_admission(request)
        answer, is_for_many = accept_upgrade(request)
        kind = DashboardConnection if "dashboard" in request.query else WebSocketConnection

        def connect(
            transport: asyncio.Transport, lost: Callable[[LiveConnection], None]
        ) -> WebSocketConnection:
            connection = kind(transport, lost, max_bytes=self.intake.max_bytes)
            connection.role = _FirstFrame(self, connection, request, is_for_many)
            return connection

        return self.connections.accept(request, answer, connect)

    def publish(
        self, connection: WebSocketConnection, request: web.Request, topic: str, refuse: _Refuse
    ) -> WebSocketPublication:
        """Start a publication. If a refusal ends it, `refuse` is called with the refusal."""
        permission = self.intake.authorizer.check_publisher(request, topic)
        connection.allow_large()
        publication = WebSocketPublication(
            connection, topic, self.topics, self.intake, permission.check, refuse
        )
        self._publishing.add(publication)
        publication.ended.add_done_callback(lambda _: self._publishing.discard(publication))
        publication.start()
        return publication

    def subscribe(
        self, request: web.Request, subscriber: WebSocketSubscriber, frame: SubscribeFrame
    ) -> None:
        since, select = parse_since(frame.since), canonical_selection(frame)
        address, group = request.remote or "", None
        if select:
            group = self.groups.enter(TopicSelection(frame.topic, select), address)
        if group is not None:
            subscriber.key = group.selection.key
            subscriber.leave = partial(self.groups.leave, group, address)
        self.replays.start(subscriber, since, group)

    def refuse(
        self, connection: WebSocketConnection, refusal: Refusal, topic: str | None = None
    ) -> None:
        """Send a refusal, and close the connection unless the refusal is for one of many topics."""
        if connection.has_ended:
            return
        self.statistics.refused[refusal.code] += 1
        frame = ErrorFrame(code=refusal.code, message=refusal.reason, topic=topic)
        connection.send_message(frame)
        if topic is None:
            connection.close(refusal.close_code, refusal.code)

    async def finish(self) -> None:
        """Accept no more messages from Sources, and acknowledge those that have arrived."""
        for publication in self._publishing:
            publication.finish()
        if self._publishing:
            ended = [publication.ended for publication in self._publishing]
            await asyncio.wait(ended, timeout=CLOSE_SECONDS)


@dataclass(slots=True, eq=False, repr=False)
class _FirstFrame(WebSocketRole):
    """The role of a connection until its first frame, which determines the final role."""

    hub: WebSocketHandler
    connection: WebSocketConnection
    request: web.Request
    is_for_many: bool
    timer: asyncio.TimerHandle = field(init=False)

    def __post_init__(self) -> None:
        self.timer = asyncio.get_running_loop().call_later(
            self.hub.intake.request_seconds, self.hub.refuse, self.connection, _NO_FIRST_FRAME
        )

    def received(self, payload: bytes, *, is_text: bool) -> None:
        self.timer.cancel()
        hub, connection = self.hub, self.connection
        if self.is_for_many:
            topics = connection.role = ManyTopics(hub, connection, self.request)
            topics.received(payload, is_text=is_text)
            return
        try:
            if not is_text:
                raise Refusal(Code.BAD_REQUEST, "send text frames, not binary frames")
            connection.role = self._role(decode(payload))
        except Refusal as refusal:
            hub.refuse(connection, refusal)

    def _role(self, frame: SubscribeFrame | PublishFrame) -> WebSocketRole:
        hub, connection = self.hub, self.connection
        check_url(frame.topic, "topic")
        # Do not keep the request, which would be most of an idle connection's memory.
        refuse = partial(hub.refuse, connection)
        if isinstance(frame, PublishFrame):
            return hub.publish(connection, self.request, frame.topic, refuse)
        is_page = isinstance(connection, DashboardConnection)
        encoding = DASHBOARD_FRAMES if is_page else FRAMES
        subscriber = WebSocketSubscriber(
            connection, frame.topic, hub.channel, encoding, refuse=refuse
        )
        hub.subscribe(self.request, subscriber, frame)
        return subscriber

    def lost(self) -> None:
        self.timer.cancel()


def canonical_selection(frame: SubscribeFrame) -> PushSelection:
    try:
        return (frame.select or EVERYTHING).canonical()
    except ConfigurationError as error:
        raise Refusal(Code.BAD_REQUEST, f"select: {error}") from None


class WebSocketFrames(Encoding):
    """Encodes each fragment as one frame."""

    def encode(self, fragments: Sequence[Fragment]) -> bytes:
        return document_frames(fragments)


FRAMES = WebSocketFrames(DeliveryTransport.WEBSOCKET)
DASHBOARD_FRAMES = WebSocketFrames(DeliveryTransport.DASHBOARD)


class NamedFrames(Encoding):
    """Encodes fragments as a frame that names the topic, followed by one frame per fragment.

    Encodings for the same topic are equal.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(DeliveryTransport.WEBSOCKET)
        self._head = control_frame(DocumentsFrame(topic))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedFrames) and self._head == other._head

    def __hash__(self) -> int:
        return hash(self._head)

    def encode(self, fragments: Sequence[Fragment]) -> bytes:
        return self._head + document_frames(fragments) if fragments else b""


@dataclass(slots=True, eq=False, repr=False)
class WebSocketSubscriber(LiveSubscriber, WebSocketRole):
    """A WebSocket that receives one topic. `refuse` sends a refusal, and closes the WebSocket."""

    connection: WebSocketConnection
    refuse: Callable[[Refusal], None] = field(kw_only=True)

    def opened(self, opening: Opening) -> None:
        frame = SubscribedFrame(
            topic=self.topic,
            through=instant(opening.through),
            audience=opening.audience,
            select=opening.select,
        )
        self.connection.send_message(frame)
        if opening.begins is not None:
            begins = format_datetime(opening.begins)
            self.connection.send_message(GapFrame(topic=self.topic, from_=begins))

    def received(self, payload: bytes, *, is_text: bool) -> None:
        self.refuse(Refusal(Code.BAD_REQUEST, "a subscriber may send only one frame"))

    def refused(self, refusal: Refusal) -> None:
        self.refuse(refusal)

    def failed(self) -> None:
        self.connection.close(INTERNAL_ERROR, "internal error of the hub")


@dataclass(slots=True, eq=False, repr=False)
class TopicSubscriber(WebSocketSubscriber):
    """A subscription to one of many topics of a WebSocket.

    `refuse` sends a refusal, and ends this subscription only.
    """

    def opened(self, opening: Opening) -> None:
        # The queue may contain fragments of an earlier subscription, which must be sent first.
        self.connection.send_queue(everything=True)
        WebSocketSubscriber.opened(self, opening)

    def failed(self) -> None:
        self.refuse(Refusal(Code.UNAVAILABLE, "internal error of the hub"))


class ManyTopics(WebSocketRole):
    """The role of a WebSocket for many topics. Each topic has its own role."""

    def __init__(
        self, hub: WebSocketHandler, connection: WebSocketConnection, request: web.Request
    ) -> None:
        self._hub = hub
        self._connection = connection
        self._request = request
        self._roles: dict[str, tuple[TopicSubscriber | WebSocketPublication, Callable[[], None]]]
        self._roles = {}
        #: The topic of the next documents.
        self._current: str | None = None
        self._unread = 0
        self._published = 0
        connection.replay_lock = asyncio.Lock()

    def topic_roles(self) -> Collection[TopicRole]:
        return [role for role, _ in self._roles.values()]

    def receives(self) -> bool:
        return len(self._roles) > self._published

    def publishes(self) -> bool:
        return self._published > 0

    def replays(self) -> bool:
        return any(role.replays() for role, _ in self._roles.values())

    def received(self, payload: bytes, *, is_text: bool) -> None:
        try:
            if is_text and payload.startswith(b"{"):
                self._process(decode_of_topics(payload))
                self._limit_answers(payload)
            elif self._current is None:
                raise Refusal(Code.BAD_REQUEST, "send a documents frame before a document")
            else:
                role, _ = self._roles.get(self._current, (None, None))
                # The client may have sent a document before it received the topic's refusal.
                if isinstance(role, WebSocketPublication):
                    role.received(payload, is_text=is_text)
        except Refusal as refusal:
            self._hub.refuse(self._connection, refusal)

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
            self._refuse(frame.topic, refusal)

    def _begin(self, frame: SubscribeFrame | PublishFrame) -> None:
        topic = check_url(frame.topic, "topic")
        refuse = partial(self._refuse, topic)
        release = self._hub.connections.add_topic(self._request.remote)
        try:
            role: TopicSubscriber | WebSocketPublication
            if isinstance(frame, PublishFrame):
                role = self._hub.publish(self._connection, self._request, topic, refuse)
            else:
                role = TopicSubscriber(
                    self._connection, topic, self._hub.channel, NamedFrames(topic), refuse=refuse
                )
                self._hub.subscribe(self._request, role, frame)
        except BaseException:
            release()
            raise
        self._roles[topic] = role, release
        self._published += role.publishes()

    def _limit_answers(self, payload: bytes) -> None:
        if self._connection.is_paused:
            self._unread += len(payload) + _ANSWER_OVERHEAD_BYTES
            if self._unread > _MAX_UNREAD_BYTES:
                self._connection.cut_off(seconds=CUT_OFF_SECONDS)

    def _refuse(self, topic: str, refusal: Refusal) -> None:
        self._end(topic)
        self._hub.refuse(self._connection, refusal, topic)

    def _end(self, topic: str) -> None:
        if topic in self._roles:
            role, release = self._roles.pop(topic)
            self._published -= role.publishes()
            role.lost()
            release()
            if isinstance(role, WebSocketPublication):
                # It may have paused reading, and no longer resumes it.
                self._connection.resume_reading()

    def resumed(self) -> None:
        self._unread = 0
        for role, _ in self._roles.values():
            if isinstance(role, WebSocketPublication):
                role.resumed()

    def lost(self) -> None:
        for topic in list(self._roles):
            self._end(topic)
