"""Leader election among the processes of a Source, and the work of the leader.

One process is the leader: it feeds the hubs and writes the documents. Another process takes over
when the leader ends.

There are two kinds of jobs. Frequent ones (the open Change List, cursors, Change Dumps) run in a
loop. Jobs that a user can schedule (Resource List, Resource Dump, rotation, retention) run by the
time of day (`run_by_schedule`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random

from filelock import FileLock, Timeout

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import format_datetime, from_microseconds, to_microseconds
from rsnotify.runtime.tasks import wait_for_event
from rsnotify.sync.retry import Retry
from rsnotify_publisher.background.pool import PublisherPool, WorkKind
from rsnotify_publisher.documents.document_store import DocumentStore, WritingStopped
from rsnotify_publisher.journal import Journal, JournalState, Recorder, system_clock
from rsnotify_publisher.options import JobSchedule
from rsnotify_publisher.push.hub_feed import ChangeStream
from rsnotify_publisher.push.hub_push import HubPush
from rsnotify_publisher.push.mqtt import StatedBrokers
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import DESCRIPTION, RESOURCE_LIST

_log = logging.getLogger("rsnotify.publisher")
#: Seconds between attempts to lead: while another process leads, and after an error.
_TAKE_OVER_WITHIN = 0.2
_RETRY_AFTER = 1.0
_NOTE_CURSORS_EVERY = 1.0
_RETRY = Retry(first=0.1, most=30.0)
# Number of refreshes between two checks of age limits.
_TIDY_EVERY = 10
# The fraction of the interval after which to check again whether a Resource Dump is due.
_CHECK_DUMP_EVERY = 0.1
#: Microseconds without a change after which recording counts as paused.
_PAUSE = 5_000_000
# Seconds after which the next set may start even if this one has not written all its documents.
_PATIENCE = 10.0
#: Microseconds by which the last change may be ahead of the clock before a warning is logged.
_AHEAD = 60_000_000

#: Seconds between two comparisons of a schedule with the clock. The clock may be set, and on Linux
#: the timers of the event loop stop while the machine is suspended.
_CHECK_CLOCK_EVERY = 10.0

_Job = Callable[[], Awaitable[object]]


class LeaderElection:
    """Leads whenever no other process of the Source is the leader.

    The operating system releases the lock of a leader that dies, regardless of the cause.
    """

    def __init__(
        self, source: SourceContext, recorder: Recorder, changes: ChangeStream, pool: PublisherPool
    ) -> None:
        self._source = source
        self._recorder = recorder
        self._changes = changes
        self._pool = pool
        self._lock = FileLock(source.lock, thread_local=False)
        self._stop = asyncio.Event()
        self._running: Future[None]
        #: Done as soon as every document has been written.
        self.published: Future[None] = Future()

    def start(self) -> None:
        """Start leading as soon as no other process leads."""
        self._running = self._pool.spawn(self._run())

    def stop(self) -> None:
        """Begin to shut down, without waiting, so that several Publishers can do so in parallel."""
        self._pool.call(self._stop.set)

    def close(self) -> None:
        self.stop()
        self._running.result()

    async def _run(self) -> None:
        is_last = has_led = False
        while not is_last and not has_led:
            # Try once more after `stop`: the former leader may have ended before our last change.
            is_last = self._stop.is_set()
            has_led = await self._try_to_lead()

    async def _try_to_lead(self) -> bool:
        """Lead until stopped. Return False if another process leads, or if an error occurred."""
        try:
            with self._lock.acquire(blocking=False):
                await self._lead()
            return True
        except Timeout:
            self._check_documents()
            await wait_for_event(self._stop, _TAKE_OVER_WITHIN)
        except Exception as error:  # a running Source must keep trying to publish
            expected = isinstance(error, RsnotifyError | OSError)
            then = "the next start continues" if self._stop.is_set() else "trying again"
            _log.error("publishing failed; %s: %s", then, error, exc_info=not expected)
            await wait_for_event(self._stop, _RETRY_AFTER)
        return False

    async def _lead(self) -> None:
        with self._source.open_journal() as journal:
            try:
                leader = Leader(
                    self._source,
                    journal,
                    self._recorder,
                    self._changes,
                    self._pool,
                    on_published=self._set_published,
                )
                await leader.lead(self._stop)
            finally:
                self._changes.close()

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
    """Feeds the hubs and writes the documents. `journal` is read in the event loop's thread."""

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
        #: The values last read from the journal, with `Journal.written` at that time.
        self._read: tuple[object, JournalState, bool, int] | None = None
        self._skipped_writes = 0
        self._is_ahead = False

    async def lead(self, stop: asyncio.Event) -> None:
        """Lead until `stop` is set, then shut down cleanly."""
        try:
            with self._watching():
                async with asyncio.TaskGroup() as tasks:
                    working = tasks.create_task(self._work())
                    try:
                        await stop.wait()
                        with suppress(RsnotifyError, OSError):  # `_write_last` reports them
                            await self._write_change_lists()  # for hubs that fetch them
                        await self.push.drain()
                    finally:
                        working.cancel()
            await self._write_last()
        finally:
            # No thread of this process may still be writing when the next leader starts.
            await self.pool.in_thread(WorkKind.CHANGES, self._store.close)
        await self.push.save_cursors()

    def _watching(self) -> AbstractContextManager[None]:
        """Watch for changes that other processes record, if there are hubs to feed."""
        if not self.source.hubs:
            return nullcontext()
        every = self.source.options.poll
        return self.pool.threads.poller.watch(self.journal, every, self.changes.check)

    async def _work(self) -> None:
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
        """Release the permit when all documents have been written, or when that takes too long."""
        await wait_for_event(self._published, _PATIENCE)
        await permit.aclose()

    def _frequent_jobs(self) -> Iterator[tuple[float, _Job]]:
        """Yield each job with the seconds between two runs."""
        options, store = self.source.options, self._store
        delete_discarded = partial(self._in_thread, WorkKind.CHANGES, store.delete_discarded)
        yield options.refresh, self._write_changes
        yield _NOTE_CURSORS_EVERY, self.push.save_cursors
        yield options.refresh * _TIDY_EVERY, delete_discarded
        if options.change_dump:
            yield options.refresh, self._late_job(WorkKind.DUMPS, store.write_change_dumps)

    def _scheduled_jobs(self) -> Iterator[tuple[JobSchedule, _Job]]:
        """Yield the schedule and the function of each job.

        Each job also runs at the start, which makes up for cron times that passed while the Source
        was stopped. It therefore decides from the journal's record of its last run whether it is
        due.
        """
        source, store = self.source, self._store
        yield source.resource_list_schedule, self._write_resource_list
        if (dump := source.resource_dump_schedule) is not None:
            if dump.cron is None:
                dump = JobSchedule(dump.seconds * _CHECK_DUMP_EVERY)
            yield dump, self._late_job(WorkKind.DUMPS, store.write_resource_dump)
        if (rotation := source.rotation.schedule) is not None:
            yield rotation, self._late_job(WorkKind.CHANGES, store.rotate)
        retention = source.retention.schedule or JobSchedule(source.options.refresh * _TIDY_EVERY)
        yield retention, partial(self._in_thread, WorkKind.CHANGES, store.drop_expired)

    def _late_job(self, kind: WorkKind, work: Callable[[], None]) -> _Job:
        """Return a job that first brings the Change Lists up to date."""

        async def job() -> bool:
            await self._write_change_lists()
            return await self._in_thread(kind, work)

        return job

    async def _repeat(self, seconds: float, job: _Job) -> None:
        """Run a job now and at an interval that is not affected by changes to the system clock."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + seconds
            await self._run_until_done(job)
            await asyncio.sleep(max(0.0, due - clock()))

    async def _run_by_schedule(self, schedule: JobSchedule, job: _Job) -> None:
        run = partial(self._run_until_done, job)
        await run()
        await run_by_schedule(schedule, run)

    async def _run_until_done(self, job: _Job) -> None:
        """Run a job. After a failure, retry with increasing delays."""
        failures = 0
        while True:
            try:
                await job()
                return
            except (RsnotifyError, OSError) as error:
                level = logging.INFO if failures else logging.ERROR
                _log.log(level, "documents could not be written; retrying: %s", error)
                failures += 1
                await asyncio.sleep(_RETRY.delay(failures, self._random))

    async def _in_thread(self, kind: WorkKind, work: Callable[[], None]) -> bool:
        """Run blocking work in a thread, one job of each kind at a time. Return False if closed."""
        async with self._busy[kind]:  # waiting here occupies no thread
            with suppress(WritingStopped):
                await self.pool.in_thread(kind, work)
                self.push.notices.notify()
                return True
        return False

    async def _write_changes(self) -> None:
        """Write the Change Lists, and the Resource List if a baseline was loaded after it."""
        state, is_unclosed, _ = self._read_journal()
        if is_unclosed and 0 <= self._store.listed < state.pruned:
            await self._write_resource_list()
        else:
            await self._write_change_lists()

    async def _replace_outdated_list(self) -> None:
        """Write the Resource List each time recording pauses after many changes."""
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
        has_paused = self.source.clock() - state.last_change >= _PAUSE
        if has_paused and self._store.is_outdated(state.last_change):
            self._outdated.set()
        # Age limits can be reached without any change, so they are checked from time to time.
        by_age = self.source.rotation.age is not None and self._skipped_writes >= _TIDY_EVERY
        if current == self._written and not by_age:
            return
        if await self._in_thread(WorkKind.CHANGES, self._store.write_change_lists):
            self._written, self._skipped_writes = current, 0
            changes, _, notices = current
            self.changes.set_documented(changes)
            self.push.notices.set_documented(notices)

    def _read_journal(self) -> tuple[JournalState, bool, int]:
        """Return the journal's state, whether no list is closed, and the last notice's datetime.

        They are cached until something is written, since hundreds of sets may be idle.
        """
        written = self.journal.written()
        if self._read is None or self._read[0] != written:
            with self.journal.snapshot() as state:
                found = state, self.journal.is_unclosed(), self.journal.last_notice()
            self._read = written, *found
        return self._read[1:]

    def _check_clock(self, last: int) -> None:
        """Log a warning, once, if the last change is dated well ahead of the clock."""
        # A gateway's own clock stands still while an origin is checked.
        is_ahead = last - max(self.source.clock(), system_clock()) > _AHEAD
        if is_ahead and not self._is_ahead:
            _log.warning(
                "the last change is dated %s, which the clock has not reached; until then, changes "
                "are dated just after it, and copies that compare everything are not in step",
                format_datetime(from_microseconds(last)),
            )
        self._is_ahead = is_ahead

    async def _write_last(self) -> None:
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


async def run_by_schedule(schedule: JobSchedule, job: _Job) -> None:
    """Run a job on a schedule until cancelled or until it raises, one run at a time.

    Scheduled times during a run are skipped, and several missed times result in one run. A cron
    time that was missed by more than `MISFIRE_GRACE` is skipped. Intervals have no such limit.
    """
    trigger = schedule.trigger()
    interval: timedelta | None = getattr(trigger, "interval", None)
    due = trigger.get_next_fire_time(None, datetime.now(UTC))
    while True:
        now = datetime.now(UTC)
        # If the clock was set back, the job must not wait for the former time.
        if interval is None:
            due = min(due, trigger.get_next_fire_time(None, now))
        elif due > now + interval:
            due = now
        if now < due:
            await asyncio.sleep(min((due - now).total_seconds(), _CHECK_CLOCK_EVERY))
            continue
        if interval is not None or schedule.last_time(to_microseconds(now)) is not None:
            await job()
        now = datetime.now(UTC)
        if interval is None:
            due = trigger.get_next_fire_time(None, now + timedelta(microseconds=1))
        else:
            due += interval * max(1, (now - due) // interval + 1)
