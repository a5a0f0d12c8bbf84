"""The event loop, threads and scheduler that the Publishers of one process share.

`JobScheduler` runs jobs at intervals or at the times of cron expressions. It is based on
APScheduler, which uses the time of day and computes how long to sleep when a job is added or has
run. The clock may be set during that sleep, and on Linux the timers of the event loop stop while
the machine is suspended. The scheduler therefore compares its jobs with the clock every few
seconds: an interval job that is due more than one interval from now runs at once, and a cron time
that has passed is noticed.

`JournalPoller` detects writes to the journals by other processes, by polling the journals' data
versions.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from queue import SimpleQueue
from typing import Any, TypeVar

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from msgspec import Struct

from rsnotify_publisher.journal import Journal
from rsnotify_publisher.journal.journal import USUAL_MEMORY
from rsnotify_publisher.options import MISFIRE_GRACE, JobSchedule
from rsnotify_publisher.push.websocket import HubConnections

T = TypeVar("T")

_log = logging.getLogger("rsnotify.publisher")


class WorkKind(StrEnum):
    """The kinds of work on documents, each with separate threads.

    Short work must not wait for long work: a Change List must not wait for a Resource List, nor a
    Resource List for a dump. No document must wait for the Source's callbacks that return contents.
    """

    CHANGES = "changes"
    RESOURCES = "resources"
    DUMPS = "dumps"


_WORKERS = {WorkKind.CHANGES: 6, WorkKind.RESOURCES: 4, WorkKind.DUMPS: 2}
#: Number of threads that read contents to send inline. They wait for the Source's callbacks.
_READERS = 6
#: Number of threads that commit changes for callers that cannot. They wait for the disk.
_RECORDERS = 8
#: Cache for all journals together, and the minimum for each, in MiB.
_MEMORY, _LEAST_MEMORY = 512.0, 2.0
#: Maximum number of sets that start at once. Others wait until these have written all documents.
_STARTING = 8


class PublisherPool:
    """A thread with an event loop for all sets, and a few threads for their work.

    The threads run while at least one Publisher uses the pool.
    """

    def __init__(self, sets: int = 1) -> None:
        self._sets = sets
        self._lock = threading.Lock()
        self._users = 0
        self.threads: PoolThreads

    def enter(self) -> None:
        """Start using the pool. The first user starts the threads."""
        with self._lock:
            if self._users == 0:
                self.threads = PoolThreads(self._sets)
            self._users += 1

    def leave(self) -> None:
        """Stop using the pool. The last user waits until all work is done."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self.threads.end()

    @property
    def memory(self) -> float:
        """The cache for one journal, in MiB."""
        return max(_LEAST_MEMORY, min(USUAL_MEMORY, _MEMORY / self._sets))

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the event loop. Any thread may call this."""
        return asyncio.run_coroutine_threadsafe(work, self.threads.loop)

    def call(self, function: Callable[[], object]) -> None:
        """Schedule a function in the event loop. Any thread may call this."""
        with suppress(RuntimeError):  # the loop has just been closed
            self.threads.loop.call_soon_threadsafe(function)

    async def in_thread(self, kind: WorkKind, work: Callable[[], T]) -> T:
        """Run blocking work in a thread for its kind. Must be called in the event loop."""
        return await self.threads.loop.run_in_executor(self.threads.workers[kind], work)


class PoolThreads:
    """The running threads of a pool for a number of sets."""

    def __init__(self, sets: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.workers = {
            kind: ThreadPoolExecutor(most, f"rsnotify-{kind}") for kind, most in _WORKERS.items()
        }
        # A set uses at most one of each at a time, and a thread that has just run is faster.
        self.readers = FunctionThreads(min(_READERS, sets), "rsnotify-reader")
        self.recorders = FunctionThreads(min(_RECORDERS, sets), "rsnotify-recorder")
        self.websockets = HubConnections()
        self.poller = JournalPoller()
        self.permits = asyncio.Semaphore(_STARTING)
        self.scheduler = JobScheduler()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="rsnotify-publisher", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        for pool in self.workers.values():
            pool.shutdown()
        self.recorders.shutdown()
        self.readers.shutdown()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self.loop.set_default_executor(ThreadPoolExecutor(_READERS, "rsnotify-contents"))
        tasks = [asyncio.create_task(work.run()) for work in (self.poller, self.scheduler)]
        try:
            await self._stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class FunctionThreads:
    """Threads that run functions, with much less overhead per call than `ThreadPoolExecutor`."""

    def __init__(self, count: int, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}_{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[], object]) -> None:
        self._queue.put(function)

    def shutdown(self) -> None:
        """Run the functions already submitted, then stop the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (function := self._queue.get()) is not None:
            try:
                function()
            except Exception:  # the thread must keep running for the other sets
                _log.exception("work for a set failed")


_CHECK_CLOCK_EVERY = 10.0
_scheduler_log = logging.getLogger("rsnotify.publisher.scheduler")
# APScheduler warns whenever a job takes longer than its interval, which is not an error here.
_scheduler_log.setLevel(logging.ERROR)


class JobScheduler:
    """Runs the jobs of any number of Publishers, in one event loop."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(timezone=UTC, logger=_scheduler_log)

    async def run(self) -> None:
        self._scheduler.start()
        try:
            while True:
                await asyncio.sleep(_CHECK_CLOCK_EVERY)
                self.check_clock()
        finally:
            self._scheduler.shutdown(wait=False)

    def check_clock(self) -> None:
        """Correct the times of jobs if the clock was set or the machine was suspended."""
        now = datetime.now(UTC)
        for job in self._scheduler.get_jobs():
            interval = getattr(job.trigger, "interval", None)
            if interval is None:
                due = job.trigger.get_next_fire_time(None, now)
                if due is not None and due < job.next_run_time:
                    job.modify(next_run_time=due)
            elif job.next_run_time > now + interval:
                job.modify(next_run_time=now)
        self._scheduler.wakeup()

    async def repeat(
        self, name: str, schedule: JobSchedule, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Run a job on a schedule until cancelled or until `work` raises, one run at a time.

        Scheduled times during a run are skipped, and several missed times result in one run. A cron
        time that was missed by more than `MISFIRE_GRACE` is skipped. Intervals have no such limit.
        """
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        running: asyncio.Future[None] | None = None

        async def run() -> None:
            nonlocal running
            running = asyncio.ensure_future(work())
            await asyncio.wait([running])
            error = None if running.cancelled() else running.exception()
            if error is not None and not failed.done():
                failed.set_exception(error)

        grace = None if schedule.cron is None else round(MISFIRE_GRACE.total_seconds())
        job = self._scheduler.add_job(
            run,
            schedule.trigger(),
            name=name,
            coalesce=True,
            max_instances=1,
            misfire_grace_time=grace,
        )
        try:
            await failed
        finally:
            job.remove()
            if running is not None:
                running.cancel()
                await asyncio.wait([running])


# Maximum fraction of the time to spend on polling, regardless of the number of journals.
_SHARE = 0.05


class _PolledJournal(Struct, eq=False):
    journal: Journal
    every: float
    on_write: Callable[[], None]
    version: int | None

    def poll(self) -> None:
        try:
            version = self.journal.data_version()
        except sqlite3.Error:  # the journal's owner gets the same error when it reads
            version = None
        if version is None or version != self.version:
            self.version = version
            self.on_write()


class JournalPoller:
    """Polls any number of journals, in one event loop.

    It is only needed for writes by other processes. A process is notified of its own writes
    directly, and sooner.
    """

    def __init__(self) -> None:
        self._polled: dict[_PolledJournal, None] = {}
        self._not_empty = asyncio.Event()

    @contextmanager
    def watch(self, journal: Journal, every: float, on_write: Callable[[], None]) -> Iterator[None]:
        """Poll a journal within the context, and call `on_write` when another process has written.

        It is also called when the journal cannot be read.
        """
        polled = _PolledJournal(journal, every, on_write, journal.data_version())
        self._polled[polled] = None
        self._not_empty.set()
        try:
            yield
        finally:
            del self._polled[polled]

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            if not self._polled:
                self._not_empty.clear()
                await self._not_empty.wait()
            began = clock()
            for polled in self._polled:
                polled.poll()
            soonest = min(polled.every for polled in self._polled)
            await asyncio.sleep(max(soonest, (clock() - began) / _SHARE))
