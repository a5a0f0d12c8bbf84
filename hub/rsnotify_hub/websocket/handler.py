"""`GET /ws`: who may open a WebSocket, and the role that its first frame gives it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aiohttp import web

from rsnotify.selection.push_selection import EVERYTHING
from rsnotify_hub.access.clients import is_loopback
from rsnotify_hub.access.limits import RateLimits
from rsnotify_hub.config.configuration import WebSocketConfig
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.http.connection_limit import ConnectionLimit
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal, parse_since
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.urls import check_url
from rsnotify_hub.websocket.connection import CLOSE_SECONDS, FrameHandler, WebSocketConnection
from rsnotify_hub.websocket.frames import (
    GOING_AWAY,
    INTERNAL_ERROR,
    POLICY_VIOLATION,
    TRY_AGAIN_LATER,
    ErrorFrame,
    PublishFrame,
    SubscribeFrame,
    decode,
    encode,
)
from rsnotify_hub.websocket.handshake import Upgraded, accept_upgrade, hand_over
from rsnotify_hub.websocket.keep_alive import KeepAlive
from rsnotify_hub.websocket.origins import Origins
from rsnotify_hub.websocket.publishing import WebSocketPublication
from rsnotify_hub.websocket.replay import FullReplay, replay, select_of
from rsnotify_hub.websocket.selections import SelectionGroups
from rsnotify_hub.websocket.subscribers import WebSocketChannel, WebSocketSubscriber

log = logging.getLogger("rsnotify.hub.websocket")

_CLOSE_CODES = {
    Code.BAD_REQUEST: POLICY_VIOLATION,
    Code.FORBIDDEN: POLICY_VIOLATION,
    Code.INVALID_FRAGMENT: POLICY_VIOLATION,
    Code.UNAVAILABLE: TRY_AGAIN_LATER,
    Code.TOO_MANY: TRY_AGAIN_LATER,
}

_NO_FIRST_FRAME = Refusal(Code.BAD_REQUEST, "no subscribe or publish frame arrived")

_Work = Callable[[], Coroutine[Any, Any, None]]


class WebSocketHandler:
    """The handler of `GET /ws`. Pages of the public URL may open a WebSocket."""

    def __init__(
        self,
        intake: FragmentIntake,
        topics: TopicLogs,
        channel: WebSocketChannel,
        groups: SelectionGroups,
        limits: RateLimits,
        statistics: Statistics,
        configuration: WebSocketConfig,
        *,
        public_url: str,
    ) -> None:
        self._intake = intake
        self._topics = topics
        self._channel = channel
        self._groups = groups
        self._limits = limits
        self._statistics = statistics
        self._origins = Origins(public_url, configuration.websocket_origins)
        self._limit = ConnectionLimit(
            configuration.max_websockets, configuration.websockets_per_client, is_loopback
        )
        self._keep_alive = KeepAlive(configuration.websocket_ping_seconds)
        self._publishing: set[WebSocketPublication] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def count(self) -> int:
        return len(self._keep_alive)

    def queued(self) -> int:
        """Return the number of bytes that wait for clients to read."""
        connections = self._keep_alive.connections()
        waiting = (each.transport.get_write_buffer_size() for each in connections)
        return sum(waiting) + self._channel.queued()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        answer = accept_upgrade(request)
        hand_over(request, answer, partial(self._connect, request))
        return Upgraded()

    def _check(self, request: web.Request) -> None:
        if not self._origins.allows(request.headers.get("Origin"), request.host):
            # Not a Refusal, whose answer would request a token: none would help.
            self._statistics.refused[Code.FORBIDDEN] += 1
            raise web.HTTPForbidden(text="pages of this origin may not open a WebSocket here\n")
        self._limits.connections.check(request.remote)
        if self._limit.is_full or self._limit.is_client_full(request.remote or ""):
            raise Refusal(Code.TOO_MANY, "too many WebSockets are open; try again later")

    def _connect(
        self, request: web.Request, transport: asyncio.Transport, release: Callable[[], None]
    ) -> WebSocketConnection:
        address = request.remote or ""
        self._limit.acquire(address)

        def lost(connection: WebSocketConnection) -> None:
            release()
            self._limit.release(address)
            self._keep_alive.remove(connection)

        max_bytes = self._intake.max_bytes
        connection = WebSocketConnection(transport, max_bytes=max_bytes, on_lost=lost)
        connection.handler = _FirstFrame(
            partial(self._first_message, connection, request),
            partial(self.refuse, connection, _NO_FIRST_FRAME),
            self._intake.request_seconds,
        )
        self._keep_alive.add(connection)
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
        create = partial(
            WebSocketSubscriber, connection, frame.topic, self._channel, self._refuse_more
        )
        if group is None:
            subscriber = create()
        else:
            leave = partial(self._groups.leave, group, address)
            subscriber = create(group.selection.key, leave)
        connection.handler = subscriber
        self._channel.enter(subscriber)
        source = group or FullReplay(self._topics, frame.topic)
        granted = select if group else EVERYTHING
        work = partial(replay, subscriber, since, self._topics, source, granted)
        subscriber.cancel_replay = self._begin(connection, work).cancel

    def _begin(self, connection: WebSocketConnection, work: _Work) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run(connection, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, connection: WebSocketConnection, work: _Work) -> None:
        try:
            await work()
        except Refusal as refusal:
            self.refuse(connection, refusal)
        except Exception:
            # After a fault of the hub, the client reconnects, and the others are not affected.
            log.exception("a connection failed")
            connection.close(INTERNAL_ERROR, "the hub failed")

    def refuse(self, connection: WebSocketConnection, refusal: Refusal) -> None:
        if connection.has_ended:
            return
        self._statistics.refused[refusal.code] += 1
        connection.send_text(encode(ErrorFrame(code=refusal.code, message=refusal.reason)))
        connection.close(_CLOSE_CODES[refusal.code], refusal.code)

    def _refuse_more(self, connection: WebSocketConnection) -> None:
        self.refuse(connection, Refusal(Code.BAD_REQUEST, "a subscriber sends one frame only"))

    async def close(self) -> None:
        """Acknowledge what Sources have sent, then close every connection."""
        for publication in self._publishing:
            publication.finish()
        if self._publishing:
            ended = [publication.ended for publication in self._publishing]
            await asyncio.wait(ended, timeout=CLOSE_SECONDS)
        for connection in self._keep_alive.connections():
            connection.close(GOING_AWAY, "the hub stops")
        # Connections that do not answer in time are aborted.
        await self._keep_alive.wait_until_empty()


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
