"""What the Publishers of one process share: an event loop, threads, a scheduler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC
from enum import StrEnum
from typing import Any, TypeVar

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from rsnotify.runtime.lanes import Lane
from rsnotify_publisher.background.journal_poller import JournalPoller
from rsnotify_publisher.journal.storage import USUAL_MEMORY

T = TypeVar("T")


class WorkKind(StrEnum):
    """The kinds of work on documents, each with threads of its own.

    What is short must not wait for what is long: a Change List not for a Resource List, nor that
    for a dump; and no document for the Source's own code, which tells what resources hold.
    """

    CHANGES = "changes"
    RESOURCES = "resources"
    DUMPS = "dumps"


_WORKERS = {WorkKind.CHANGES: 6, WorkKind.RESOURCES: 4, WorkKind.DUMPS: 2}
#: Threads that read contents to send them inline.
_READERS = 6
#: Threads in which sets that are one of several commit. What they write waits for the disk.
_RECORDERS = 8
#: MiB of all journals together that are kept at hand, and at least of each.
_MEMORY, _LEAST_MEMORY = 512.0, 2.0
#: How many sets begin at a time; the others wait until these have written all documents.
_STARTING = 8


class WorkPermit:
    """A place among those who begin at the same time.

    Args:
        places: How many there are.
    """

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_taken = False

    async def take(self) -> None:
        """Wait until there is one."""
        await self._places.acquire()
        self._is_taken = True

    def give(self) -> None:
        """Leave it to the next, if that was not done."""
        if self._is_taken:
            self._is_taken = False
            self._places.release()


class _PoolThreads:
    """What there is while somebody uses it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.workers = {
            kind: ThreadPoolExecutor(most, f"rsnotify-{kind}") for kind, most in _WORKERS.items()
        }
        self._contents = ThreadPoolExecutor(_READERS, "rsnotify-contents")
        self.recorders = ThreadPoolExecutor(_RECORDERS, "rsnotify-recorder")
        self.lookout = JournalPoller()
        self.turns = asyncio.Semaphore(_STARTING)
        # This executor calls a job right away, in the event loop: it only sets an event.
        self.scheduler = AsyncIOScheduler(executors={"default": DebugExecutor()}, timezone=UTC)
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="rsnotify-publisher", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until all work is done, and end."""
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        for pool in (*self.workers.values(), self.recorders):
            pool.shutdown()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self.loop.set_default_executor(self._contents)
        looking = asyncio.create_task(self.lookout.run())
        self.scheduler.start()
        try:
            await self._stop.wait()
        finally:
            self.scheduler.shutdown(wait=False)
            looking.cancel()


class PublisherPool:
    """One thread with an event loop in which sets are led, and a few threads for their work.

    It runs while at least one Publisher uses it.

    Args:
        sets: How many there are. The changes of one have a thread of their own.
    """

    def __init__(self, sets: int = 1) -> None:
        self._sets = sets
        self._lock = threading.Lock()
        self._users = 0
        self._running: _PoolThreads

    def enter(self) -> None:
        """Begin to use it."""
        with self._lock:
            if self._users == 0:
                self._running = _PoolThreads()
            self._users += 1

    def leave(self) -> None:
        """Use it no longer; the last waits until all work is done."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._running.end()

    # From any thread

    def recorder(self) -> Executor | None:
        """Return what commits the changes of one Publisher, one group after the other.

        None where a thread of its own is to do that.
        """
        return None if self._sets == 1 else Lane(self._running.recorders)

    @property
    def memory(self) -> float:
        """How much of its journal one set may keep at hand, in MiB."""
        return max(_LEAST_MEMORY, min(USUAL_MEMORY, _MEMORY / self._sets))

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Do something in the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._running.loop)

    def call(self, what: Callable[[], object]) -> None:
        """Call something in the event loop, soon."""
        with suppress(RuntimeError):  # it was closed this moment
            self._running.loop.call_soon_threadsafe(what)

    # In the event loop

    async def in_thread(self, kind: WorkKind, work: Callable[[], T]) -> T:
        """Do what takes long where nothing waits for it."""
        running = self._running
        return await running.loop.run_in_executor(running.workers[kind], work)

    @property
    def scheduler(self) -> AsyncIOScheduler:
        """What tells when something is due. It calls a job right away, in the event loop."""
        return self._running.scheduler

    @property
    def lookout(self) -> JournalPoller:
        """What notices that another process has written."""
        return self._running.lookout

    @property
    def turns(self) -> asyncio.Semaphore:
        """Lets a few begin at a time."""
        return self._running.turns
