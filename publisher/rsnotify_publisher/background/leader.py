"""What the one leading process of a Source does: it feeds the hubs and writes the documents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from random import Random

from rsnotify.errors import RsnotifyError
from rsnotify.sync.retry import Retry
from rsnotify_publisher.background.pool import PublisherPool, WorkKind, WorkPermit
from rsnotify_publisher.documents import DocumentStore, WritingStopped
from rsnotify_publisher.journal import Journal, Recorder
from rsnotify_publisher.push.hub_push import HubPush
from rsnotify_publisher.source_context import SourceContext

_log = logging.getLogger("rsnotify.publisher")
_NOTE_CURSORS_EVERY = 1.0
_RETRY = Retry(first=0.1, most=30.0)
# How many refreshes pass between two looks at what goes by age.
_TIDY_EVERY = 10
# Part of the interval after which a Resource Dump that was not due is looked at again.
_LOOK_AT_DUMPS = 0.1
# Seconds after which the next set may begin, though not all documents of this one are there.
_PATIENCE = 10.0

_Job = Callable[[], Awaitable[None]]


class Leader:
    """Leads until it is told to stop.

    Args:
        source: The Source that is led.
        recorder: Makes durable what the leader decides.
        on_published: Called when all documents have been written.
        shared: Where it runs, and what does its work.
    """

    def __init__(
        self,
        source: SourceContext,
        recorder: Recorder,
        on_published: Callable[[], None],
        shared: PublisherPool,
    ) -> None:
        self._source = source
        self._recorder = recorder
        self._on_published = on_published
        self._shared = shared
        self._library = DocumentStore(source, recorder)
        self._feeding: HubPush | None = None
        self._random = Random()
        self._busy = {kind: asyncio.Lock() for kind in WorkKind}
        self._published = asyncio.Event()
        self._shown: tuple[int, int, int] | None = None
        self._looks = 0

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
            self._feeding = feeding = HubPush(self._source, journal, self._recorder)
            try:
                async with self._working(journal, feeding):
                    await stop.wait()
                    with suppress(RsnotifyError, OSError):  # reported when the last are written
                        await self._write_change_lists(journal)  # for hubs that fetch them
                    await feeding.drain()
                await self._write_last(journal)
            finally:
                # Whoever leads next must not meet a thread of ours that still writes.
                await self._shared.in_thread(WorkKind.CHANGES, self._library.close)
            await feeding.note()

    @asynccontextmanager
    async def _working(self, journal: Journal, feeding: HubPush) -> AsyncIterator[None]:
        """Feed the hubs and keep the documents while the caller waits."""
        every = self._source.options.poll
        with self._shared.lookout.watch(journal, every, self.wake):
            async with asyncio.TaskGroup() as tasks:
                working = tasks.create_task(self._work(journal, feeding))
                try:
                    yield
                finally:
                    working.cancel()

    async def _work(self, journal: Journal, feeding: HubPush) -> None:
        turn = WorkPermit(self._shared.turns)
        await turn.take()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._give_way(turn))
                tasks.create_task(feeding.run())
                for seconds, job in self._jobs(journal, feeding):
                    tasks.create_task(self._regularly(seconds, job))
        finally:
            turn.give()

    async def _give_way(self, turn: WorkPermit) -> None:
        """Let the next begin once all documents of this one are there, or take too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._published.wait()
        turn.give()

    def _jobs(self, journal: Journal, feeding: HubPush) -> Iterator[tuple[float, _Job]]:
        """Give what is done now and then, and how many seconds are between."""
        options = self._source.options
        yield options.refresh, lambda: self._write_change_lists(journal)
        yield options.resource_list_every, lambda: self._write_all(journal)
        yield options.refresh * _TIDY_EVERY, self._tidy
        yield _NOTE_CURSORS_EVERY, feeding.note
        if options.resource_dump_every is not None:
            seconds = options.resource_dump_every * _LOOK_AT_DUMPS
            yield seconds, lambda: self._write_resource_dump(journal)
        if options.change_dump:
            yield options.refresh, lambda: self._write_change_dumps(journal)

    async def _regularly(self, seconds: float, work: _Job) -> None:
        """Do some work now and at every interval, but never twice at a time."""
        due = asyncio.Event()
        # However late the loop comes to it, it is due still.
        job = self._shared.scheduler.add_job(
            due.set, "interval", seconds=seconds, misfire_grace_time=None
        )
        try:
            await self._repeat(due, seconds, work)
        finally:
            job.remove()

    async def _repeat(self, due: asyncio.Event, seconds: float, work: _Job) -> None:
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

    async def _in_thread(self, kind: WorkKind, work: Callable[[], None]) -> bool:
        """Do what takes long where nothing waits for it; return whether it was done."""
        async with self._busy[kind]:  # waiting here takes no thread
            with suppress(WritingStopped):
                await self._shared.in_thread(kind, work)
                if self._feeding is not None:
                    self._feeding.tell()
                return True
        return False

    async def _write_change_lists(self, journal: Journal) -> None:
        """Write them, where something happened that they do not show yet."""
        self._looks += 1
        shown = _shown(journal)
        # What goes by age is closed at any time, so it is looked at now and then.
        by_age = self._source.rotation.age is not None and self._looks >= _TIDY_EVERY
        if shown == self._shown and not by_age:
            return
        if await self._in_thread(WorkKind.CHANGES, self._library.write_change_lists):
            self._shown, self._looks = shown, 0
            if self._feeding is not None:
                changes, _, notices = shown
                self._feeding.show(changes, notices)

    async def _write_last(self, journal: Journal) -> None:
        """Write the newest changes, and the first Resource List if it is not there yet."""
        await self._write_change_lists(journal)
        if not self._library.is_complete:
            if await self._in_thread(WorkKind.RESOURCES, self._library.complete):
                self._on_published()
            await self._write_change_lists(journal)

    async def _tidy(self) -> None:
        await self._in_thread(WorkKind.CHANGES, self._library.tidy)

    async def _write_change_dumps(self, journal: Journal) -> None:
        await self._write_change_lists(journal)
        await self._in_thread(WorkKind.DUMPS, self._library.write_change_dumps)

    async def _write_resource_dump(self, journal: Journal) -> None:
        await self._write_change_lists(journal)
        await self._in_thread(WorkKind.DUMPS, self._library.write_resource_dump)

    async def _write_all(self, journal: Journal) -> None:
        await self._write_change_lists(journal)
        if await self._in_thread(WorkKind.RESOURCES, self._library.write_resource_list):
            self._published.set()
            self._on_published()


def _shown(journal: Journal) -> tuple[int, int, int]:
    """Return what differs whenever Change Lists are to be written."""
    with journal.snapshot() as state:
        return state.last_change, state.closed, journal.last_notice()
