"""Those who asked for a part of a topic only: what is left for them is made once for all alike.

Theory of operation. All who asked for the same part form a group. The log is its queue: the
group has a place in it, and what comes after that place is cut to what was asked for and sent
to all at once, as if it were a topic of its own. What is held back for a moment, since it is
empty, lies behind that place. Who comes meanwhile joins the others only once they have all that
the log had when it came: of that it may know a part already, and reads the rest by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from rsnotify.datetimes import Instant
from rsnotify.errors import StorageError
from rsnotify_hub.log.store import Entry
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.selecting.cutting import Cutting
from rsnotify_hub.selecting.leaving import join
from rsnotify_hub.selecting.sieve import Sieve
from rsnotify_hub.selecting.streams import Stream
from rsnotify_hub.websocket.connection import Connection
from rsnotify_hub.websocket.subscribers import Subscriber, WebSocketChannel

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

    Attributes:
        members: How many they are.
    """

    def __init__(
        self, stream: Stream, topics: Topics, sieve: Sieve, live: WebSocketChannel
    ) -> None:
        self.stream = stream
        self.members = 0
        self._key = stream.key
        self._topics = topics
        self._sieve = sieve
        self._live = live
        self._cutting = Cutting(stream, topics, sieve, topics.position(stream.topic))
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()

    @property
    def end(self) -> int:
        """Its place in the log: who has all up to here may go on with the others."""
        return self._cutting.position

    def lags(self, position: int) -> bool:
        """Tell whether its members are still to be sent what stands up to a position."""
        return self.end < position

    async def read(self, *, after: int, since: Instant | None) -> list[Entry]:
        """Return what is left of the log, up to the place of the group (`Feed.read`).

        Raises:
            StorageError: The store cannot be read.
        """
        if self.end <= after:
            await self._moved.wait()
        entries = await self._topics.read(self.stream.topic, after=after, since=since)
        wanted = [entry for entry in entries if entry.position <= self.end]
        return join(await self._sieve.left(self.stream, wanted, old=True))

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


class Selections:
    """The groups of every topic (a `Channel`).

    Args:
        live: Sends.
        sieve: Cuts.
        most: How many groups a topic may have.
    """

    def __init__(self, live: WebSocketChannel, sieve: Sieve, most: int) -> None:
        self._live = live
        self._sieve = sieve
        self._most = most
        self._groups: dict[str, dict[Stream, Group]] = {}

    def deliver(self, topic: str, entries: Sequence[Entry]) -> None:
        """Begin to send what was appended (`Channel.deliver`)."""
        for group in self._groups.get(topic, {}).values():
            group.wake()

    def subscribers(self, topic: str) -> int:
        """Return none: the channel that sends counts them (`Channel.subscribers`)."""
        return 0

    def enter(self, stream: Stream, topics: Topics) -> Group | None:
        """Join a group.

        Returns:
            None where the topic has too many; then one gets all of it.
        """
        groups = self._groups.get(stream.topic, {})
        group = groups.get(stream)
        if group is None:
            if len(groups) >= self._most:
                return None
            group = Group(stream, topics, self._sieve, self._live)
            self._groups.setdefault(stream.topic, {})[stream] = group
        group.members += 1
        return group

    def leave(self, group: Group) -> None:
        """Leave a group."""
        group.members -= 1
        if group.members:
            return
        group.close()
        groups = self._groups[group.stream.topic]
        del groups[group.stream]
        if not groups:
            del self._groups[group.stream.topic]

    def close(self) -> None:
        """Send nothing more."""
        for groups in self._groups.values():
            for group in groups.values():
                group.close()


class Selective(Subscriber):
    """One of a group (a `Listener`).

    Args:
        connection: The connection.
        group: The group, which it has entered.
        selections: All groups.
        channel: All subscribers.
        refuse: Called when it sends more than its first frame.
    """

    __slots__ = ("_group", "_selections")

    def __init__(
        self,
        connection: Connection,
        group: Group,
        selections: Selections,
        channel: WebSocketChannel,
        refuse: Callable[[Connection], None],
    ) -> None:
        super().__init__(connection, group.stream.topic, channel, refuse, group.stream.key)
        self._group = group
        self._selections = selections

    def lost(self) -> None:
        """Leave."""
        super().lost()
        self._selections.leave(self._group)
