"""One connection of `GET /ws`, from its upgrade to its close."""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakSet

from aiohttp import WSMsgType, web

from rsnotify_hub.configuration import Configuration
from rsnotify_hub.intake import Intake
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websocket.frames import Error, Publish, Subscribe, decode, encode
from rsnotify_hub.websocket.publishing import take_fragments
from rsnotify_hub.websocket.subscribers import (
    GOING_AWAY,
    INTERNAL_ERROR,
    POLICY_VIOLATION,
    TRY_AGAIN_LATER,
    Subscriber,
    WebSocketChannel,
)
from rsnotify_hub.websub.forms import check_url

log = logging.getLogger("rsnotify.hub.websocket")

_CLOSE_CODES = {
    Code.BAD_REQUEST: POLICY_VIOLATION,
    Code.FORBIDDEN: POLICY_VIOLATION,
    Code.INVALID_FRAGMENT: POLICY_VIOLATION,
    Code.UNAVAILABLE: TRY_AGAIN_LATER,
}

#: Seconds between pings; half of that later, who has not answered is gone.
_PING_SECONDS = 30.0

#: How long a client has to answer a close, in seconds.
_CLOSE_SECONDS = 3.0


class WebSockets:
    """The handler of `GET /ws`.

    Args:
        intake: Says who may publish, and reads fragments.
        topics: The logs.
        channel: The live subscribers.
        configuration: The limits.
    """

    def __init__(
        self,
        intake: Intake,
        topics: Topics,
        channel: WebSocketChannel,
        configuration: Configuration,
    ) -> None:
        self._intake = intake
        self._topics = topics
        self._channel = channel
        self._configuration = configuration
        self._open: WeakSet[web.WebSocketResponse] = WeakSet()

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one connection."""
        # Frames are shared among subscribers, so they are not compressed for each.
        socket = web.WebSocketResponse(
            heartbeat=_PING_SECONDS,
            compress=False,
            max_msg_size=self._configuration.max_fragment_bytes,
            timeout=_CLOSE_SECONDS,
        )
        await socket.prepare(request)
        self._open.add(socket)
        try:
            await self._serve(request, socket)
        except Refusal as refusal:
            await _refuse(socket, refusal)
        except ConnectionError:
            pass  # it has gone
        except Exception:
            # Whatever went wrong here, the client is to come back, and others go on.
            log.exception("a connection failed")
            await socket.close(code=INTERNAL_ERROR)
        return socket

    async def _serve(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        frame = await self._first_frame(socket)
        if frame is None:
            return
        check_url(frame.topic, "topic")
        if isinstance(frame, Publish):
            self._intake.check_publisher(request, frame.topic)
            await take_fragments(socket, frame.topic, self._topics, self._intake.read)
        elif request.transport is not None:
            subscriber = Subscriber(socket, request.transport, self._configuration)
            await self._channel.serve(frame, subscriber, self._topics)

    async def _first_frame(self, socket: web.WebSocketResponse) -> Subscribe | Publish | None:
        try:
            async with asyncio.timeout(self._configuration.request_seconds):
                message = await socket.receive()
        except TimeoutError:
            raise Refusal(Code.BAD_REQUEST, "no subscribe or publish frame came") from None
        if message.type is WSMsgType.BINARY:
            raise Refusal(Code.BAD_REQUEST, "frames are text frames")
        return decode(message.data) if message.type is WSMsgType.TEXT else None

    def count(self) -> int:
        """Count the open connections."""
        return len(self._open)

    def queued(self) -> int:
        """Return the bytes that wait for all subscribers."""
        return self._channel.queued()

    async def close(self) -> None:
        """Tell every client that the hub stops."""
        await asyncio.gather(
            *(
                socket.close(code=GOING_AWAY, message=b"the hub stops")
                for socket in set(self._open)
            ),
            return_exceptions=True,
        )


async def _refuse(socket: web.WebSocketResponse, refusal: Refusal) -> None:
    if socket.closed:
        return
    try:
        await socket.send_str(encode(Error(code=refusal.code, message=refusal.reason)))
        await socket.close(code=_CLOSE_CODES[refusal.code])
    except ConnectionError:
        pass  # it did not wait for the answer
