"""The event loop and threads that the Publishers of one process share."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import StrEnum
from queue import SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct

from rsnotify.runtime.tasks import running
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.journal.journal import DEFAULT_CACHE_SIZE
from rsnotify_publisher.push.websocket import HubConnections

T = TypeVar("T")

logger = logging.getLogger("rsnotify.publisher")
#: Maximum fraction of the time to spend on polling, regardless of the number of journals.
_MAX_TIME_FRACTION = 0.05


class _PolledJournal(Struct, eq=False):
    journal: Journal
    interval: float
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
    """Polls any number of journals in one event loop.

    This is needed only for writes by other processes: `Recorder` reports those of its own process,
    and sooner.
    """

    def __init__(self) -> None:
        self._polled: dict[_PolledJournal, None] = {}
        self._not_empty = asyncio.Event()

    @contextmanager
    def watch(
        self, journal: Journal, interval: float, on_write: Callable[[], None]
    ) -> Iterator[None]:
        """Call `on_write` when another process has written, while the context is active.

        It is also called when the journal cannot be read. `interval` is in seconds.
        """
        polled = _PolledJournal(journal, interval, on_write, journal.data_version())
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
            shortest = min(polled.interval for polled in self._polled)
            await asyncio.sleep(max(shortest, (clock() - began) / _MAX_TIME_FRACTION))


class WorkKind(StrEnum):
    """The kinds of work on documents, each with separate threads.

    Short work must not wait for long work: a Change List must not wait for a Resource List, nor a
    Resource List for a dump. No document may wait for the Source's callbacks that return contents.
    """

    CHANGES = "changes"
    RESOURCES = "resources"
    DUMPS = "dumps"


_WORKER_THREADS = {WorkKind.CHANGES: 6, WorkKind.RESOURCES: 4, WorkKind.DUMPS: 2}
#: Number of threads that read contents to send inline. They wait for the Source's callbacks.
_READER_THREADS = 6
#: Number of threads that commit changes for callers that cannot. They wait for the disk.
_RECORDER_THREADS = 8
#: Cache for all journals together, and the minimum for each, in MiB.
_TOTAL_CACHE_SIZE, _MIN_CACHE_SIZE = 512.0, 2.0
#: Maximum number of sets that start at once. Others wait until these have written all documents.
_MAX_STARTING = 8


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
    def journal_cache(self) -> float:
        """The cache size for one journal, in MiB."""
        return max(_MIN_CACHE_SIZE, min(DEFAULT_CACHE_SIZE, _TOTAL_CACHE_SIZE / self._sets))

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
    """The running threads of a pool."""

    def __init__(self, sets: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.workers = {
            kind: ThreadPoolExecutor(count, f"rsnotify-{kind}")
            for kind, count in _WORKER_THREADS.items()
        }
        # A set uses at most one of each at a time, and a thread that has just run is faster.
        self.readers = FunctionThreads(min(_READER_THREADS, sets), "rsnotify-reader")
        self.recorders = FunctionThreads(min(_RECORDER_THREADS, sets), "rsnotify-recorder")
        self.websockets = HubConnections()
        self.poller = JournalPoller()
        self.permits = asyncio.Semaphore(_MAX_STARTING)
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
        self.loop.set_default_executor(ThreadPoolExecutor(_READER_THREADS, "rsnotify-contents"))
        async with running(self.poller.run()):
            await self._stop.wait()


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
                logger.exception("work for a set of resources failed")
