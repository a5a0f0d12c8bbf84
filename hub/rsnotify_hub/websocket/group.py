"""A group of those who asked for the same part of a topic: what is left is made once for all.

Theory of operation. The log is the group's queue: the group has a place in it, and what comes after
that place is cut to what was asked for and sent to all at once, as if it were a topic of its own.
What is held back for a moment, since it is empty, lies behind that place. Who comes meanwhile joins
the others only once they have all that the log had when it came: of that it may know a part
already, and reads the rest by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.filtering.filter_cache import FilterCache
from rsnotify_hub.filtering.filtered_reader import FilteredReader
from rsnotify_hub.filtering.fragment_filter import join_empty
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.log.store import LogEntry
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.websocket.subscribers import WebSocketChannel

log = logging.getLogger("rsnotify.hub.websocket")

#: How long is waited after a failure, in seconds.
_RETRY_SECONDS = 1.0


class Group:
    """Those who get the same part of a topic (a `Feed`).

    Args:
        stream: Which part of which topic.
        topics: The logs.
        sieve: Leaves out what was not asked for.
        live: Sends.
    """

    def __init__(
        self, stream: TopicSelection, topics: TopicLogs, sieve: FilterCache, live: WebSocketChannel
    ) -> None:
        self.stream = stream
        self._clients: Counter[str] = Counter()
        self._key = stream.key
        self._topics = topics
        self._sieve = sieve
        self._live = live
        self._cutting = FilteredReader(stream, topics, sieve, topics.position(stream.topic))
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()

    @property
    def holder(self) -> str | None:
        """The client that it counts for: of those in it who came first; None if it is empty."""
        return next(iter(self._clients), None)

    def enter(self, client: str) -> None:
        """Take in one more connection of a client."""
        self._clients[client] += 1

    def leave(self, client: str) -> None:
        """Let one go."""
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]

    @property
    def end(self) -> int:
        """Its place in the log: who has all up to here may go on with the others."""
        return self._cutting.position

    def lags(self, position: int) -> bool:
        """Tell whether its members are still to be sent what stands up to a position."""
        return self.end < position

    async def read(self, *, after: int, since: Instant | None) -> list[LogEntry]:
        """Return what is left of the log, up to the place of the group (`Feed.read`).

        Raises:
            StorageError: The store cannot be read.
        """
        if self.end <= after:
            await self._moved.wait()
        entries = await self._topics.read(self.stream.topic, after=after, since=since)
        wanted = [entry for entry in entries if entry.position <= self.end]
        return join_empty(await self._sieve.filtered(self.stream, wanted, old=True))

    def wake(self) -> None:
        """Send what has come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._cutting.has_more:
                if left := await self._cutting.next():
                    self._live.deliver(self._key, left)
                # Whoever waits now is woken.
                self._moved.set()
                self._moved.clear()
            if self._cutting.holds:
                self._wake_in(self._cutting.wait)
        except StorageError as error:
            log.error("a part of %s cannot be sent: %s", self.stream.topic, error)
            self._wake_in(_RETRY_SECONDS)
        except Exception:
            # A fault of ours must not end it for them for good.
            log.exception("a part of %s could not be sent", self.stream.topic)
            self._wake_in(_RETRY_SECONDS)
        finally:
            self._task = None

    def _wake_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.wake)
