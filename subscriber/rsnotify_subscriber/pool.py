"""What the subscribers of a process share: connections, threads, cached documents and limits."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Annotated

from msgspec import Meta, Struct

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.shared_websockets import SharedWebSockets
from rsnotify.runtime.tasks import Lane
from rsnotify_subscriber.fetching.fetcher import DocumentCache
from rsnotify_subscriber.fetching.sessions import PER_HOST, Connections
from rsnotify_subscriber.push.websocket_transport import HubWebSocket
from rsnotify_subscriber.status import FollowCounters

#: Maximum number of cached documents, and of entries in all of them.
_MAX_DOCUMENTS, _MAX_ENTRIES = 10_000, 100_000
_Count = Annotated[int, Meta(ge=1, le=10**6)]


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits for all subscribers of a process together.

    Args:
        requests: Maximum number of concurrent HTTP requests.
        per_host: Maximum number of concurrent connections to one host.
        per_source: Maximum number of concurrent requests of one subscriber.
        workers: Number of threads that access the disk and call handlers.
        starting: Maximum number of subscribers that start at the same time. The others wait until
            one of these is level, has failed, or has been starting for ten seconds.
    """

    requests: _Count = 256
    per_host: _Count = PER_HOST
    per_source: _Count = 8
    workers: _Count = 8
    starting: _Count = 16

    def check(self) -> None:
        """Check the limits.

        Raises:
            ConfigurationError: A limit is less than one.
        """
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1")


class SubscriberPool:
    """The shared resources of any number of subscribers. An async context manager."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.connections = Connections(most=limits.requests, per_host=limits.per_host)
        self.websockets: SharedWebSockets[HubWebSocket] = SharedWebSockets()
        self.documents = DocumentCache(_MAX_DOCUMENTS, _MAX_ENTRIES)
        #: Set briefly whenever the status of a subscriber may have changed.
        self.moved = asyncio.Event()
        self.counters = FollowCounters()

    async def __aenter__(self) -> SubscriberPool:
        self._threads = ThreadPoolExecutor(self.limits.workers, "rsnotify-worker")
        await self.connections.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.connections.__aexit__(*exception)
        self._threads.shutdown()

    def wake(self) -> None:
        """Wake everybody who currently waits on `moved`."""
        self.moved.set()
        self.moved.clear()

    def worker(self) -> Executor:
        """Return an executor for one subscriber, which runs its calls one at a time."""
        return Lane(self._threads)
