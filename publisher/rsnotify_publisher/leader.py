"""What the one leading process of a Source does: it feeds the hubs and writes the documents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC
from random import Random

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from rsnotify.errors import RsnotifyError
from rsnotify.retry import Retry
from rsnotify_publisher.journal import Journal, Recorder
from rsnotify_publisher.library import Library, Stopped
from rsnotify_publisher.push.feeding import Feeding
from rsnotify_publisher.source import Source

_log = logging.getLogger("rsnotify.publisher")
_NOTE_CURSORS_EVERY = 1.0
_RETRY = Retry(first=0.1, most=30.0)
# How many refreshes pass between two looks at what is to be dropped.
_TIDY_EVERY = 10
# Part of the interval after which a Resource Dump that was not due is looked at again.
_LOOK_AT_DUMPS = 0.1


class Leader:
    """Leads until it is told to stop.

    Args:
        source: The Source that is led.
        recorder: Makes durable what the leader decides.
        on_published: Called when all documents have been written.
    """

    def __init__(
        self,
        source: Source,
        recorder: Recorder,
        on_published: Callable[[], None],
    ) -> None:
        self._source = source
        self._recorder = recorder
        self._on_published = on_published
        self._library = Library(source, recorder)
        self._feeding: Feeding | None = None
        self._random = Random()

    def wake(self) -> None:
        """Say that the journal has something new."""
        if self._feeding is not None:
            self._feeding.wake()

    async def lead(self, stop: asyncio.Event) -> None:
        """Lead until `stop` is set, then end in order.

        Raises:
            StorageError: The journal cannot be read.
        """
        with self._source.open_journal() as journal:
            self._feeding = feeding = Feeding(self._source, journal, self._recorder)
            try:
                async with self._working(journal, feeding):
                    await stop.wait()
                    await feeding.drain()
                await self._write_change_lists()
            finally:
                # Whoever leads next must not meet a thread of ours that still writes.
                await asyncio.to_thread(self._library.close)
            await feeding.note()

    @asynccontextmanager
    async def _working(self, journal: Journal, feeding: Feeding) -> AsyncIterator[None]:
        """Feed the hubs and keep the documents while the caller waits."""
        # This executor calls a job right away, in the event loop: it only sets an event.
        scheduler = AsyncIOScheduler(executors={"default": DebugExecutor()}, timezone=UTC)
        options = self._source.options
        library = self._library
        dumps = options.resource_dump_every
        regular = [
            (options.refresh, self._write_change_lists),
            (options.resource_list_every, self._write_all),
            (options.refresh * _TIDY_EVERY, lambda: self._in_thread(library.tidy)),
            (_NOTE_CURSORS_EVERY, feeding.note),
        ]
        if dumps is not None:
            regular.append((dumps * _LOOK_AT_DUMPS, self._write_resource_dump))
        if options.change_dump:
            regular.append((options.refresh, self._write_change_dumps))
        async with asyncio.TaskGroup() as tasks:
            work = [feeding.run(), self._watch(journal)]
            work += [self._regularly(scheduler, every, job) for every, job in regular]
            running = list(map(tasks.create_task, work))
            scheduler.start()
            try:
                yield
            finally:
                scheduler.shutdown(wait=False)
                for task in running:
                    task.cancel()

    def _regularly(
        self,
        scheduler: AsyncIOScheduler,
        seconds: float,
        work: Callable[[], Awaitable[None]],
    ) -> Coroutine[None, None, None]:
        """Do some work now and at every interval, but never twice at a time."""
        due = asyncio.Event()
        # However late the loop comes to it, it is due still.
        scheduler.add_job(due.set, "interval", seconds=seconds, misfire_grace_time=None)
        return self._repeat(due, seconds, work)

    async def _repeat(
        self, due: asyncio.Event, seconds: float, work: Callable[[], Awaitable[None]]
    ) -> None:
        failures = 0
        while True:
            due.clear()
            try:
                await work()
                failures = 0
                # The scheduler goes by the time of day; if that is put back, this goes on.
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds * 2):
                        await due.wait()
            except (RsnotifyError, OSError) as error:
                level = logging.INFO if failures else logging.ERROR
                _log.log(level, "it could not be written, and is tried again: %s", error)
                failures += 1
                await asyncio.sleep(_RETRY.delay(failures, self._random))

    async def _watch(self, journal: Journal) -> None:
        """Notice what other processes record; our own recorder calls `wake` by itself."""
        seen = journal.data_version()
        while True:
            await asyncio.sleep(self._source.options.poll)
            if (version := journal.data_version()) != seen:
                seen = version
                self.wake()

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Do what takes long where nothing waits for it."""
        with suppress(Stopped):
            await asyncio.to_thread(work)
            self._tell()

    def _tell(self) -> None:
        if self._feeding is not None:
            self._feeding.tell()

    async def _write_change_lists(self) -> None:
        await self._in_thread(self._library.write_change_lists)

    async def _write_change_dumps(self) -> None:
        await self._write_change_lists()
        await self._in_thread(self._library.write_change_dumps)

    async def _write_resource_dump(self) -> None:
        await self._write_change_lists()
        await self._in_thread(self._library.write_resource_dump)

    async def _write_all(self) -> None:
        await self._write_change_lists()
        with suppress(Stopped):
            await asyncio.to_thread(self._library.write_resource_list)
            self._tell()
            self._on_published()
