"""Requests to callbacks, so many at once, of which none can hold up the others.

Theory of operation. There are two lanes. A request that was not tried before goes into the quick
one; what failed before goes into the slow one. Where somebody waits for the quick lane, a
request that has been in it for a second moves to the slow one; if that is full, it ends as if
its time were up. So the quick lane empties at least once a second, whatever callbacks do, and
the number of open connections is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from rsnotify_hub.websub.delivery.deadlines import Deadlines
from rsnotify_hub.websub.delivery.fair_queue import Capacity, FairQueue
from rsnotify_hub.websub.delivery.turn import Begin, DeliverySlot, Work

log = logging.getLogger("rsnotify.hub.websub")

#: How long a request may be in the quick lane while others wait for it, in seconds.
QUICK_SECONDS = 1.0

#: Places for deliveries.
QUICK = Capacity(400, per_host=50)
SLOW = Capacity(200, per_host=10)


class DeliveryScheduler:
    """All requests of one kind.

    Args:
        seconds: How long one may take.
        quick: Places in the quick lane.
        slow: Places in the slow lane.
        patience: How long a request may be in the quick lane while others wait, in seconds.
    """

    def __init__(
        self,
        seconds: float,
        *,
        quick: Capacity = QUICK,
        slow: Capacity = SLOW,
        patience: float = QUICK_SECONDS,
    ) -> None:
        self._loop = asyncio.get_running_loop()  # looking it up is a call of the system
        self._deadlines = Deadlines(seconds)
        self._patience = patience
        self._quick: FairQueue[DeliverySlot] = FairQueue(quick)
        self._slow: FairQueue[DeliverySlot] = FairQueue(slow)
        self._check: asyncio.TimerHandle | None = None
        self._closed = False

    def take(
        self, host: str, work: Work, *, begin: Begin | None = None, slow: bool = False
    ) -> DeliverySlot:
        """Do some work when its turn comes, at once where there is room.

        Args:
            host: Where its requests go.
            work: Makes them, each through `DeliverySlot.within`.
            begin: Is tried first.
            slow: Whether it failed before.
        """
        lane = self._slow if slow else self._quick
        turn = DeliverySlot(host, work, begin, lane, self._deadlines)
        if lane.has_place(host) and not self._closed:
            self._enter(turn)
        else:
            lane.wait(turn)
            self._check_later()
        return turn

    def waiting(self) -> int:
        """Count what waits for its turn."""
        return self._quick.waiting() + self._slow.waiting()

    def cancel(self, turn: DeliverySlot) -> None:
        """Give up a turn, or what it does."""
        turn.cancel()
        if turn.task is None:  # else its place is free once that has ended
            self.end(turn)

    def _enter(self, turn: DeliverySlot) -> None:
        turn.lane.enter(turn, self._loop.time())
        if not self._begins(turn):
            self.go_on(turn, turn.work(turn))

    def _begins(self, turn: DeliverySlot) -> bool:
        try:
            return turn.begin is not None and turn.begin(turn)
        except Exception:
            log.exception("a request to the callback at %s needs a task", turn.host)
            return False

    def go_on(self, turn: DeliverySlot, work: Coroutine[Any, Any, None]) -> None:
        """Go on with a turn in a task, and end it then."""
        turn.task = self._loop.create_task(work)
        turn.task.add_done_callback(partial(self._ended, turn))

    def _begin(self) -> None:
        for lane in (self._quick, self._slow):
            while not self._closed and (turn := lane.next()) is not None:
                self._enter(turn)
        self._check_later()

    def _check_later(self) -> None:
        if self._check is None and self._quick.is_wanted():
            due = self._loop.time() + self._patience
            self._check = self._loop.call_at(due, self._make_room, due)

    def _ended(self, turn: DeliverySlot, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request to the callback at %s broke off", turn.host, exc_info=error)
        self.end(turn)

    def end(self, turn: DeliverySlot) -> None:
        """End a turn: its place is free."""
        turn.lane.leave(turn)
        if turn.left is not None and not turn.left.done():
            turn.left.set_result(None)
        if turn.lane.is_wanted():
            self._begin()

    def _make_room(self, due: float) -> None:
        self._check = None
        now = self._loop.time()
        # Where this comes late, it is the hub that was slow: answers may be there, unread.
        if now - due <= self._patience / 2:
            for turn in self._quick.in_the_way(now - self._patience):
                self._put_aside(turn, now)
        self._begin()

    def _put_aside(self, turn: DeliverySlot, now: float) -> None:
        if self._slow.has_place(turn.host):
            self._quick.leave(turn)
            turn.lane = self._slow
            self._slow.enter(turn, now)
        else:
            turn.expire()

    async def close(self, seconds: float) -> None:
        """Begin nothing more, and give what is under way some seconds to end."""
        self._closed = True
        self._quick.clear()
        self._slow.clear()
        if self._check is not None:
            self._check.cancel()
        inside = [*self._quick.inside(), *self._slow.inside()]
        for turn in inside:
            turn.left = self._loop.create_future()
        if inside:
            await self._wait_for(inside, seconds)
        self._deadlines.close()

    async def _wait_for(self, turns: Sequence[DeliverySlot], seconds: float) -> None:
        endings = [turn.left for turn in turns if turn.left]
        await asyncio.wait(endings, timeout=seconds)
        for turn in turns:
            if turn.left and not turn.left.done():
                self.cancel(turn)
        await asyncio.gather(*endings)
