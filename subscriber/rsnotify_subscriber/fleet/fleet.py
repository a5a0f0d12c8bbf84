"""The library: many subscribers in one process, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress

from rsnotify.errors import ConfigurationError
from rsnotify_subscriber.fleet.member import FleetMember
from rsnotify_subscriber.fleet.status import FollowedSourceStatus
from rsnotify_subscriber.pool import Limits, SubscriberPool
from rsnotify_subscriber.subscriber import Subscriber

#: Seconds for which changes are gathered, since to look at all may take as long.
_GATHER = 0.02

_Run = Callable[[FleetMember], Coroutine[None, None, None]]


class Fleet:
    """Follows any number of Sources. The failure of one is tried again, and ends none of them.

    Each is a `Subscriber(…, shared=fleet.shared)` that was not begun, with its own handler and
    place for its state. Use `run` or `catch_up`, or the fleet as an async context manager, which
    follows in the background as long as it is open.

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
        self._turns = asyncio.Semaphore(limits.starting)
        self._members: dict[str, FleetMember] = {}
        self._tasks: dict[FleetMember, asyncio.Task[None]] = {}
        self._run: _Run | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> dict[str, FollowedSourceStatus]:
        """How each is doing, by its name."""
        return {name: member.status for name, member in self._members.items()}

    @property
    def in_handler(self) -> list[str]:
        """The names of those whose handler has been called and has not returned."""
        members = list(self._members.items())  # asked for in any thread
        return [name for name, member in members if member.is_in_handler]

    def __contains__(self, name: str) -> bool:
        """Return whether a Source of this name is followed."""
        return name in self._members

    async def until(self, condition: Callable[[Mapping[str, FollowedSourceStatus]], bool]) -> None:
        """Wait until the status of all is such, while they are followed.

        It is looked at soon after something has changed for one of them.
        """
        while not condition(self.status):
            await self.shared.moved.wait()
            await asyncio.sleep(_GATHER)

    def add(self, name: str, subscriber: Subscriber) -> None:
        """Follow one Source more; at once where the fleet is running.

        Args:
            name: What it is called.
            subscriber: Follows it.

        Raises:
            ConfigurationError: There is one of this name.
        """
        if name in self._members:
            raise ConfigurationError(f"a Source named {name} is followed already")
        member = self._members[name] = FleetMember(name, subscriber, self._turns, self.shared.wake)
        if self._run is not None:
            self._begin(member, self._run)

    async def remove(self, name: str) -> None:
        """Follow a Source no longer, and wait until what is being committed is committed.

        Raises:
            KeyError: There is none of this name.
        """
        member = self._members.pop(name)
        member.stop()
        task = self._tasks.get(member)
        if task is not None:
            await asyncio.wait({task})  # where nobody waits for it any more, `run` does
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
        """Follow each until it is level with its Source's lists, or has failed.

        The `status` then tells what has.
        """
        async with self.shared:
            self._begin_all(FleetMember.catch_up)
            try:
                while running := [task for task in self._tasks.values() if not task.done()]:
                    await asyncio.wait(running)
            finally:
                await self._end_all()

    def stop(self) -> None:
        """Let `run` or `catch_up` end in order: what is being committed is committed."""
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
        """Wait until all have ended; where that is cancelled, they are, too."""
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
