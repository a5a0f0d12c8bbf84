"""`GET /ws`: who gets a WebSocket, and what its first frame makes of it."""

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
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.urls import check_url
from rsnotify_hub.websocket.connection import CLOSE_SECONDS, Connection
from rsnotify_hub.websocket.frames import (
    GOING_AWAY,
    INTERNAL_ERROR,
    POLICY_VIOLATION,
    TRY_AGAIN_LATER,
    Error,
    Publish,
    Subscribe,
    decode,
    encode,
)
from rsnotify_hub.websocket.handshake import Upgraded, hand_over, shake_hands
from rsnotify_hub.websocket.keeping import Keeper
from rsnotify_hub.websocket.origins import Origins
from rsnotify_hub.websocket.publishing import Inbox, take_fragments
from rsnotify_hub.websocket.replay import Whole, replay, select_of, since_of
from rsnotify_hub.websocket.selected import Selections, Selective
from rsnotify_hub.websocket.subscribers import Subscriber, WebSocketChannel

log = logging.getLogger("rsnotify.hub.websocket")

_CLOSE_CODES = {
    Code.BAD_REQUEST: POLICY_VIOLATION,
    Code.FORBIDDEN: POLICY_VIOLATION,
    Code.INVALID_FRAGMENT: POLICY_VIOLATION,
    Code.UNAVAILABLE: TRY_AGAIN_LATER,
    Code.TOO_MANY: TRY_AGAIN_LATER,
}

_Work = Callable[[], Coroutine[Any, Any, None]]

_NOTHING_CAME = "no subscribe or publish frame came"


class WebSockets:
    """The handler of `GET /ws`.

    Args:
        intake: Says who may publish, and reads fragments.
        topics: The logs.
        channel: The live subscribers.
        selections: What some of them asked for.
        limits: Say how often one client may connect.
        statistics: Where refusals are counted.
        configuration: The limits of one connection, and how many there may be.
        public_url: How others reach the hub: its own pages may open a WebSocket.
    """

    def __init__(
        self,
        intake: FragmentIntake,
        topics: TopicLogs,
        channel: WebSocketChannel,
        selections: Selections,
        limits: RateLimits,
        statistics: Statistics,
        configuration: WebSocketConfig,
        *,
        public_url: str,
    ) -> None:
        self._intake = intake
        self._topics = topics
        self._channel = channel
        self._selections = selections
        self._limits = limits
        self._statistics = statistics
        self._origins = Origins(public_url, configuration.websocket_origins)
        self._limit = ConnectionLimit(
            configuration.max_websockets, configuration.websockets_per_client, is_loopback
        )
        self._keeper = Keeper(configuration.websocket_ping_seconds)
        self._publishing: dict[Inbox, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def count(self) -> int:
        """Count the open connections."""
        return len(self._keeper)

    def queued(self) -> int:
        """Return the bytes that wait for clients to take them."""
        waiting = (each.transport.get_write_buffer_size() for each in self._keeper.connections())
        return sum(waiting) + self._channel.queued()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Open one connection.

        Raises:
            Refusal: There are too many.
            HTTPException: It is no WebSocket, or of a stranger's page.
        """
        self._check(request)
        answer = shake_hands(request)
        hand_over(request, answer, partial(self._connect, request))
        return Upgraded()

    def _check(self, request: web.Request) -> None:
        if not self._origins.allows(request.headers.get("Origin"), request.host):
            # No token would help, so that this is no refusal that asks for one.
            self._statistics.refused[Code.FORBIDDEN] += 1
            raise web.HTTPForbidden(text="pages of this origin may not open a WebSocket here\n")
        self._limits.connections.check(request.remote)
        if self._limit.is_full or self._limit.is_client_full(request.remote or ""):
            raise Refusal(Code.TOO_MANY, "too many WebSockets are open; come back later")

    def _connect(
        self, request: web.Request, transport: asyncio.Transport, done: Callable[[], None]
    ) -> Connection:
        address = request.remote or ""
        self._limit.acquire(address)

        def gone(connection: Connection) -> None:
            done()
            self._limit.release(address)
            self._keeper.remove(connection)

        max_bytes = self._intake.max_bytes
        connection = Connection(transport, max_bytes=max_bytes, gone=gone)
        connection.listener = _Newcomer(
            partial(self._first, connection, request),
            partial(self.refuse, connection, Refusal(Code.BAD_REQUEST, _NOTHING_CAME)),
            self._intake.request_seconds,
        )
        self._keeper.add(connection)
        return connection

    def _first(
        self, connection: Connection, request: web.Request, payload: bytes, *, is_text: bool
    ) -> None:
        try:
            if not is_text:
                raise Refusal(Code.BAD_REQUEST, "frames are text frames")
            frame = decode(payload)
            check_url(frame.topic, "topic")
            if isinstance(frame, Publish):
                self._publish(connection, request, frame)
            else:
                self._subscribe(connection, request, frame)
        except Refusal as refusal:
            self.refuse(connection, refusal)

    def _publish(self, connection: Connection, request: web.Request, frame: Publish) -> None:
        permission = self._intake.gate.check_publisher(request, frame.topic)
        connection.allow_large()
        connection.listener = inbox = Inbox(connection)
        read, check = self._intake.read, permission.check
        work = partial(take_fragments, inbox, frame.topic, self._topics, read, check)
        self._publishing[inbox] = task = self._begin(connection, work)
        task.add_done_callback(lambda _: self._publishing.pop(inbox))

    def _subscribe(self, connection: Connection, request: web.Request, frame: Subscribe) -> None:
        since, select = since_of(frame), select_of(frame)
        address, group = request.remote or "", None
        if select:
            group = self._selections.enter(
                TopicSelection(frame.topic, select), self._topics, address
            )
        subscriber = (
            Subscriber(connection, frame.topic, self._channel, self._refuse_more)
            if group is None
            else Selective(
                connection, group, address, self._selections, self._channel, self._refuse_more
            )
        )
        connection.listener = subscriber
        self._channel.enter(subscriber)
        feed = group or Whole(self._topics, frame.topic)
        granted = select if group else EVERYTHING
        work = partial(replay, subscriber, since, self._topics, feed, granted, self._channel)
        subscriber.replaying = self._begin(connection, work).cancel

    def _begin(self, connection: Connection, work: _Work) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run(connection, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, connection: Connection, work: _Work) -> None:
        try:
            await work()
        except Refusal as refusal:
            self.refuse(connection, refusal)
        except Exception:
            # Whatever went wrong here, the client is to come back, and others go on.
            log.exception("a connection failed")
            connection.close(INTERNAL_ERROR, "the hub failed")

    def refuse(self, connection: Connection, refusal: Refusal) -> None:
        """Say why, and close."""
        if connection.has_ended:
            return
        self._statistics.refused[refusal.code] += 1
        connection.send_text(encode(Error(code=refusal.code, message=refusal.reason)))
        connection.close(_CLOSE_CODES[refusal.code], refusal.code)

    def _refuse_more(self, connection: Connection) -> None:
        self.refuse(connection, Refusal(Code.BAD_REQUEST, "a subscriber sends one frame only"))

    async def close(self) -> None:
        """Acknowledge what Sources have sent, then tell every client that the hub stops."""
        for inbox in self._publishing:
            inbox.finish()
        if self._publishing:
            await asyncio.wait(self._publishing.values(), timeout=CLOSE_SECONDS)
        for connection in self._keeper.connections():
            connection.close(GOING_AWAY, "the hub stops")
        # Each is dropped if it takes too long to answer.
        await self._keeper.emptied()


class _Newcomer:
    """A client that has not said yet what it wants (a `Listener`).

    Args:
        first: Called with its first message.
        late: Called if none comes in time.
        seconds: How long it has.
    """

    __slots__ = ("_first", "_timer")

    def __init__(
        self, first: Callable[..., None], late: Callable[[], None], seconds: float
    ) -> None:
        self._first = first
        self._timer = asyncio.get_running_loop().call_later(seconds, late)

    def received(self, payload: bytes, *, is_text: bool) -> None:
        self._timer.cancel()
        self._first(payload, is_text=is_text)

    def paused(self) -> None:
        pass

    def resumed(self) -> None:
        pass

    def lost(self) -> None:
        self._timer.cancel()
