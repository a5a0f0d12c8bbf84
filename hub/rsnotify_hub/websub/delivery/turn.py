"""One request to a callback: what does it, and what ends it when its time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from rsnotify_hub.websub.delivery.answers import Answer
from rsnotify_hub.websub.delivery.deadlines import Deadlines
from rsnotify_hub.websub.delivery.fair_queue import FairQueue

_TOO_LONG = "takes too long"


class Request(Protocol):
    """A request that is under way without a task."""

    def cancel(self) -> None:
        """Give it up."""


class DeliverySlot:
    """A request that waits for its turn, or is under way.

    Args:
        host: Where it goes.
        work: What to do when its turn has come.
        begin: What to try first.
        lane: Where it waits, or has its place.
        deadlines: Say when its time is up.

    Attributes:
        task: What does the work, if it needs one.
        left: Done when it has ended; whoever waits for that sets it.
    """

    __slots__ = (
        "_deadlines",
        "_done",
        "_expired",
        "_request",
        "_requesting",
        "begin",
        "host",
        "lane",
        "left",
        "task",
        "work",
    )

    def __init__(
        self,
        host: str,
        work: Work,
        begin: Begin | None,
        lane: FairQueue[DeliverySlot],
        deadlines: Deadlines,
    ) -> None:
        self.host = host
        self.work = work
        self.begin = begin
        self.lane = lane
        self.task: asyncio.Task[None] | None = None
        self.left: asyncio.Future[None] | None = None
        self._deadlines = deadlines
        self._request: Request | None = None
        self._done: Done | None = None
        self._requesting = self._expired = False

    async def within(self, request: Coroutine[Any, Any, Answer]) -> Answer:
        """Make a request in the time there is for it; from the task of this turn only."""
        self._deadlines.begin(self)
        self._requesting = True
        try:
            return await request
        except asyncio.CancelledError:
            # Somebody else may have cancelled it, too.
            if not self._expired or self._own_task.uncancel() > 0:
                raise
            return Answer(None, _TOO_LONG)
        finally:
            self._requesting = False
            self._deadlines.end(self)

    def expect(self, request: Request, done: Done) -> None:
        """Wait for the answer to a request that was begun, in the time there is for it.

        Args:
            request: It will call `answered`.
            done: Takes what `answered` is called with, or that its time was up.
        """
        self._request, self._done = request, done
        self._deadlines.begin(self)

    def answered(self, answer: Answer | None) -> None:
        """Take the answer to a request that was begun, or None where it must be made anew."""
        done = self._done
        self._forget()
        if done is not None:
            done(answer)

    def _forget(self) -> None:
        self._request = self._done = None
        self._deadlines.end(self)

    def cancel(self) -> None:
        """Give up what it does."""
        if self.task is not None:
            self.task.cancel()
        elif self._request is not None:
            self._request.cancel()
            self._forget()

    def expire(self) -> None:
        """Let its request, if it makes one just now, be the one whose time is up."""
        if self._request is not None:
            self._request.cancel()
            self.answered(Answer(None, _TOO_LONG))
        elif self._requesting and not self._expired:
            self._expired = True
            self._own_task.cancel()

    @property
    def _own_task(self) -> asyncio.Task[None]:
        assert self.task is not None
        return self.task


#: Does what a turn is for, in a task.
Work = Callable[[DeliverySlot], Coroutine[Any, Any, None]]

#: Begins what a turn is for without a task (`DeliverySlot.expect`), where it can; whoever does so calls
#: `Turns.end`, or `Turns.go_on`.
Begin = Callable[[DeliverySlot], bool]

Done = Callable[[Answer | None], None]
