"""WebSockets to hubs, shared by several users in one process (docs/protocol.md)."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.frames import DATA_OPCODES, Frame
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import BytesLike, Subprotocol

from rsnotify.runtime.addresses import Address
from rsnotify.sync.retry import Alternatives

#: The subprotocol of connections for many topics.
TOPICS = Subprotocol("rsnotify.topics")
#: Maximum number of topics per connection.
_MAX_TOPICS = 500

#: A user's subscription or publication on a connection.
T = TypeVar("T")
C = TypeVar("C", bound="SharedWebSocket[Any]")


class SharedWebSocket(ClientConnection, Generic[T]):
    """A connection for one or many topics, which handles messages as soon as they are received.

    Attributes:
        topics: The subscription or publication for each topic.
        is_ending: Whether no more topics can be added.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.topics: dict[str, T] = {}
        self.is_ending = False
        self._frames: list[BytesLike] = []

    @property
    def is_for_many(self) -> bool:
        return self.subprotocol == TOPICS

    def has_room_for(self, topic: str) -> bool:
        """Return whether another user can add a topic."""
        is_open = self.protocol.state is State.OPEN and not self.is_ending
        is_free = topic not in self.topics and len(self.topics) < _MAX_TOPICS
        return is_open and self.is_for_many and is_free

    def named(self, topic: str | None) -> T | None:
        """Return the subscription or publication for the topic of a control frame.

        On a connection for one topic, the frame needs no topic.
        """
        if self.is_for_many:
            return self.topics.get(topic or "")
        return next(iter(self.topics.values()))

    def send_frame(self, frame: object) -> None:
        """Send a control frame, unless the connection is lost."""
        if self.protocol.state is State.OPEN:
            self.protocol.send_text(msgspec.json.encode(frame))
            self.send_data()

    async def end(self, topic: str) -> None:
        """End a topic, and close the connection after the last one."""
        del self.topics[topic]
        if self.topics:
            self.send_frame({"type": "end", "topic": topic})
        else:
            self.is_ending = True
            await self.close()

    @abstractmethod
    def process_message(self, message: bytes) -> None:
        """Handle a message. The connection has at least one topic."""

    @abstractmethod
    def end_all(self, error: Exception | None) -> None:
        """Notify all users that the connection is unusable or lost."""

    # Called by `websockets`

    def process_event(self, event: Frame | Response) -> None:  # type: ignore[override]
        if not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
            super().process_event(event)
            return
        self._frames.append(event.data)
        if event.fin:
            message = b"".join(self._frames)
            self._frames.clear()
            if self.topics:
                self.process_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_ending = True
        self.end_all(None)


class _Opening:
    """A connection that is being opened. Other users wait for it, and share its failure."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.failure: Exception | None = None


class SharedWebSockets(Generic[C]):
    """Connections for many topics. The key is the hub, with everything else that users must share.

    Theory of operation. One user opens a connection while the others wait for it. If that user is
    cancelled, another one opens it. If a hub accepts only one topic per connection, this is
    remembered, so that no user waits. The last user of a connection closes it.

    Attributes:
        memory: The addresses that failed in earlier attempts.
    """

    def __init__(self) -> None:
        self.memory: Alternatives[Address] = Alternatives()
        self._open: dict[Hashable, list[C]] = {}
        self._opening: dict[Hashable, _Opening] = {}
        self._for_one: set[Hashable] = set()

    async def connect(self, key: Hashable, topic: str, opener: Callable[[], Awaitable[C]]) -> C:
        """Return a connection, or raise the opener's error.

        The caller must add its topic before its next `await`.
        """
        while True:
            for connection in self._open.get(key, ()):
                if connection.has_room_for(topic):
                    return connection
            if key in self._for_one:
                return self._opened(key, await opener())
            opening = self._opening.get(key)
            if opening is None:
                return await self._open_one(key, opener)
            await opening.done.wait()
            if opening.failure is not None:
                raise opening.failure.with_traceback(None)

    async def _open_one(self, key: Hashable, opener: Callable[[], Awaitable[C]]) -> C:
        opening = self._opening[key] = _Opening()
        try:
            return self._opened(key, await opener())
        except Exception as error:
            opening.failure = error
            raise
        finally:
            del self._opening[key]
            opening.done.set()

    def _opened(self, key: Hashable, connection: C) -> C:
        others = [one for one in self._open.pop(key, ()) if not one.is_ending]
        if connection.is_for_many:
            self._for_one.discard(key)
            self._open[key] = [*others, connection]
        else:
            self._for_one.add(key)
        return connection
