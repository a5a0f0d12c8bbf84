"""Many subscribers in one process, within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress

from rsnotify.errors import ConfigurationError
from rsnotify_subscriber.fleet.member import FleetMember
from rsnotify_subscriber.fleet.status import FollowedSourceStatus
from rsnotify_subscriber.pool import Limits, SubscriberPool
from rsnotify_subscriber.subscriber import Subscriber

#: The seconds between two checks of a condition on all Sources, as one may take as long.
_GATHER = 0.02

_Run = Callable[[FleetMember], Coroutine[None, None, None]]


class Fleet:
    """Follows any number of Sources. One that fails is retried, and the others continue.

    Each is a `Subscriber(…, shared=fleet.shared)` that was not started, with its own handler and
    location for its state. Use `run` or `catch_up`, or the fleet as an async context manager, which
    follows in the background while it is open.

    Args:
        limits: How much of the machine they may use together.

    Attributes:
        shared: What they share.

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
        self._run: _Run | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> dict[str, FollowedSourceStatus]:
        """The status of each Source, by its name."""
        return {name: member.status for name, member in self._members.items()}

    @property
    def in_handler(self) -> list[str]:
        """The names of Sources whose handler has been called and has not returned."""
        members = list(self._members.items())  # a copy, as this is called in any thread
        return [name for name, member in members if member.is_in_handler]

    def __contains__(self, name: str) -> bool:
        return name in self._members

    async def until(self, condition: Callable[[Mapping[str, FollowedSourceStatus]], bool]) -> None:
        """Wait until the statuses meet a condition, while the Sources are followed.

        It is checked soon after the status of a Source has changed.
        """
        while not condition(self.status):
            await self.shared.moved.wait()
            await asyncio.sleep(_GATHER)

    def add(self, name: str, subscriber: Subscriber) -> None:
        """Add a Source; it is followed at once if the fleet is running.

        Args:
            name: The name of the Source.
            subscriber: Follows it.

        Raises:
            ConfigurationError: There is one of this name.
        """
        if name in self._members:
            raise ConfigurationError(f"a Source named {name} is followed already")
        member = self._members[name] = FleetMember(
            name, subscriber, self._start_slots, self.shared.wake
        )
        if self._run is not None:
            self._begin(member, self._run)

    async def remove(self, name: str) -> None:
        """Remove a Source, and wait until changes that are being committed are committed.

        Raises:
            KeyError: There is none of this name.
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
        """Follow each Source until its copy is level with its lists, or it has failed.

        The `status` then has the errors.
        """
        async with self.shared:
            self._begin_all(FleetMember.catch_up)
            try:
                while running := [task for task in self._tasks.values() if not task.done()]:
                    await asyncio.wait(running)
            finally:
                await self._end_all()

    def stop(self) -> None:
        """End `run` or `catch_up` in order: changes that are being committed are committed."""
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
        self._run = run
        for member in self._members.values():
            self._begin(member, run)

    def _begin(self, member: FleetMember, run: _Run) -> None:
        self._tasks[member] = asyncio.create_task(run(member))
        if self._stopping.is_set():
            member.stop()

    async def _end_all(self) -> None:
        """Wait until all have ended; if this is cancelled, cancel them, too."""
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
