"""The WebSockets to hubs that the subscribers of one process share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from rsnotify_subscriber.push.connecting import AddressMemory
from rsnotify_subscriber.push.hub_websocket import HubWebSocket


class _Opening:
    """A connection that is being opened; others wait for it, and fail with it."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.failure: Exception | None = None


class SharedWebSockets:
    """Connections for many topics, by the hub and what else must be the same to share one.

    Theory of operation. One subscriber opens a connection while the others wait for it; if it is
    cancelled, another of them does. A hub that accepts only one topic for each connection is
    remembered, so that nobody waits. The last subscriber to leave a connection closes it.

    Attributes:
        memory: Which addresses failed in earlier attempts.
    """

    def __init__(self) -> None:
        self.memory = AddressMemory()
        self._open: dict[Hashable, list[HubWebSocket]] = {}
        self._opening: dict[Hashable, _Opening] = {}
        self._for_one: set[Hashable] = set()

    async def connect(
        self, key: Hashable, topic: str, opener: Callable[[], Awaitable[HubWebSocket]]
    ) -> HubWebSocket:
        """Return a connection on which the caller subscribes to a topic, before it waits again.

        Raises:
            FetchError: It could not be opened.
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

    async def _open_one(
        self, key: Hashable, opener: Callable[[], Awaitable[HubWebSocket]]
    ) -> HubWebSocket:
        opening = self._opening[key] = _Opening()
        try:
            return self._opened(key, await opener())
        except Exception as error:
            opening.failure = error
            raise
        finally:
            del self._opening[key]
            opening.done.set()

    def _opened(self, key: Hashable, connection: HubWebSocket) -> HubWebSocket:
        others = [one for one in self._open.pop(key, ()) if not one.is_ending]
        if connection.is_for_many:
            self._for_one.discard(key)
            self._open[key] = [*others, connection]
        else:
            self._for_one.add(key)
        return connection
