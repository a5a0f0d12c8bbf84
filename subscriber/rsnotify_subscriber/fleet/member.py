"""One Source of a fleet: followed whatever happens, and begun when it is its turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from random import Random

from rsnotify.errors import RsnotifyError
from rsnotify.sync.retry import Retry
from rsnotify_subscriber.fleet.status import FollowedSourceStatus, Phase
from rsnotify_subscriber.subscriber import Subscriber

logger = logging.getLogger("rsnotify.subscriber.fleet")

#: Which Source of a fleet the current task is about, for who writes logs; empty for none.
SOURCE_NAME: ContextVar[str] = ContextVar("rsnotify_source", default="")

_RETRY = Retry(first=1.0, most=300.0)
#: Seconds after which the next may begin, though this one is not yet in step.
_PATIENCE = 10.0


class FleetMember:
    """Keeps one subscriber running; used once.

    Args:
        name: What the Source is called.
        subscriber: Follows it.
        turns: Lets a few begin at a time.
        moved: Is called when the phase has changed.
        retry: The waits between tries.
    """

    def __init__(
        self,
        name: str,
        subscriber: Subscriber,
        turns: asyncio.Semaphore,
        moved: Callable[[], None],
        retry: Retry = _RETRY,
    ) -> None:
        self._name = name
        self._subscriber = subscriber
        self._turns = turns
        self._moved = moved
        self._retry = retry
        self._random = Random()
        self._failures = 0
        self._phase = Phase.WAITING
        self._error: Exception | None = None
        self._stopping = asyncio.Event()
        self._turn: asyncio.Task[bool] | None = None

    @property
    def status(self) -> FollowedSourceStatus:
        """How it is doing."""
        status = self._subscriber.status
        # What failed counts until it is shown to work.
        failed = self._error if self._phase is Phase.FAILED or not status.level else None
        error = status.error if failed is None else _told(failed)
        if error is None and status.in_step is False:
            error = status.difference
        return FollowedSourceStatus(self._phase, status, error)

    @property
    def is_in_handler(self) -> bool:
        """Whether its handler has been called and has not returned."""
        return bool(self._subscriber.in_handler)

    def stop(self) -> None:
        """Let `follow` or `catch_up` end in order."""
        self._stopping.set()
        self._subscriber.stop()
        if self._turn is not None:
            self._turn.cancel()

    async def follow(self) -> None:
        """Follow until stopped; what fails is tried again, ever less often."""
        SOURCE_NAME.set(self._name)
        while not self._stopping.is_set():
            await self._try(self._subscriber.run)
            if self._phase is Phase.FAILED:
                await self._rest()
        self._turn_to(Phase.ENDED)

    async def catch_up(self) -> None:
        """Catch up once, when it is its turn; what fails is left as it is."""
        SOURCE_NAME.set(self._name)
        await self._try(self._subscriber.catch_up)
        if self._phase is not Phase.FAILED:
            self._turn_to(Phase.ENDED)

    async def _try(self, run: Callable[[], Coroutine[None, None, None]]) -> None:
        if not await self._wait_for_turn():
            return
        self._turn_to(Phase.FOLLOWED)
        running = asyncio.create_task(run())
        try:
            await self._give_way(running)
            await running
            self._error = None
        except Exception as error:
            self._fail(error)
        finally:
            running.cancel()  # in case that this is cancelled
            await asyncio.wait({running})

    async def _wait_for_turn(self) -> bool:
        """Return whether it has come; if not, one was stopped before."""
        self._turn = asyncio.create_task(self._turns.acquire())
        try:
            await asyncio.wait({self._turn})
        finally:
            self._turn.cancel()
        return not self._turn.cancelled()

    async def _give_way(self, running: asyncio.Task[None]) -> None:
        """Let the next begin once this one is in step or has a fault, or takes too long."""
        begun = asyncio.create_task(
            self._subscriber.until(lambda status: status.level or status.error is not None)
        )
        try:
            await asyncio.wait(
                {running, begun}, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            begun.cancel()
            self._turns.release()

    def _fail(self, error: Exception) -> None:
        if self._error is None or _told(error) != _told(self._error):
            unexpected = not isinstance(error, RsnotifyError)
            logger.warning("following failed: %s", _told(error), exc_info=unexpected)
        # What comes after one was in step is a new fault, and not the old one.
        self._failures = 1 if self._subscriber.status.level else self._failures + 1
        self._error = error
        self._turn_to(Phase.FAILED)

    async def _rest(self) -> None:
        delay = self._retry.delay(self._failures, self._random)
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopping.wait()

    def _turn_to(self, phase: Phase) -> None:
        self._phase = phase
        self._moved()


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, RsnotifyError) else f"{type(error).__name__}: {error}"
