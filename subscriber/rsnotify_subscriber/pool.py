"""The connections, threads and memory that the subscribers of one process share."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Annotated

from msgspec import Meta, Struct

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.shared_websockets import SharedWebSockets
from rsnotify.runtime.tasks import Lane
from rsnotify_subscriber.events import FollowCounters
from rsnotify_subscriber.fetching.fetcher import DocumentCache
from rsnotify_subscriber.fetching.sessions import PER_HOST, Connections
from rsnotify_subscriber.push.websocket_transport import HubWebSocket

#: Maximum number of document entries kept in memory, for all Sources together.
_ENTRIES = 100_000
#: Maximum number of documents kept. Documents of Sources that rarely change have few entries.
_DOCUMENTS = 10_000
_Count = Annotated[int, Meta(ge=1, le=10**6)]


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resources of the machine that all subscribers of a process may use together.

    Args:
        requests: Maximum number of concurrent HTTP requests.
        per_host: Maximum number of concurrent connections to one host.
        per_source: Maximum number of concurrent requests of one subscriber.
        workers: Number of threads that access the disk and call handlers.
        starting: Maximum number of subscribers that start at the same time. The others wait until
            these are level, or have taken a while.
    """

    requests: _Count = 256
    per_host: _Count = PER_HOST
    per_source: _Count = 8
    workers: _Count = 8
    starting: _Count = 16

    def check(self) -> None:
        """Reject limits that would stop all work.

        Raises:
            ConfigurationError: A limit is less than one.
        """
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} has to be at least 1")


class SubscriberPool:
    """Connections, threads and memory for any number of subscribers. An async context manager."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.connections = Connections(most=limits.requests, per_host=limits.per_host)
        self.websockets: SharedWebSockets[HubWebSocket] = SharedWebSockets()
        self.kept = DocumentCache(_DOCUMENTS, _ENTRIES)
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
        """Wake all current waiters on `moved`. Later waiters wait for the next call."""
        self.moved.set()
        self.moved.clear()

    def worker(self) -> Executor:
        """Return an executor for one subscriber, which runs its calls one at a time."""
        return Lane(self._threads)
