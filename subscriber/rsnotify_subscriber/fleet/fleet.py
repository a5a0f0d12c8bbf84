"""Follows many Sources in one process, within limits.

`Fleet` follows all Sources, and reports their statuses. A `FleetMember` keeps one subscriber
running: it starts the subscriber when a slot is free, and retries after each failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from enum import StrEnum
from random import Random

from msgspec import Struct

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.runtime.tasks import wait_for_event
from rsnotify.sync.doubts import CATCHING_UP
from rsnotify.sync.retry import Retry
from rsnotify_subscriber.pool import Limits, SubscriberPool
from rsnotify_subscriber.status import PushState, Status
from rsnotify_subscriber.subscriber import Subscriber

logger = logging.getLogger("rsnotify.subscriber.fleet")


class Phase(StrEnum):
    """The phase of a Source: waiting to start, followed, waiting after a failure, or ended.

    A followed Source may be unavailable: see `Status.error`.
    """

    WAITING = "waiting"
    FOLLOWED = "followed"
    FAILED = "failed"
    ENDED = "ended"


class FollowedSourceStatus(Struct, frozen=True):
    """The status of one Source. `error` says what is wrong, as a sentence."""

    phase: Phase
    status: Status
    error: str | None = None
    url: str = ""


class Standing(StrEnum):
    """The health of a copy: level, catching up without failures, or possibly wrong."""

    LEVEL = "level"
    BEHIND = "behind"
    DOUBT = "doubt"


def standing(one: FollowedSourceStatus) -> Standing:
    """Return the health of a copy, ignoring changes that are applied within a second."""
    status = one.status
    may_be_wrong = status.in_step is False or not CATCHING_UP.issuperset(status.doubt_kinds)
    if may_be_wrong or one.phase is Phase.FAILED:
        return Standing.DOUBT
    is_copied = status.level or status.through is not None
    if is_copied and status.behind_since is None:  # an error can only be a hub's
        return Standing.LEVEL
    return Standing.BEHIND if one.error is None else Standing.DOUBT


class FleetTotals(Struct, frozen=True):
    """Totals over all Sources: how many are level, receive push, or fail; and sums."""

    sources: int
    level: int
    pushed: int
    wrong: int
    resources: int
    applied: int
    pending: int


def totals(sources: Mapping[str, FollowedSourceStatus]) -> FleetTotals:
    each = [one.status for one in sources.values()]
    return FleetTotals(
        sources=len(each),
        level=sum(status.level for status in each),
        pushed=sum(status.push is PushState.UP for status in each),
        wrong=sum(one.error is not None for one in sources.values()),
        resources=sum(status.resources for status in each),
        applied=sum(status.applied for status in each),
        pending=sum(status.pending for status in each),
    )


#: The Source of the current task, for log lines, or an empty string.
SOURCE_NAME: ContextVar[str] = ContextVar("rsnotify_source", default="")

_RETRY = Retry(first=1.0, most=300.0)
#: Seconds after which a starting Source gives up its slot even if it is not level.
_MAX_SLOT_TIME = 10.0


class FleetMember:
    """Keeps one subscriber running. Cannot be reused.

    `start_slots` limits the number of Sources that start at the same time. `moved` is called when
    the phase has changed.
    """

    def __init__(
        self,
        name: str,
        subscriber: Subscriber,
        start_slots: asyncio.Semaphore,
        moved: Callable[[], None],
    ) -> None:
        self._name = name
        self._subscriber = subscriber
        self._start_slots = start_slots
        self._moved = moved
        self._random = Random()
        self._failures = 0
        self.phase = Phase.WAITING
        self._error: Exception | None = None
        self._stopping = asyncio.Event()
        self._waiting: asyncio.Task[bool] | None = None

    @property
    def status(self) -> FollowedSourceStatus:
        status = self._subscriber.status
        # A failure counts until the copy is level again.
        failed = self._error if self.phase is Phase.FAILED or not status.level else None
        error = status.error if failed is None else _message(failed)
        if error is None and status.in_step is False:
            error = status.difference
        return FollowedSourceStatus(self.phase, status, error, self._subscriber.url)

    @property
    def is_in_handler(self) -> bool:
        return bool(self._subscriber.in_handler)

    def stop(self) -> None:
        self._stopping.set()
        self._subscriber.stop()
        if self._waiting is not None:
            self._waiting.cancel()

    async def follow(self) -> None:
        """Follow until stopped. Retry after failures, with backoff."""
        SOURCE_NAME.set(self._name)
        while not self._stopping.is_set():
            await self._try(self._subscriber.run)
            if self.phase is Phase.FAILED:
                await wait_for_event(self._stopping, _RETRY.delay(self._failures, self._random))
        self._set_phase(Phase.ENDED)

    async def catch_up(self) -> None:
        """Catch up once. Do not retry."""
        SOURCE_NAME.set(self._name)
        await self._try(self._subscriber.catch_up)
        if self.phase is not Phase.FAILED:
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
        """Wait for a slot. Return False if the Source was stopped before."""
        self._waiting = asyncio.create_task(self._start_slots.acquire())
        try:
            await asyncio.wait({self._waiting})
        finally:
            self._waiting.cancel()
        return not self._waiting.cancelled()

    async def _release_slot(self, running: asyncio.Task[None]) -> None:
        """Release the slot when this Source is level, has an error, or takes too long."""
        begun = asyncio.create_task(
            self._subscriber.until(lambda status: status.level or status.error is not None)
        )
        try:
            await asyncio.wait(
                {running, begun}, timeout=_MAX_SLOT_TIME, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            begun.cancel()
            self._start_slots.release()

    def _fail(self, error: Exception) -> None:
        if self._error is None or _message(error) != _message(self._error):
            unexpected = not isinstance(error, RsnotifyError)
            logger.warning("following failed: %s", _message(error), exc_info=unexpected)
        # After the copy was level, earlier failures do not count.
        self._failures = 1 if self._subscriber.status.level else self._failures + 1
        self._error = error
        self._set_phase(Phase.FAILED)

    def _set_phase(self, phase: Phase) -> None:
        self.phase = phase
        self._moved()


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, RsnotifyError) else f"{type(error).__name__}: {error}"


#: Seconds between two checks of a condition in `Fleet.until`, each of which may take as long.
_CHECK_INTERVAL = 0.02

_Run = Callable[[FleetMember], Coroutine[None, None, None]]


class Fleet:
    """Follows any number of Sources. A failing Source is retried while the others continue.

    For each Source, add a `Subscriber(…, shared=fleet.shared)` that was not started, with its own
    handler and state. Then call `run` or `catch_up`, or use the fleet as an async context manager:
    it then follows in the background.

    Args:
        limits: The limits for all Sources together.

    Attributes:
        shared: The argument `shared` for the subscribers of this fleet.

    Raises:
        ConfigurationError: A limit is less than one.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        limits.check()
        self.shared = SubscriberPool(limits)
        self._start_slots = asyncio.Semaphore(limits.starting)
        self._members: dict[str, FleetMember] = {}
        self._tasks: dict[FleetMember, asyncio.Task[None]] = {}
        #: Returns the processes that follow Sources elsewhere, by the Source's name.
        self.elsewhere: Callable[[], dict[str, str]] = dict
        #: Returns the statuses of Sources that no process follows, by name.
        self.unleased: Callable[[], dict[str, FollowedSourceStatus]] = dict
        #: The event loop of the last run.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._run: _Run | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> dict[str, FollowedSourceStatus]:
        """The status of each Source, by its name."""
        return self.unleased() | {name: member.status for name, member in self._members.items()}

    @property
    def in_handler(self) -> list[str]:
        """The names of the Sources whose handlers are running."""
        members = list(self._members.items())  # a copy, because another thread may add some
        return [name for name, member in members if member.is_in_handler]

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    @property
    def ended(self) -> set[str]:
        """The names of the Sources that are no longer followed, and whose states are closed."""
        return {name for name, member in self._members.items() if member.phase is Phase.ENDED}

    def __contains__(self, name: str) -> bool:
        return name in self._members

    async def until(self, condition: Callable[[Mapping[str, FollowedSourceStatus]], bool]) -> None:
        """Wait until the statuses meet a condition."""
        while not condition(self.status):
            await self.shared.moved.wait()
            await asyncio.sleep(_CHECK_INTERVAL)

    def add(self, name: str, subscriber: Subscriber) -> None:
        """Add a Source. If the fleet is running, start it.

        Raises:
            ConfigurationError: Another Source has this name.
        """
        if name in self._members:
            raise ConfigurationError(f"another Source is named {name}; use another name")
        member = self._members[name] = FleetMember(
            name, subscriber, self._start_slots, self.shared.wake
        )
        if self._run is not None:
            self._begin(member, self._run)

    async def remove(self, name: str) -> None:
        """Stop and remove a Source, after completing a commit in progress.

        Raises:
            KeyError: There is no Source with this name.
        """
        member = self._members.pop(name)
        member.stop()
        task = self._tasks.get(member)
        if task is not None:
            await asyncio.wait({task})  # if this is cancelled, `run` waits for it
            self._tasks.pop(member, None)

    async def run(self) -> None:
        """Follow until `stop` is called."""
        async with self.shared:
            self._begin_all(FleetMember.follow)
            try:
                await self._stopping.wait()
            finally:
                await self._end_all()

    async def catch_up(self) -> None:
        """Follow each Source until its copy is level with the Source's lists, or it fails.

        `status` has the errors.
        """
        async with self.shared:
            self._begin_all(FleetMember.catch_up)
            try:
                while running := [task for task in self._tasks.values() if not task.done()]:
                    await asyncio.wait(running)
            finally:
                await self._end_all()

    def stop(self) -> None:
        """End `run` or `catch_up` gracefully, after completing commits in progress."""
        self._stopping.set()
        for member in self._members.values():
            member.stop()

    async def __aenter__(self) -> Fleet:
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    def _begin_all(self, run: _Run) -> None:
        self.loop = asyncio.get_running_loop()
        self._run = run
        for member in self._members.values():
            self._begin(member, run)

    def _begin(self, member: FleetMember, run: _Run) -> None:
        self._tasks[member] = asyncio.create_task(run(member))
        if self._stopping.is_set():
            member.stop()

    async def _end_all(self) -> None:
        """Stop all members, and wait until they have ended. If cancelled, cancel them, too."""
        self._run = None
        self.stop()
        tasks, self._tasks = set(self._tasks.values()), {}
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
