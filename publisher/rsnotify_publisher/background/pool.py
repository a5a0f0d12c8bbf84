"""The event loop, threads and scheduler that the Publishers of one process share."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from queue import SimpleQueue
from typing import Any, TypeVar

from rsnotify_publisher.background.job_scheduler import JobScheduler
from rsnotify_publisher.background.journal_poller import JournalPoller
from rsnotify_publisher.journal.storage import USUAL_MEMORY
from rsnotify_publisher.push.transports import HubConnections

T = TypeVar("T")

_log = logging.getLogger("rsnotify.publisher")


class WorkKind(StrEnum):
    """The kinds of work on documents, each with threads of its own.

    Short work must not wait for long work: a Change List not for a Resource List, nor that for a
    dump; and no document for the Source's callbacks, which return contents.
    """

    CHANGES = "changes"
    RESOURCES = "resources"
    DUMPS = "dumps"


_WORKERS = {WorkKind.CHANGES: 6, WorkKind.RESOURCES: 4, WorkKind.DUMPS: 2}
#: Threads that read contents to send them inline.
_READERS = 6
#: Threads that commit changes for callers that cannot; they wait for the disk.
_RECORDERS = 8
#: MiB of cache for all journals together, and at least for each.
_MEMORY, _LEAST_MEMORY = 512.0, 2.0
#: How many sets start at a time; the others wait until these have written all documents.
_STARTING = 8


class CommitThreads:
    """Threads that run functions; a hand-over costs much less than with a `ThreadPoolExecutor`."""

    def __init__(self, count: int) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"rsnotify-recorder_{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[], object]) -> None:
        self._queue.put(function)

    def shutdown(self) -> None:
        """Run what was submitted, and end."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (function := self._queue.get()) is not None:
            try:
                function()
            except Exception:  # the thread goes on for other journals
                _log.exception("a thread that commits changes failed")


class PoolThreads:
    """The threads of a pool that is in use, for a number of sets."""

    def __init__(self, sets: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.workers = {
            kind: ThreadPoolExecutor(most, f"rsnotify-{kind}") for kind, most in _WORKERS.items()
        }
        self.contents = ThreadPoolExecutor(_READERS, "rsnotify-contents")
        # One set never uses two, and what just ran runs faster.
        self.recorders = CommitThreads(min(_RECORDERS, sets))
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

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self.loop.set_default_executor(self.contents)
        tasks = [asyncio.create_task(work.run()) for work in (self.poller, self.scheduler)]
        try:
            await self._stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class PublisherPool:
    """One thread with an event loop for all sets, and a few threads for their work.

    It runs while at least one Publisher uses it.
    """

    def __init__(self, sets: int = 1) -> None:
        self._sets = sets
        self._lock = threading.Lock()
        self._users = 0
        self.threads: PoolThreads

    def enter(self) -> None:
        """Use the pool; the first user starts the threads."""
        with self._lock:
            if self._users == 0:
                self.threads = PoolThreads(self._sets)
            self._users += 1

    def leave(self) -> None:
        """Stop using the pool; the last user waits until all work is done."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self.threads.end()

    @property
    def memory(self) -> float:
        """MiB of cache for one journal."""
        return max(_LEAST_MEMORY, min(USUAL_MEMORY, _MEMORY / self._sets))

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the event loop; call this in any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.threads.loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the event loop, soon; call this in any thread."""
        with suppress(RuntimeError):  # the loop was closed this moment
            self.threads.loop.call_soon_threadsafe(function)

    async def in_thread(self, kind: WorkKind, work: Callable[[], T]) -> T:
        """Run blocking work in a thread of its kind; call this in the event loop."""
        return await self.threads.loop.run_in_executor(self.threads.workers[kind], work)
