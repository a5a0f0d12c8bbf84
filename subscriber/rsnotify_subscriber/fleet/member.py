"""One Source of a fleet: started when there is a slot, and followed again after each failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from random import Random

from rsnotify.errors import RsnotifyError
from rsnotify.runtime.tasks import wait_for_event
from rsnotify.sync.retry import Retry
from rsnotify_subscriber.fleet.status import FollowedSourceStatus, Phase
from rsnotify_subscriber.subscriber import Subscriber

logger = logging.getLogger("rsnotify.subscriber.fleet")

#: The Source of the current task, for log lines; empty for none.
SOURCE_NAME: ContextVar[str] = ContextVar("rsnotify_source", default="")

_RETRY = Retry(first=1.0, most=300.0)
#: The seconds after which the next Source may start, even if this one is not yet in step.
_START_PATIENCE = 10.0


class FleetMember:
    """Keeps one subscriber running; used once.

    Args:
        name: The name of the Source.
        subscriber: Follows it.
        start_slots: Limits how many Sources start at the same time.
        moved: Called when the phase has changed.
        retry: The waits between attempts.
    """

    def __init__(
        self,
        name: str,
        subscriber: Subscriber,
        start_slots: asyncio.Semaphore,
        moved: Callable[[], None],
        retry: Retry = _RETRY,
    ) -> None:
        self._name = name
        self._subscriber = subscriber
        self._start_slots = start_slots
        self._moved = moved
        self._retry = retry
        self._random = Random()
        self._failures = 0
        self._phase = Phase.WAITING
        self._error: Exception | None = None
        self._stopping = asyncio.Event()
        self._waiting: asyncio.Task[bool] | None = None

    @property
    def status(self) -> FollowedSourceStatus:
        status = self._subscriber.status
        # A failure counts until the copy is level again.
        failed = self._error if self._phase is Phase.FAILED or not status.level else None
        error = status.error if failed is None else _message(failed)
        if error is None and status.in_step is False:
            error = status.difference
        return FollowedSourceStatus(self._phase, status, error)

    @property
    def is_in_handler(self) -> bool:
        return bool(self._subscriber.in_handler)

    def stop(self) -> None:
        self._stopping.set()
        self._subscriber.stop()
        if self._waiting is not None:
            self._waiting.cancel()

    async def follow(self) -> None:
        """Follow until stopped; after a failure try again, with growing waits."""
        SOURCE_NAME.set(self._name)
        while not self._stopping.is_set():
            await self._try(self._subscriber.run)
            if self._phase is Phase.FAILED:
                await self._back_off()
        self._set_phase(Phase.ENDED)

    async def catch_up(self) -> None:
        """Catch up once, when there is a slot; a failure is final."""
        SOURCE_NAME.set(self._name)
        await self._try(self._subscriber.catch_up)
        if self._phase is not Phase.FAILED:
            self._set_phase(Phase.ENDED)

    async def _try(self, run: Callable[[], Coroutine[None, None, None]]) -> None:
        if not await self._wait_for_slot():
            return
        self._set_phase(Phase.FOLLOWED)
        running = asyncio.create_task(run())
        try:
            await self._release_slot(running)
            await running
            self._error = None
        except Exception as error:
            self._fail(error)
        finally:
            running.cancel()  # if this task was cancelled
            await asyncio.wait({running})

    async def _wait_for_slot(self) -> bool:
        """Return whether there is a slot now; if not, the Source was stopped before."""
        self._waiting = asyncio.create_task(self._start_slots.acquire())
        try:
            await asyncio.wait({self._waiting})
        finally:
            self._waiting.cancel()
        return not self._waiting.cancelled()

    async def _release_slot(self, running: asyncio.Task[None]) -> None:
        """Release the slot once this Source is in step or has an error, or takes too long."""
        begun = asyncio.create_task(
            self._subscriber.until(lambda status: status.level or status.error is not None)
        )
        try:
            await asyncio.wait(
                {running, begun}, timeout=_START_PATIENCE, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            begun.cancel()
            self._start_slots.release()

    def _fail(self, error: Exception) -> None:
        if self._error is None or _message(error) != _message(self._error):
            unexpected = not isinstance(error, RsnotifyError)
            logger.warning("following failed: %s", _message(error), exc_info=unexpected)
        # A failure after the copy was level is a new one.
        self._failures = 1 if self._subscriber.status.level else self._failures + 1
        self._error = error
        self._set_phase(Phase.FAILED)

    async def _back_off(self) -> None:
        delay = self._retry.delay(self._failures, self._random)
        await wait_for_event(self._stopping, delay)

    def _set_phase(self, phase: Phase) -> None:
        self._phase = phase
        self._moved()


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, RsnotifyError) else f"{type(error).__name__}: {error}"
