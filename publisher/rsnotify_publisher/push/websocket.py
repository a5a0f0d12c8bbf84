"""Feeds a hub over a WebSocket. Many feeds may share one, with a publication for each topic.

Many fragments are in flight at a time. Neither fragments nor acknowledgements pass through a task
or queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from functools import partial
from typing import Annotated, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedOK
from websockets.protocol import State

from rsnotify import __version__
from rsnotify.format.datetimes import Instant, parse_datetime
from rsnotify.runtime.addresses import TIMEOUT, Dialer, is_proxied
from rsnotify.runtime.shared_websockets import TOPICS, SharedWebSocket, SharedWebSockets
from rsnotify.runtime.tasks import run_together, settle
from rsnotify_publisher.hubs import Hub, HubFailure
from rsnotify_publisher.push.http_post import RESPONSE_TIMEOUT, remedy
from rsnotify_publisher.push.hub_feed import FragmentFeed, OutgoingFragment

#: Seconds between pings, and seconds after which a hub that has not answered one counts as dead.
_PING_INTERVAL, _PONG_TIMEOUT = 5.0, 10.0
_MAX_FRAGMENTS_IN_FLIGHT = 256
#: Error codes that may concern only one node of the hub (docs/protocol.md).
_ERRORS_OF_ONE_NODE = frozenset({"unavailable", "misdirected"})


class _Accepted(Struct, frozen=True, tag="accepted"):
    """A frame acknowledging that a topic's fragments through `until` are durable."""

    until: Annotated[Instant, Meta(tz=True)]
    topic: str | None = None


class _Control(Struct, frozen=True):
    """Any other frame, or an acknowledgement in a rare form."""

    type: str
    topic: str | None = None
    until: str | None = None
    through: str | None = None
    code: str = ""
    message: str = ""


_decode = msgspec.json.Decoder(_Accepted).decode
_decode_control = msgspec.json.Decoder(_Control).decode
#: Seconds after an acknowledgement until the next ones are read, all at once. Otherwise each would
#: wake the thread, which costs more than reading it, although nothing waits for it.
_ACKNOWLEDGEMENT_PAUSE = 0.05


class HubPublication:
    """The publication of a feed's fragments on one topic.

    Attributes:
        begun: Done when the hub accepts fragments. The result is the end of the hub's log, or None.
        ended: Done when the connection is lost. Fails if the hub reports an error.
    """

    def __init__(self, hub: Hub, topic: str, feed: FragmentFeed) -> None:
        self.topic = topic
        self._hub = hub
        self._feed = feed
        self._free = asyncio.Semaphore(_MAX_FRAGMENTS_IN_FLIGHT)
        self._waiting: deque[Instant] = deque()
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[Instant | None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    async def wait_to_send(self, fragment: OutgoingFragment) -> None:
        """Wait until one more fragment may be in flight, and expect its acknowledgement."""
        await self._free.acquire()
        self._waiting.append(fragment.until)

    def accepted(self, until: Instant) -> None:
        """Confirm to the feed that the fragments through an instant are durable."""
        while self._waiting and self._waiting[0] <= until:
            self._feed.accepted(self._waiting.popleft())
            self._free.release()

    def process(self, control: _Control) -> None:
        """Handle a control frame. An error ends only this topic."""
        try:
            if control.type == "error":
                code = control.code
                action = remedy(self._hub, self.topic, 403) if code == "forbidden" else None
                reason = f"it answered {code}: {control.message}"
                everywhere = code not in _ERRORS_OF_ONE_NODE
                raise HubFailure(self._hub.uri, reason, remedy=action, everywhere=everywhere)
            if control.type == "accepted":
                until = self._instant(control.until, "until")
                if until is not None:
                    self.accepted(until)
            elif not self.begun.done():
                if control.type != "publishing":
                    raise HubFailure(
                        self._hub.uri, f"it answered the publish request with {control.type!r}"
                    )
                self.begun.set_result(self._instant(control.through, "through"))
        except HubFailure as failure:
            self.end(failure)

    def _instant(self, text: str | None, name: str) -> Instant | None:
        try:
            return None if text is None else parse_datetime(text)
        except ValueError:
            raise HubFailure(
                self._hub.uri, f"it sent {text!r} as {name}, which is not a datetime"
            ) from None

    def end(self, failure: Exception | None) -> None:
        settle(self.ended, failure)
        if not self.ended.cancelled():
            self.ended.exception()  # otherwise asyncio would log it if nothing is waiting


class HubConnection(SharedWebSocket[HubPublication]):
    """A WebSocket that publishes on topics."""

    #: The topic last announced to the hub, to which the following fragments belong.
    _current: str | None = None

    def publish(self, hub: Hub, topic: str, feed: FragmentFeed) -> HubPublication:
        """Start a publication by announcing its topic to the hub."""
        publication = self.topics[topic] = HubPublication(hub, topic, feed)
        self.send_frame({"type": "publish", "topic": topic})
        if self.protocol.state is State.CLOSED:
            publication.end(None)
        return publication

    async def send_fragment(self, topic: str, body: bytes) -> None:
        """Send a fragment, and wait if the hub is reading slowly."""
        if self.protocol.state is not State.OPEN:
            await self.wait_closed()
            raise self.close_exc
        if self.is_for_many and topic != self._current:
            self._current = topic
            self.send_frame({"type": "documents", "topic": topic})
        self.protocol.send_text(body)
        self.send_data()
        if self.paused:
            await self.drain()

    def process_message(self, message: bytes) -> None:
        try:
            accepted = _decode(message)
        except (ValueError, RecursionError):
            self._process_other(message)
            return
        publication = self.named(accepted.topic)
        if publication is not None:
            publication.accepted(accepted.until)
        if self.transport.is_reading():
            self.transport.pause_reading()
            self.loop.call_later(_ACKNOWLEDGEMENT_PAUSE, self.transport.resume_reading)

    def _process_other(self, message: bytes) -> None:
        try:
            control = _decode_control(message)
        except (ValueError, RecursionError) as error:
            self.end_all(ValueError(f"it sent an invalid control frame: {error}"))
            return
        publication = self.named(control.topic)
        if publication is not None:
            publication.process(control)
        elif control.type == "error" and control.topic is None:
            self.is_ending = True
            for publication in self.topics.values():
                publication.process(control)

    def end_all(self, error: Exception | None) -> None:
        self.is_ending = True
        for publication in self.topics.values():
            publication.end(error)


HubConnections = SharedWebSockets[HubConnection]


async def feed_by_websocket(
    hub: Hub, topic: str, feed: FragmentFeed, dialer: Dialer, websockets: HubConnections
) -> None:
    """Publish fragments over a WebSocket until an error occurs."""
    key = hub.uri, frozenset(hub.headers.items())
    websocket = await websockets.connect(key, topic, partial(_open, hub, dialer))
    publication = websocket.publish(hub, topic, feed)
    try:
        await run_together(
            _raise_when_ended(hub, websocket, publication),
            _send_fragments(websocket, publication, feed),
        )
    finally:
        publication.end(None)
        await websocket.end(topic)


async def _open(hub: Hub, dialer: Dialer) -> HubConnection:
    opening = partial(
        connect,
        hub.uri,
        create_connection=HubConnection,
        subprotocols=[TOPICS],
        additional_headers=hub.headers,
        user_agent_header=f"rsnotify/{__version__}",
        # For small fragments, compression would cost more time than it saves.
        compression=None,
        max_size=65_536,
        open_timeout=TIMEOUT,
        ping_interval=_PING_INTERVAL,
        ping_timeout=_PONG_TIMEOUT,
        close_timeout=1,
    )
    if is_proxied(hub.uri):
        return cast(HubConnection, await opening())
    parts = urlsplit(hub.uri)
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    try:
        opened = await opening(sock=await dialer.dial(parts.hostname or "", port))
    except ValueError:  # a redirect, which cannot be followed if a socket is given
        opened = await opening()
    return cast(HubConnection, opened)


async def _send_fragments(
    websocket: HubConnection, publication: HubPublication, feed: FragmentFeed
) -> None:
    async with asyncio.timeout(RESPONSE_TIMEOUT):
        through = await publication.begun
    async with aclosing(feed.fragments(through)) as fragments:
        async for fragment in fragments:
            await publication.wait_to_send(fragment)
            await websocket.send_fragment(publication.topic, fragment.body)


async def _raise_when_ended(
    hub: Hub, websocket: HubConnection, publication: HubPublication
) -> None:
    """Wait until the publication ends, then raise the reason."""
    try:
        await publication.ended
        raise websocket.close_exc
    except (ConnectionClosedOK, ValueError) as error:
        reason = "it closed the connection" if isinstance(error, ConnectionClosedOK) else str(error)
        raise HubFailure(hub.uri, reason) from None
