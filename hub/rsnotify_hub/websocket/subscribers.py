"""`GET /ws`: a channel to Destinations, and a way in for Sources (docs/protocol.md).

Theory of operation. A subscriber first *replays*: it is sent the log from its instant on, as
fast as it reads. When its place is the end of the log it goes *live* in the same turn of the
event loop, so that nothing lies between. Live, all subscribers of a topic share the bytes of
one frame, or of all frames of one commit, written straight to their transports. What a
transport could not send yet is its queue; a subscriber whose queue grows too long is cut off,
and costs the others nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

from aiohttp import WSMsgType, web

from rsnotify.datetimes import Instant, parse_datetime
from rsnotify.errors import StorageError
from rsnotify_hub.configuration import Configuration
from rsnotify_hub.log.store import Entry
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websocket.frames import Gap, Subscribe, Subscribed, encode, instant, text_frame

log = logging.getLogger("rsnotify.hub.websocket")

#: WebSocket close codes (RFC 6455 §7.4.1 and its registry).
GOING_AWAY = 1001
POLICY_VIOLATION = 1008
INTERNAL_ERROR = 1011
TRY_AGAIN_LATER = 1013

#: How long one that was cut off has to read what was queued, in seconds.
_LAST_CHANCE_SECONDS = 10.0


class Subscriber:
    """One connection that listens to a topic.

    Args:
        socket: The WebSocket.
        transport: What carries it.
        configuration: How long its queue may grow.
    """

    __slots__ = ("_frames", "_max_bytes", "_max_frames", "_transport", "socket")

    def __init__(
        self,
        socket: web.WebSocketResponse,
        transport: asyncio.Transport,
        configuration: Configuration,
    ) -> None:
        self.socket = socket
        self._transport = transport
        self._max_bytes = configuration.queue_bytes
        self._max_frames = configuration.queue_frames
        self._frames = 0

    def write(self, data: bytes, count: int) -> bool:
        """Send whole frames.

        Args:
            data: The frames.
            count: How many they are.

        Returns:
            False if the queue has become too long, so that they were not sent.
        """
        transport = self._transport
        if transport.is_closing():
            return True  # its handler is about to end it
        queued = transport.get_write_buffer_size()
        if not queued:
            self._frames = 0
        elif queued + len(data) > self._max_bytes or self._frames + count > self._max_frames:
            return False
        self._frames += count
        transport.write(data)
        return True

    def queued(self) -> int:
        """Return the bytes that wait for it."""
        return self._transport.get_write_buffer_size()

    async def cut_off(self) -> None:
        """Close with 1013, which comes after what is queued already; then drop the rest."""
        await self.socket.close(code=TRY_AGAIN_LATER, message=b"queue overflow", drain=False)
        # A closed transport goes on sending its queue, without end if nobody reads.
        asyncio.get_running_loop().call_later(_LAST_CHANCE_SECONDS, self._transport.abort)


class WebSocketChannel:
    """The live subscribers of every topic."""

    def __init__(self) -> None:
        self._live: dict[str, set[Subscriber]] = {}
        self._open: Counter[str] = Counter()
        self._cutting: set[asyncio.Task[None]] = set()

    def deliver(self, topic: str, entries: Sequence[Entry]) -> None:
        """Send to everybody who is live (`Channel.deliver`)."""
        subscribers = self._live.get(topic)
        if not subscribers:
            return
        data = b"".join([text_frame(entry.fragment.body) for entry in entries])
        count = len(entries)
        slow = [each for each in subscribers if not each.write(data, count)]
        for subscriber in slow:
            self._leave(topic, subscriber)
            log.warning("a subscriber of %s does not keep up and is cut off", topic)
            task = asyncio.create_task(subscriber.cut_off())
            self._cutting.add(task)
            task.add_done_callback(self._cutting.discard)

    def subscribers(self, topic: str) -> int:
        """Count the subscribers of a topic, those that replay among them."""
        return self._open[topic]

    def queued(self) -> int:
        """Return the bytes that wait for all who are live."""
        return sum(each.queued() for group in self._live.values() for each in group)

    def join(self, topic: str, subscriber: Subscriber) -> None:
        """Make a subscriber live."""
        self._live.setdefault(topic, set()).add(subscriber)

    def _leave(self, topic: str, subscriber: Subscriber) -> None:
        group = self._live.get(topic)
        if group is not None:
            group.discard(subscriber)
            if not group:
                del self._live[topic]

    async def serve(self, frame: Subscribe, subscriber: Subscriber, topics: Topics) -> None:
        """Serve a subscriber until it goes.

        Args:
            frame: What it asked for.
            subscriber: Its connection.
            topics: The logs.

        Raises:
            Refusal: It asked for what cannot be, or sent something more.
        """
        since = _since(frame)
        self._open[frame.topic] += 1
        # Receiving goes on during the replay, since that is how pings are answered.
        receiving = asyncio.create_task(subscriber.socket.receive())
        replay = asyncio.create_task(self._replay(frame.topic, since, subscriber, topics))
        try:
            await asyncio.wait((receiving, replay), return_when=asyncio.FIRST_COMPLETED)
            if replay.done():
                replay.result()
            message = await receiving
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                raise Refusal(Code.BAD_REQUEST, "a subscriber sends one frame only")
        finally:
            receiving.cancel()
            replay.cancel()
            self._leave(frame.topic, subscriber)
            self._open[frame.topic] -= 1
            if not self._open[frame.topic]:
                del self._open[frame.topic]

    async def _replay(
        self, topic: str, since: Instant | None, subscriber: Subscriber, topics: Topics
    ) -> None:
        socket = subscriber.socket
        position = await _greet(topic, since, socket, topics)
        while position < (end := topics.position(topic)):
            try:
                entries = await topics.read(topic, after=position, since=since)
            except StorageError as error:
                log.error("a replay of %s failed: %s", topic, error)
                raise Refusal(Code.UNAVAILABLE, "the hub cannot read its log") from None
            for entry in entries:
                await socket.send_frame(entry.fragment.body, WSMsgType.TEXT)
            position = entries[-1].position if entries else end
        self.join(topic, subscriber)


async def _greet(
    topic: str, since: Instant | None, socket: web.WebSocketResponse, topics: Topics
) -> int:
    """Send `subscribed`, and `gap` if there is one. Return the position to go on from."""
    state = topics.state(topic)
    through = state.through if state else None
    position = 0 if since is not None or state is None else state.position
    await socket.send_str(encode(Subscribed(topic=topic, through=instant(through))))
    if state is not None and since is not None and since < state.begins:
        begins = instant(state.begins)
        assert begins is not None
        await socket.send_str(encode(Gap(topic=topic, from_=begins)))
    return position


def _since(frame: Subscribe) -> Instant | None:
    try:
        return None if frame.since is None else parse_datetime(frame.since)
    except ValueError as error:
        raise Refusal(Code.BAD_REQUEST, f"since: {error}") from None
