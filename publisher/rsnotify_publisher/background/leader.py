"""Leader election among the processes of a Source, and the work of the leader.

One process is the leader: it feeds the hubs and writes the documents. Another process takes over
when the leader ends.

There are two kinds of jobs. Frequent ones (the open Change List, cursors, Change Dumps) run in a
loop. Jobs that users can schedule (Resource List, Resource Dump, rotation, retention) run by the
time of day (`run_by_schedule`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from random import Random

from filelock import FileLock, Timeout

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import format_datetime, from_microseconds
from rsnotify.runtime.tasks import wait_for_event
from rsnotify.sync.retry import Retry
from rsnotify_publisher.background.pool import PublisherPool, WorkKind
from rsnotify_publisher.documents.document_store import DocumentStore, WritingStopped
from rsnotify_publisher.job_schedule import Job, JobSchedule, run_by_schedule
from rsnotify_publisher.journal import Journal, JournalState, Recorder, system_clock
from rsnotify_publisher.push.change_stream import ChangeStream
from rsnotify_publisher.push.hub_push import HubPush
from rsnotify_publisher.push.stated_brokers import StatedBrokers
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import DESCRIPTION, RESOURCE_LIST

logger = logging.getLogger("rsnotify.publisher")
#: Seconds between attempts to lead: while another process leads, and after an error.
_TAKEOVER_INTERVAL = 0.2
_ERROR_PAUSE = 1.0
#: Seconds between two writes of the hubs' cursors to the journal.
_SAVE_CURSORS_INTERVAL = 1.0
_RETRY = Retry(first=0.1, most=30.0)
#: Number of refreshes between two checks of age limits.
_REFRESHES_PER_AGE_CHECK = 10
#: The fraction of its interval after which to check again whether a Resource Dump is due.
_DUMP_CHECK_FRACTION = 0.1
#: Time without a change after which recording counts as paused, in microseconds.
_RECORDING_PAUSE = 5_000_000
#: Seconds after which the next set may start even if this one has not written all its documents.
_START_TIMEOUT = 10.0
#: How far the last change may be ahead of the clock before a warning is logged, in microseconds.
_MAX_AHEAD = 60_000_000


class LeaderElection:
    """Makes this process the leader as soon as no other process of the Source is.

    The operating system releases the lock of a leader that dies, whatever the cause.
    """

    def __init__(
        self, source: SourceContext, recorder: Recorder, changes: ChangeStream, pool: PublisherPool
    ) -> None:
        self._source = source
        self._recorder = recorder
        self._changes = changes
        self._pool = pool
        self._lock = FileLock(source.folder / "leader.lock", thread_local=False)
        self._stop = asyncio.Event()
        self._running: Future[None]
        #: Done as soon as every document has been written.
        self.published: Future[None] = Future()

    def start(self) -> None:
        """Start trying to lead."""
        self._running = self._pool.spawn(self._run())

    def stop(self) -> None:
        """Begin to shut down without waiting, so that several Publishers can do so in parallel."""
        self._pool.call(self._stop.set)

    def close(self) -> None:
        self.stop()
        self._running.result()

    async def _run(self) -> None:
        is_last = has_led = False
        while not is_last and not has_led:
            # Try once more after `stop`: the last leader may have ended before our last change.
            is_last = self._stop.is_set()
            has_led = await self._try_to_lead()

    async def _try_to_lead(self) -> bool:
        """Lead until stopped. Return False if another process leads, or if an error occurred."""
        try:
            with (
                self._lock.acquire(blocking=False),
                self._source.open_journal() as journal,
                closing(self._changes),
            ):
                leader = Leader(
                    self._source,
                    journal,
                    self._recorder,
                    self._changes,
                    self._pool,
                    on_published=self._set_published,
                )
                await leader.lead(self._stop)
            return True
        except Timeout:
            self._check_documents()
            await wait_for_event(self._stop, _TAKEOVER_INTERVAL)
        except Exception as error:  # a running Source must keep trying to publish
            is_expected = isinstance(error, RsnotifyError | OSError)
            then = "it resumes at the next start" if self._stop.is_set() else "retrying"
            logger.error("publishing failed; %s: %s", then, error, exc_info=not is_expected)
            await wait_for_event(self._stop, _ERROR_PAUSE)
        return False

    def _set_published(self) -> None:
        if not self.published.done():
            self.published.set_result(None)

    def _check_documents(self) -> None:
        """Set `published` if another process has written all documents."""
        if self.published.done():
            return
        folder = self._source.documents_folder
        if all((folder / name).exists() for name in (RESOURCE_LIST, DESCRIPTION)):
            self._set_published()


@dataclass(eq=False)
class Leader:
    """Feeds the hubs and writes the documents, reading `journal` in the event loop's thread."""

    source: SourceContext
    journal: Journal
    recorder: Recorder
    changes: ChangeStream
    pool: PublisherPool
    on_published: Callable[[], None]

    def __post_init__(self) -> None:
        self.push = HubPush(
            self.source, self.journal, self.recorder, self.changes, self.pool.threads.websockets
        )
        self._store = DocumentStore(self.source, self.recorder)
        self._brokers = StatedBrokers(
            self.source.hubs, self.source.documents.topic, self.source.folder / "brokers.json"
        )
        self._brokers.load()
        self.source.documents.stated_brokers = self._brokers.urls
        self._random = Random()
        self._busy = {kind: asyncio.Lock() for kind in WorkKind}
        self._published = asyncio.Event()
        self._outdated = asyncio.Event()
        self._written: tuple[int, int, int] | None = None
        #: `Journal.write_version`, and the values that `_read_journal` read then.
        self._cached: tuple[object, JournalState, bool, int] | None = None
        self._skipped_writes = 0
        self._is_ahead = False

    async def lead(self, stop: asyncio.Event) -> None:
        """Lead until `stop` is set, then shut down cleanly."""
        try:
            with self._watching():
                async with asyncio.TaskGroup() as tasks:
                    jobs = tasks.create_task(self._run_jobs())
                    try:
                        await stop.wait()
                        # `_write_missing_documents` tries again, and reports these errors.
                        with suppress(RsnotifyError, OSError):
                            await self._write_change_lists()  # for hubs that fetch them
                        await self.push.drain()
                    finally:
                        jobs.cancel()
            await self._write_missing_documents()
        finally:
            # No thread of this process may still be writing when the next leader starts.
            await self.pool.in_thread(WorkKind.CHANGES, self._store.close)
        await self.push.save_cursors()

    def _watching(self) -> AbstractContextManager[None]:
        """Detect changes that other processes record, if there are hubs to feed."""
        if not self.source.hubs:
            return nullcontext()
        every = self.source.options.poll
        return self.pool.threads.poller.watch(self.journal, every, self.changes.check)

    async def _run_jobs(self) -> None:
        async with AsyncExitStack() as permit, asyncio.TaskGroup() as tasks:
            await permit.enter_async_context(self.pool.threads.permits)
            tasks.create_task(self._release_when_published(permit))
            tasks.create_task(self.push.run())
            tasks.create_task(self._brokers.follow(self._advertise_brokers))
            for seconds, job in self._frequent_jobs():
                tasks.create_task(self._repeat(seconds, job))
            for schedule, job in self._scheduled_jobs():
                tasks.create_task(self._run_by_schedule(schedule, job))
            if self.source.resource_list_schedule.cron is None:
                tasks.create_task(self._replace_outdated_list())

    async def _advertise_brokers(self) -> None:
        self.source.documents.stated_brokers = self._brokers.urls
        await self._run_until_done(
            partial(self._in_thread, WorkKind.CHANGES, self._store.write_capability_list)
        )

    async def _release_when_published(self, permit: AsyncExitStack) -> None:
        """Release the permit when all documents have been written, or after `_START_TIMEOUT`."""
        await wait_for_event(self._published, _START_TIMEOUT)
        await permit.aclose()

    def _frequent_jobs(self) -> Iterator[tuple[float, Job]]:
        """Yield the seconds between two runs of each job, and the job."""
        options, store = self.source.options, self._store
        delete_discarded = partial(self._in_thread, WorkKind.CHANGES, store.delete_discarded)
        yield options.refresh, self._write_changes
        yield _SAVE_CURSORS_INTERVAL, self.push.save_cursors
        yield options.refresh * _REFRESHES_PER_AGE_CHECK, delete_discarded
        if options.change_dump:
            yield (
                options.refresh,
                self._after_change_lists(WorkKind.DUMPS, store.write_change_dumps),
            )

    def _scheduled_jobs(self) -> Iterator[tuple[JobSchedule, Job]]:
        """Yield the schedule of each job, and the job.

        Each job also runs at the start, to make up for cron times that passed while the Source was
        stopped. It therefore checks in the journal when it last ran, and whether it is due.
        """
        source, store = self.source, self._store
        yield source.resource_list_schedule, self._write_resource_list
        if (dump := source.resource_dump_schedule) is not None:
            if dump.cron is None:
                dump = JobSchedule(dump.seconds * _DUMP_CHECK_FRACTION)
            yield dump, self._after_change_lists(WorkKind.DUMPS, store.write_resource_dump)
        if (rotation := source.rotation.schedule) is not None:
            yield rotation, self._after_change_lists(WorkKind.CHANGES, store.rotate)
        age_check = JobSchedule(source.options.refresh * _REFRESHES_PER_AGE_CHECK)
        retention = source.retention.schedule or age_check
        yield retention, partial(self._in_thread, WorkKind.CHANGES, store.drop_expired)

    def _after_change_lists(self, kind: WorkKind, work: Callable[[], None]) -> Job:
        """Return a job that writes the Change Lists before its work."""

        async def job() -> bool:
            await self._write_change_lists()
            return await self._in_thread(kind, work)

        return job

    async def _repeat(self, seconds: float, job: Job) -> None:
        """Run a job now, and at an interval that does not depend on the system clock."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + seconds
            await self._run_until_done(job)
            await asyncio.sleep(max(0.0, due - clock()))

    async def _run_by_schedule(self, schedule: JobSchedule, job: Job) -> None:
        run = partial(self._run_until_done, job)
        await run()
        await run_by_schedule(schedule, run)

    async def _run_until_done(self, job: Job) -> None:
        """Run a job. After a failure, retry with increasing delays."""
        failures = 0
        while True:
            try:
                await job()
                return
            except (RsnotifyError, OSError) as error:
                level = logging.INFO if failures else logging.ERROR
                logger.log(level, "documents could not be written; retrying: %s", error)
                failures += 1
                await asyncio.sleep(_RETRY.delay(failures, self._random))

    async def _in_thread(self, kind: WorkKind, work: Callable[[], None]) -> bool:
        """Run blocking work in a thread, one job of each kind at a time.

        Return False if it was not done because the Publisher is closing.
        """
        async with self._busy[kind]:  # waiting here occupies no thread
            with suppress(WritingStopped):
                await self.pool.in_thread(kind, work)
                self.push.notices.notify()
                return True
        return False

    async def _write_changes(self) -> None:
        """Write the Change Lists, or the Resource List if a baseline was loaded after it."""
        state, has_closed_lists, _ = self._read_journal()
        if not has_closed_lists and 0 <= self._store.listed < state.pruned:
            await self._write_resource_list()
        else:
            await self._write_change_lists()

    async def _replace_outdated_list(self) -> None:
        """Write the Resource List whenever recording pauses after many changes."""
        while True:
            await self._outdated.wait()
            await self._run_until_done(self._write_resource_list)
            self._outdated.clear()

    async def _write_change_lists(self) -> None:
        """Write the Change Lists if the journal has changes or notices not yet published."""
        self._skipped_writes += 1
        state, _, last_notice = self._read_journal()
        current = state.last_change, state.closed, last_notice
        self._check_clock(state.last_change)
        has_paused = self.source.clock() - state.last_change >= _RECORDING_PAUSE
        if has_paused and self._store.is_outdated(state.last_change):
            self._outdated.set()
        # Age limits can be reached without any change, so they are checked from time to time.
        has_age_limit = self.source.rotation.age is not None
        checks_age = has_age_limit and self._skipped_writes >= _REFRESHES_PER_AGE_CHECK
        if current == self._written and not checks_age:
            return
        if await self._in_thread(WorkKind.CHANGES, self._store.write_change_lists):
            self._written, self._skipped_writes = current, 0
            changes, _, notices = current
            self.changes.set_documented(changes)
            self.push.notices.set_documented(notices)

    def _read_journal(self) -> tuple[JournalState, bool, int]:
        """Return the journal's state, whether it has closed lists, and the last notice's datetime.

        They are cached until something is written, since hundreds of sets may be idle.
        """
        version = self.journal.write_version()
        if self._cached is None or self._cached[0] != version:
            with self.journal.snapshot() as state:
                found = state, self.journal.has_closed_lists(), self.journal.last_notice()
            self._cached = version, *found
        return self._cached[1:]

    def _check_clock(self, last: int) -> None:
        """Log a warning, once, if the datetime of the last change is well ahead of the clock."""
        # A gateway's own clock stands still while an origin is checked.
        is_ahead = last - max(self.source.clock(), system_clock()) > _MAX_AHEAD
        if is_ahead and not self._is_ahead:
            logger.warning(
                "the last change has the datetime %s, which the clock has not reached; until then, "
                "changes get datetimes just after it, and audits do not find copies in step; check "
                "the clock",
                format_datetime(from_microseconds(last)),
            )
        self._is_ahead = is_ahead

    async def _write_missing_documents(self) -> None:
        """Write the newest changes, and the Resource List if documents are still missing."""
        await self._write_change_lists()
        if not self._store.is_complete:
            if await self._in_thread(WorkKind.RESOURCES, self._store.complete):
                self.on_published()
            await self._write_change_lists()

    async def _write_resource_list(self) -> None:
        await self._write_change_lists()
        if await self._in_thread(WorkKind.RESOURCES, self._store.write_resource_list):
            self._published.set()
            self.on_published()
