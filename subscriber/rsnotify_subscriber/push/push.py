"""Keeping ways to a topic open: as many as are wanted, the best that work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from rsnotify.errors import FetchError
from rsnotify.format.datetimes import Instant
from rsnotify_subscriber.events import Event, PushDown, PushUp
from rsnotify_subscriber.push.endpoint_connection import EndpointConnection
from rsnotify_subscriber.push.endpoints import Endpoint
from rsnotify_subscriber.push.preference import EndpointPreference
from rsnotify_subscriber.tasks import Tasks

logger = logging.getLogger("rsnotify.subscriber")


#: How many seconds after the lists a way may tell the same.
SILENCE_GRACE = 15.0


class PushEvents(Protocol):
    """Who is told what arrives by any way, when it begins to, and when nothing does any more."""

    def up(self) -> None:
        """Hear that fragments arrive from now on, from `since` without a hole, or with a gap."""

    def audience(self, listeners: int) -> None:
        """Hear how many hear the same, where the hub tells."""

    def gap(self) -> None:
        """Hear that a hub does not reach back to `since`."""

    def fragment(self, document: bytes) -> Instant | None:
        """Take a fragment; return up to which instant it tells, if it tells something."""

    def down(self) -> None:
        """Hear that no way is left."""


class Push:
    """A lasting subscription to a topic.

    Args:
        ways: The ways to it, the best first.
        events: Who is told.
        since: Gives the instant to join at.
        random: The source of jitter.
        most: How many ways are to be up at a time.
        announce: Is told of each way that comes or goes.
        needed: Whether it is worth a warning when no way is left.
    """

    def __init__(
        self,
        ways: Sequence[Endpoint],
        events: PushEvents,
        since: Callable[[], Instant | None],
        random: Random,
        *,
        most: int = 1,
        announce: Callable[[Event], None] = lambda _: None,
        needed: bool = True,
    ) -> None:
        self._needed = needed
        self._ways = tuple(ways)
        self._preference = EndpointPreference(ways, random, most=most)
        self._events = events
        self._since = since
        self._announce = announce
        self._open: dict[Endpoint, EndpointConnection] = {}
        self._failed: dict[Endpoint, str] = {}  # since they were up last, and why
        self._tasks = Tasks(self._end)
        self._ended: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ways(self) -> tuple[Endpoint, ...]:
        """The ways that there are, the best first."""
        return self._ways

    @property
    def up(self) -> list[Endpoint]:
        """The ways by which changes arrive now, the best first."""
        return [line.way for line in self._lines()]

    @property
    def hubs(self) -> tuple[str, ...]:
        """The hubs from which they arrive, in the same order."""
        return tuple(line.hub for line in self._lines())

    @property
    def error(self) -> str | None:
        """Why the best way is not up, if none is and it was tried."""
        reasons = (self._failed.get(way) for way in self._ways)
        return None if self._lines() else next(filter(None, reasons), None)

    def _lines(self) -> list[EndpointConnection]:
        lines = (self._open.get(way) for way in self._ways)
        return [line for line in lines if line is not None and line.counts]

    def take(self, ways: Sequence[Endpoint]) -> None:
        """Use these ways from now on; those that were there before stay as they are."""
        self._ways = tuple(ways)
        self._preference.change(ways)
        self._failed = {way: why for way, why in self._failed.items() if way in ways}
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
        now = loop.time()  # for both: what falls between two looks would be forgotten
        wanted = self._preference.tick(now)
        for way in [way for way in self._open if way not in wanted]:
            self._close(way)
        for way in [way for way in wanted if way not in self._open]:
            self._begin(way)
        if self._timer is not None:
            self._timer.cancel()
        due = self._preference.due(now)
        self._timer = None if due is None else loop.call_at(due, self._arrange)

    def _begin(self, way: Endpoint) -> None:
        self._open[way] = line = EndpointConnection(way, self)
        line.open(self._tasks, self._since)

    def _close(self, way: Endpoint) -> None:
        """Do without a way. To take leave of a hub may take a while, and nothing waits for it."""
        line = self._open.pop(way)
        line.close()
        if line.counts:
            self._tell_down(line, "", counted=True)

    # What becomes of those that are open: the `Exchange` of lines

    def line_up(self, line: EndpointConnection) -> None:
        """Record that a hub has accepted the subscription."""
        self._failed.pop(line.way, None)
        self._preference.up(line.way, line.up_at, line.place)
        self._tell_up(line)
        self._arrange()

    def line_told(self, line: EndpointConnection) -> None:
        """Hear that a way told something new."""
        self._preference.heard(line.way, line.heard_at)
        if line.is_mute:
            line.is_mute = False
            self._tell_up(line)
        if len(self._open) > 1:
            self._arrange()

    def line_lost(self, line: EndpointConnection, error: FetchError) -> None:
        """Hear that nothing arrives by a way any more."""
        del self._open[line.way]
        wish = error.retry_after or 0.0
        self._preference.down(line.way, asyncio.get_running_loop().time(), wish)
        is_news = line.way not in self._failed
        refusal = error.remedy is not None and self._failed.get(line.way) != str(error)
        self._failed[line.way] = str(error)
        self._log(error, is_news=is_news or refusal, refused=error.remedy is not None)
        if is_news:
            self._tell_down(line, str(error), counted=line.counts)
        self._arrange()

    def audience(self, listeners: int) -> None:
        """Hear how many hear the same."""
        self._events.audience(listeners)

    def gap(self) -> None:
        """Hear that a hub does not reach back."""
        self._events.gap()

    def fragment(self, document: bytes) -> Instant | None:
        """Take a fragment."""
        return self._events.fragment(document)

    # Those that are up, and yet tell nothing

    def pulled(self, began: float, *, news: bool) -> None:
        """Hear what the lists had, which a way should have told, too.

        What happened before a way came up it need not tell. So the first lists that are read from
        then on say nothing about it.

        Args:
            began: When reading them began.
            news: Whether they had what no way had told.
        """
        loop = asyncio.get_running_loop()
        for line in self._open.values():
            if line.counts and line.up_at <= began:
                if news and line.is_due:
                    loop.call_later(SILENCE_GRACE, self._doubt, line, loop.time())
                line.is_due = True

    def _doubt(self, line: EndpointConnection, since: float) -> None:
        """Count no more on a way that has told nothing since some time."""
        if self._open.get(line.way) is not line or not line.counts or line.heard_at > since:
            return
        reason = f"{line.hub}: it does not tell of changes that the lists have"
        line.is_mute = True
        self._preference.mute(line.way)
        self._log(reason, is_news=True)
        self._tell_down(line, reason, counted=True)
        self._arrange()

    # What is told of them

    def _log(self, reason: object, *, is_news: bool, refused: bool = False) -> None:
        hubs = ", ".join(self.hubs)
        if hubs:
            how = "refuses this Destination" if refused else "is away"
            state = f"a hub {how}, changes arrive by {hubs}"
        else:
            state = f"push is {'refused' if refused else 'away'}, the lists are polled"
        level = logging.WARNING if is_news and self._needed else logging.INFO
        logger.log(level, "%s: %s", state, reason)

    def _tell_up(self, line: EndpointConnection) -> None:
        way = line.way
        logger.log(
            logging.INFO if self._needed else logging.DEBUG, "changes arrive by %s", line.hub
        )
        self._announce(PushUp(way.kind, line.hub, way.topic))
        if self.up == [way]:
            self._events.up()

    def _tell_down(self, line: EndpointConnection, reason: str, *, counted: bool) -> None:
        way, left = line.way, len(self.up)
        self._announce(PushDown(way.kind, line.hub, way.topic, reason, left))
        if counted and not left:
            self._events.down()
