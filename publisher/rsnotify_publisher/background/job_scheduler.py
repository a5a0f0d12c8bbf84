"""Jobs that run at intervals or at the times of cron expressions, by APScheduler.

APScheduler goes by the time of day and computes how long to sleep when a job is added or has run.
The clock may be set meanwhile, and on Linux a suspended machine stops the timers of the event
loop. So the scheduler compares its jobs with the clock every few seconds: an interval job that is
due later than one interval from now runs at once, and a cron time that has passed is noticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from rsnotify_publisher.schedule import MISFIRE_GRACE, JobSchedule

_CHECK_CLOCK_EVERY = 10.0
_scheduler_log = logging.getLogger("rsnotify.publisher.scheduler")
# APScheduler warns whenever a job takes longer than its interval, which is no error here.
_scheduler_log.setLevel(logging.ERROR)


class JobScheduler:
    """Runs the jobs of any number of Publishers; used in one event loop."""

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
        """Correct the times of jobs after the clock was set or the machine was suspended."""
        now = datetime.now(UTC)
        for job in self._scheduler.get_jobs():
            interval = getattr(job.trigger, "interval", None)
            if interval is not None and job.next_run_time > now + interval:
                job.modify(next_run_time=now)
        self._scheduler.wakeup()

    async def repeat(
        self, name: str, schedule: JobSchedule, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Run a job by a schedule until cancelled, one run at a time, or until `work` raises.

        Times that come while the job runs are skipped, and several that passed unnoticed make one
        run. A cron time that passed more than `MISFIRE_GRACE` ago is skipped; an interval has no
        such limit.
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
