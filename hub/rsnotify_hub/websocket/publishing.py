"""The Source's side of `GET /ws`: fragments in, without waiting; acknowledgements out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import WSMsgType, web

from rsnotify.datetimes import Instant, format_datetime
from rsnotify.errors import DocumentError
from rsnotify_hub.log.fragments import Fragment
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websocket.frames import Accepted, Publishing, encode, instant

#: How many fragments of one connection may wait for the disk before no more are read.
_IN_FLIGHT = 256


async def take_fragments(
    socket: web.WebSocketResponse,
    topic: str,
    topics: Topics,
    read: Callable[[bytes], Awaitable[Fragment]],
) -> None:
    """Take fragments until the Source goes.

    Args:
        socket: Its connection, already allowed to publish.
        topic: What it publishes on.
        topics: The logs.
        read: Reads and checks a fragment; raises DocumentError.

    Raises:
        Refusal: A fragment cannot be accepted, or not be kept. All before it were.
    """
    state = topics.state(topic)
    through = instant(state.through if state else None)
    await socket.send_str(encode(Publishing(topic=topic, through=through)))
    acknowledgements = _Acknowledgements(socket, topic)
    taking = asyncio.create_task(_take(socket, topic, topics, read, acknowledgements))
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
    socket: web.WebSocketResponse,
    topic: str,
    topics: Topics,
    read: Callable[[bytes], Awaitable[Fragment]],
    acknowledgements: _Acknowledgements,
) -> None:
    while True:
        message = await socket.receive()
        if message.type is not WSMsgType.TEXT:
            return
        try:
            fragment = await read(message.data.encode())
        except DocumentError as error:
            raise Refusal(Code.INVALID_FRAGMENT, str(error)) from None
        await acknowledgements.room()
        acknowledgements.expect(topics.publish(topic, fragment), fragment.until)


class _Acknowledgements:
    """Tells a Source what is durable: the latest only, however many fragments that covers.

    Args:
        socket: The Source's connection.
        topic: What it publishes on.
    """

    def __init__(self, socket: web.WebSocketResponse, topic: str) -> None:
        self._socket = socket
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
            await self._socket.send_str(encode(frame))
        if self._failure is not None:
            raise Refusal(Code.UNAVAILABLE, "the hub cannot write its log; try again later")

    async def settle(self) -> None:
        """Wait for what is under way, and acknowledge it."""
        if self._last is not None and not self._socket.closed:
            await asyncio.wait((self._last,))
            await asyncio.sleep(0)  # its callback runs in the next turn
            with suppress(ConnectionError):
                await self._tell_now()
