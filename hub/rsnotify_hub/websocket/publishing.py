"""The Source's side of `GET /ws`: it sends fragments without waiting; the hub acknowledges them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from rsnotify.errors import DocumentError
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.runtime.tasks import first_completed
from rsnotify_hub.log.fragments import Fragment
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websocket.connection import FrameHandler, WebSocketConnection
from rsnotify_hub.websocket.frames import AcceptedFrame, PublishingFrame, encode, instant

#: How many fragments of one connection may wait for the disk before the hub stops reading.
_IN_FLIGHT = 256

#: How much of one connection is read ahead, in bytes.
_AHEAD_BYTES = 512 * 1024


class WebSocketInbox(FrameHandler):
    """The messages of a Source that are not processed yet; reading pauses while there is much."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self.connection = connection
        self._messages: deque[bytes] = deque()
        self._size = 0
        self._has_finished = False
        self._refusal: Refusal | None = None
        self._changed = asyncio.Event()

    def received(self, payload: bytes, *, is_text: bool) -> None:
        if self._has_finished:
            return
        if not is_text:
            self._refusal = Refusal(Code.BAD_REQUEST, "frames are text frames")
            self.finish()
            return
        self._messages.append(payload)
        self._size += len(payload)
        if self._size > _AHEAD_BYTES:
            self.connection.pause_reading()
        self._changed.set()

    def lost(self) -> None:
        self.finish()

    def finish(self) -> None:
        """Accept no more messages; those that have arrived are still to be processed."""
        self._has_finished = True
        self._changed.set()

    async def get(self) -> bytes | None:
        while not self._messages:
            if self._has_finished:
                if self._refusal is not None:
                    raise self._refusal
                return None
            self._changed.clear()
            await self._changed.wait()
        payload = self._messages.popleft()
        before, self._size = self._size, self._size - len(payload)
        if before > _AHEAD_BYTES >= self._size:
            self.connection.resume_reading()
        return payload


async def accept_fragments(
    inbox: WebSocketInbox,
    topic: str,
    topics: TopicLogs,
    read: Callable[[bytes], Awaitable[Fragment]],
    check: Callable[[], None],
) -> None:
    """Append fragments to the log until the Source leaves, and acknowledge them.

    `read` raises DocumentError; `check` raises Refusal if the Source may no longer publish.

    Raises:
        Refusal: A fragment cannot be accepted or stored. All before it were.
    """
    connection = inbox.connection
    state = topics.state(topic)
    through = instant(state.through if state else None)
    connection.send_text(encode(PublishingFrame(topic=topic, through=through)))
    acknowledgements = _Acknowledgements(connection, topic)
    append = _append(inbox, topic, topics, read, check, acknowledgements)
    async with first_completed(append, acknowledgements.run()) as (appending, acknowledging):
        if acknowledging.done():
            acknowledging.result()  # it ends only with an exception
        await acknowledgements.finish()
    appending.result()


async def _append(
    inbox: WebSocketInbox,
    topic: str,
    topics: TopicLogs,
    read: Callable[[bytes], Awaitable[Fragment]],
    check: Callable[[], None],
    acknowledgements: _Acknowledgements,
) -> None:
    while (payload := await inbox.get()) is not None:
        check()
        try:
            fragment = await read(payload)
        except DocumentError as error:
            raise Refusal(Code.INVALID_FRAGMENT, str(error)) from None
        await acknowledgements.wait_for_capacity()
        check()  # again, without an await before the log
        acknowledgements.expect(topics.publish(topic, fragment), fragment.until)


class _Acknowledgements:
    """Acknowledges durable fragments: only the latest, which covers those before it."""

    def __init__(self, connection: WebSocketConnection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._capacity = asyncio.Semaphore(_IN_FLIGHT)
        self._last: asyncio.Future[None] | None = None
        self._durable: Instant | None = None
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    async def wait_for_capacity(self) -> None:
        await self._capacity.acquire()

    def expect(self, future: asyncio.Future[None], until: Instant) -> None:
        self._last = future
        future.add_done_callback(lambda done: self._done(done, until))

    def _done(self, future: asyncio.Future[None], until: Instant) -> None:
        self._capacity.release()
        error = future.exception()
        self._failure = self._failure or error
        if self._failure is None:  # nothing after a lost fragment may be acknowledged
            self._durable = until
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            await self._send()

    async def _send(self) -> None:
        self._changed.clear()
        durable, self._durable = self._durable, None
        if durable is not None:
            frame = AcceptedFrame(topic=self._topic, until=format_datetime(durable))
            self._connection.send_text(encode(frame))
            await self._connection.drain()
        if self._failure is not None:
            raise Refusal(Code.UNAVAILABLE, "the hub cannot write its log; try again later")

    async def finish(self) -> None:
        """Wait for the fragments in flight, and acknowledge them."""
        if self._last is not None:
            await asyncio.wait((self._last,))
            await asyncio.sleep(0)  # its callback runs in the next iteration
            await self._send()
