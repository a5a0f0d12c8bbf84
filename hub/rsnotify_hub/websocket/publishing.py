"""The Source's side of `GET /ws`: fragments in, without waiting; acknowledgements out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from rsnotify.errors import DocumentError
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify_hub.log.fragments import Fragment
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websocket.connection import Connection
from rsnotify_hub.websocket.frames import Accepted, Publishing, encode, instant

#: How many fragments of one connection may wait for the disk before no more are read.
_IN_FLIGHT = 256

#: How much of one connection is read ahead, in bytes.
_AHEAD_BYTES = 512 * 1024


class Inbox:
    """What a Source has sent and the hub has not read yet (a `Listener`).

    Args:
        connection: The Source's connection, which is not read while there is much.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._messages: deque[bytes] = deque()
        self._size = 0
        self._has_finished = False
        self._refusal: Refusal | None = None
        self._news = asyncio.Event()

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """Take a message."""
        if self._has_finished:
            return
        if not is_text:
            self._refusal = Refusal(Code.BAD_REQUEST, "frames are text frames")
            self.finish()
            return
        self._messages.append(payload)
        self._size += len(payload)
        if self._size > _AHEAD_BYTES:
            self.connection.hold()
        self._news.set()

    def paused(self) -> None:
        """Nothing; what is sent waits for that by itself."""

    def resumed(self) -> None:
        """Nothing."""

    def lost(self) -> None:
        """Take no more."""
        self.finish()

    def finish(self) -> None:
        """Take no more; what has come is still to be read."""
        self._has_finished = True
        self._news.set()

    async def get(self) -> bytes | None:
        """Return the next message; None when there are no more.

        Raises:
            Refusal: What came next is no text.
        """
        while not self._messages:
            if self._has_finished:
                if self._refusal is not None:
                    raise self._refusal
                return None
            self._news.clear()
            await self._news.wait()
        payload = self._messages.popleft()
        before, self._size = self._size, self._size - len(payload)
        if before > _AHEAD_BYTES >= self._size:
            self.connection.release()
        return payload


async def take_fragments(
    inbox: Inbox,
    topic: str,
    topics: TopicLogs,
    read: Callable[[bytes], Awaitable[Fragment]],
    check: Callable[[], None],
) -> None:
    """Take fragments until the Source goes.

    Args:
        inbox: What it sends; it is already allowed to publish.
        topic: What it publishes on.
        topics: The logs.
        read: Reads and checks a fragment; raises DocumentError.
        check: Checks that it may still publish; raises Refusal.

    Raises:
        Refusal: A fragment cannot be accepted, or not be kept. All before it were.
    """
    connection = inbox.connection
    state = topics.state(topic)
    through = instant(state.through if state else None)
    connection.send_text(encode(Publishing(topic=topic, through=through)))
    acknowledgements = _Acknowledgements(connection, topic)
    taking = asyncio.create_task(_take(inbox, topic, topics, read, check, acknowledgements))
    telling = asyncio.create_task(acknowledgements.tell())
    try:
        await asyncio.wait((taking, telling), return_when=asyncio.FIRST_COMPLETED)
        if telling.done():
            telling.result()  # it ends only by what went wrong
        await acknowledgements.settle()
    finally:
        for task in (taking, telling):
            task.cancel()
        await asyncio.gather(taking, telling, return_exceptions=True)
    taking.result()


async def _take(
    inbox: Inbox,
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
        await acknowledgements.room()
        check()  # and nothing comes between this and the log
        acknowledgements.expect(topics.publish(topic, fragment), fragment.until)


class _Acknowledgements:
    """Tells a Source what is durable: the latest only, however many fragments that covers.

    Args:
        connection: The Source's connection.
        topic: What it publishes on.
    """

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._room = asyncio.Semaphore(_IN_FLIGHT)
        self._last: asyncio.Future[None] | None = None
        self._durable: Instant | None = None
        self._failure: BaseException | None = None
        self._news = asyncio.Event()

    async def room(self) -> None:
        """Wait until one more fragment may be under way."""
        await self._room.acquire()

    def expect(self, future: asyncio.Future[None], until: Instant) -> None:
        """Take note of a fragment that is under way."""
        self._last = future
        future.add_done_callback(lambda done: self._done(done, until))

    def _done(self, future: asyncio.Future[None], until: Instant) -> None:
        self._room.release()
        error = future.exception()
        self._failure = self._failure or error
        if self._failure is None:  # what comes after a hole must not be acknowledged
            self._durable = until
        self._news.set()

    async def tell(self) -> None:
        """Send acknowledgements until something goes wrong.

        Raises:
            Refusal: A fragment could not be kept.
        """
        while True:
            await self._news.wait()
            await self._tell_now()

    async def _tell_now(self) -> None:
        self._news.clear()
        durable, self._durable = self._durable, None
        if durable is not None:
            frame = Accepted(topic=self._topic, until=format_datetime(durable))
            self._connection.send_text(encode(frame))
            await self._connection.drain()
        if self._failure is not None:
            raise Refusal(Code.UNAVAILABLE, "the hub cannot write its log; try again later")

    async def settle(self) -> None:
        """Wait for what is under way, and acknowledge it."""
        if self._last is not None:
            await asyncio.wait((self._last,))
            await asyncio.sleep(0)  # its callback runs in the next turn
            await self._tell_now()
