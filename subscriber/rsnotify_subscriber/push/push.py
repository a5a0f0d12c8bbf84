"""Keeping ways to a topic open: as many as are wanted, the best that work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from rsnotify.datetimes import Instant
from rsnotify.errors import FetchError
from rsnotify_subscriber.events import Event, PushDown, PushUp
from rsnotify_subscriber.push.preference import Preference
from rsnotify_subscriber.push.transport import Listener
from rsnotify_subscriber.push.ways import Way
from rsnotify_subscriber.tasks import Tasks

logger = logging.getLogger("rsnotify.subscriber")

#: How it is told that no way is up.
_NONE = "push is away, the lists are polled"


class Events(Listener, Protocol):
    """Who is told what arrives by any way, when it begins to, and when nothing does any more."""

    def down(self) -> None:
        """Hear that the last way is lost."""


class Push:
    """A lasting subscription to a topic.

    Args:
        ways: The ways to it, the best first.
        events: Who is told.
        since: Gives the instant to join at.
        random: The source of jitter.
        most: How many ways are to be up at a time.
        announce: Is told of each way that comes or goes.
    """

    def __init__(
        self,
        ways: Sequence[Way],
        events: Events,
        since: Callable[[], Instant | None],
        random: Random,
        *,
        most: int = 1,
        announce: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self._ways = tuple(ways)
        self._preference = Preference(ways, random, most=most)
        self._events = events
        self._since = since
        self._announce = announce
        self._open: dict[Way, _Line] = {}
        self._failed: set[Way] = set()  # since they were up last
        self._tasks = Tasks(self._end)
        self._ended: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways that there are, the best first."""
        return self._ways

    @property
    def up(self) -> list[Way]:
        """The ways by which changes arrive now, the best first."""
        lines = (self._open.get(way) for way in self._ways)
        return [line.way for line in lines if line is not None and line.is_up]

    def take(self, ways: Sequence[Way]) -> None:
        """Use these ways from now on; those that were there before stay as they are."""
        self._ways = tuple(ways)
        self._preference.change(ways)
        self._failed.intersection_update(ways)
        self._arrange()

    async def run(self) -> None:
        """Receive until cancelled."""
        self._ended = asyncio.get_running_loop().create_future()
        try:
            self._arrange()
            await self._ended
        finally:
            self._ended = None
            for way in list(self._open):
                self._close(way)
            if self._timer is not None:
                self._timer.cancel()
            await self._tasks.cancel()

    def _end(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    # Which ways are open

    def _arrange(self) -> None:
        """Open and close ways, as it is time."""
        if self._ended is None:
            return
        loop = asyncio.get_running_loop()
        wanted = self._preference.tick(loop.time())
        for way in [way for way in self._open if way not in wanted]:
            self._close(way)
        for way in [way for way in wanted if way not in self._open]:
            self._begin(way)
        if self._timer is not None:
            self._timer.cancel()
        due = self._preference.due(loop.time())
        self._timer = None if due is None else loop.call_at(due, self._arrange)

    def _begin(self, way: Way) -> None:
        self._open[way] = line = _Line(way, self._events, self._came_up)
        line.task = self._tasks.spawn(self._receive(line))

    async def _receive(self, line: _Line) -> None:
        try:
            await line.way.transport().receive(self._since(), line)
        except FetchError as error:
            if self._open.get(line.way) is line:
                self._lost(line, error)

    def _close(self, way: Way) -> None:
        """Do without a way. To take leave of a hub may take a while, and nothing waits for it."""
        line = self._open.pop(way)
        line.close()
        if line.is_up:
            self._tell_down(line, "")

    # What becomes of those that are open

    def _came_up(self, line: _Line) -> None:
        is_first = self.up == [line.way]
        self._failed.discard(line.way)
        self._preference.up(line.way, asyncio.get_running_loop().time())
        logger.info("changes arrive by %s", line.way.hub)
        self._announce(PushUp(line.way.kind, line.way.hub, line.way.topic))
        if is_first:
            self._events.up()
        self._arrange()

    def _lost(self, line: _Line, error: FetchError) -> None:
        del self._open[line.way]
        wish = error.retry_after or 0.0
        self._preference.down(line.way, asyncio.get_running_loop().time(), wish)
        is_news = line.way not in self._failed
        self._failed.add(line.way)
        self._log(error, is_news=is_news)
        if is_news:
            self._tell_down(line, str(error))
        self._arrange()

    def _log(self, error: FetchError, *, is_news: bool) -> None:
        hubs = ", ".join(way.hub for way in self.up)
        state = f"a hub is away, changes arrive by {hubs}" if hubs else _NONE
        logger.log(logging.WARNING if is_news else logging.INFO, "%s: %s", state, error)

    def _tell_down(self, line: _Line, reason: str) -> None:
        way, left = line.way, len(self.up)
        self._announce(PushDown(way.kind, way.hub, way.topic, reason, left))
        if line.is_up and not left:
            self._events.down()


class _Line:
    """A way that is open, until it is lost or closed; a `Listener`.

    Args:
        way: Which.
        events: Who is told what arrives.
        came_up: Is told when the hub has accepted the subscription.
    """

    def __init__(self, way: Way, events: Listener, came_up: Callable[[_Line], None]) -> None:
        self.way = way
        self.is_up = False
        self.task: asyncio.Task[None] | None = None
        self._events = events
        self._came_up = came_up
        self._is_closed = False

    def close(self) -> None:
        """Hear nothing more by it."""
        self._is_closed = True
        if self.task is not None:
            self.task.cancel()

    def up(self) -> None:
        """Hear that the hub has accepted the subscription."""
        if not self.is_up and not self._is_closed:
            self.is_up = True
            self._came_up(self)

    def audience(self, listeners: int) -> None:
        """Hear how many hear the same."""
        if not self._is_closed:
            self._events.audience(listeners)

    def gap(self) -> None:
        """Hear that the hub does not reach back."""
        if not self._is_closed:
            self._events.gap()

    def fragment(self, document: bytes) -> None:
        """Take a fragment."""
        if not self._is_closed:
            self._events.fragment(document)
