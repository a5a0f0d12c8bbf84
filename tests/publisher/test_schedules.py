"""When documents are written and changes are closed: at intervals or cron times."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify_publisher import FinishedDocument, Options, Publisher
from rsnotify_publisher.job_schedule import (
    MISFIRE_GRACE,
    JobSchedule,
    parse_schedule,
    run_by_schedule,
)
from rsnotify_publisher.rotation_and_retention import parse_retention, parse_rotation
from tests.publisher.helpers import BASE, PATIENCE, eventually, update
from tests.publisher.published import QUIET, Published, names

#: 2024-01-01 is a Monday.
MONDAY = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
EVERY_SECOND = JobSchedule(cron="* * * * * *")
NEVER_DURING_A_TEST = "cron: 0 0 29 2 *"


def times(expression: str, count: int = 3) -> list[str]:
    """Return the first times of a cron expression in 2024."""
    trigger = parse_schedule("it", f"cron: {expression}").trigger()
    found: list[datetime] = []
    while len(found) < count:
        start = found[-1] + timedelta(microseconds=1) if found else MONDAY
        found.append(trigger.get_next_fire_time(None, start))
    return [f"{time:%a %d %H:%M}" for time in found]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 3 * * *", ["Mon 01 03:00", "Tue 02 03:00", "Wed 03 03:00"]),
        ("*/20 5 * * *", ["Mon 01 05:00", "Mon 01 05:20", "Mon 01 05:40"]),
        ("0 0 15,31 * *", ["Mon 15 00:00", "Wed 31 00:00", "Thu 15 00:00"]),
        ("0 4 * * 0", ["Sun 07 04:00", "Sun 14 04:00", "Sun 21 04:00"]),
        ("0 4 * * 7", ["Sun 07 04:00", "Sun 14 04:00", "Sun 21 04:00"]),
        ("0 4 * * 1-2", ["Mon 01 04:00", "Tue 02 04:00", "Mon 08 04:00"]),
        ("0 4 * * 5-7", ["Fri 05 04:00", "Sat 06 04:00", "Sun 07 04:00"]),
        ("0 4 * * SAT,sun", ["Sat 06 04:00", "Sun 07 04:00", "Sat 13 04:00"]),
        ("0 4 * * */3", ["Wed 03 04:00", "Sat 06 04:00", "Sun 07 04:00"]),
        ("0 4 * * 4/2", ["Thu 04 04:00", "Sat 06 04:00", "Thu 11 04:00"]),
        ("0 0 2 * 5", ["Tue 02 00:00", "Fri 05 00:00", "Fri 12 00:00"]),
    ],
)
def test_cron_expressions_have_the_meaning_of_cron(expression: str, expected: list[str]):
    assert times(expression) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("cron: 0 3 * *", "it has 4 fields instead of 5"),
        ("cron: 61 3 * * *", "error validating expression '61'"),
        ("cron: 0 3 * * 8", "'8' is not a day of the week"),
        ("cron: 0 3 * * fri-mon", "'fri-mon' ends before it begins"),
        ("cron: 0 3 30 2 *", "it never matches"),
        ("daily", "give a number of seconds above 0, or a cron expression"),
        ("0", "give a number of seconds above 0"),
        ("inf", "give a number of seconds above 0"),
    ],
)
def test_invalid_schedules_are_refused(tmp_path: Path, value: str, reason: str):
    with pytest.raises(ConfigurationError) as caught:
        Publisher(tmp_path, BASE, options=Options(resource_list_every=value))
    assert "resource_list_every" in str(caught.value)
    assert reason in str(caught.value)


def test_seconds_may_be_a_string():
    assert parse_schedule("it", "1.5") == parse_schedule("it", 1.5) == JobSchedule(1.5)


def test_rotation_and_retention_accept_a_cron_expression():
    rotation = parse_rotation("500 changes or cron: 0 3,15 * * mon-fri")
    assert (rotation.changes, rotation.schedule) == (500, JobSchedule(cron="0 3,15 * * mon-fri"))
    retention = parse_retention("cron: 0 4 * * sun, 2 GB")
    assert (retention.size, retention.schedule) == (2 * 10**9, JobSchedule(cron="0 4 * * sun"))
    for text in ("cron: 0 3 * * * or cron: 0 4 * * *", "cron: 0 3 * * fun"):
        with pytest.raises(ConfigurationError, match="cron"):
            parse_rotation(text)
    with pytest.raises(ConfigurationError, match="contains no limit; add one"):
        parse_retention("cron: 0 3 * * *")


@pytest.mark.parametrize(
    ("now", "last"),
    [
        (MONDAY + 3 * HOUR, MONDAY + 3 * HOUR),
        (MONDAY + 3 * HOUR + timedelta(seconds=59), MONDAY + 3 * HOUR),
        (MONDAY + 4 * HOUR, MONDAY + 3 * HOUR),
        (MONDAY + 4 * HOUR + timedelta(seconds=1), None),
        (MONDAY + 2 * HOUR, None),
    ],
)
def test_a_missed_time_is_made_up_for_within_an_hour(now: datetime, last: datetime | None):
    found = JobSchedule(cron="0 3 * * *").last_time(to_microseconds(now))
    assert (None if found is None else from_microseconds(found)) == last


def test_the_last_of_many_missed_times_counts():
    now = to_microseconds(MONDAY) + 500_000
    assert EVERY_SECOND.last_time(now) == to_microseconds(MONDAY)
    assert JobSchedule(cron="*/7 * * * *").last_time(now) == to_microseconds(MONDAY)


class Job:
    """Counts its runs, each of which lasts until it is released."""

    def __init__(self) -> None:
        self.runs = 0
        self.most_at_once = self._at_once = 0
        self._ran = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()
        self.error: Exception | None = None

    async def __call__(self) -> None:
        self.runs += 1
        self._ran.set()
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await self.release.wait()
            if self.error is not None:
                raise self.error
        finally:
            self._at_once -= 1

    async def has_run(self, times: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.runs < times:
                self._ran.clear()
                await self._ran.wait()


class Clock(datetime):
    """A clock that tests can set."""

    ahead = timedelta(0)
    reads = 0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        cls.reads += 1
        return super().now(tz) + cls.ahead

    @classmethod
    def set(cls, instant: datetime) -> None:
        cls.ahead = instant - datetime.now(UTC)

    @classmethod
    async def is_read(cls, times: int) -> None:
        """Wait until the schedule has compared its next time with the clock again."""
        until = cls.reads + times
        async with asyncio.timeout(PATIENCE):
            while cls.reads < until:  # noqa: ASYNC110 - a skipped run sets no event
                await asyncio.sleep(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr("rsnotify_publisher.job_schedule.datetime", Clock)
    monkeypatch.setattr("rsnotify_publisher.job_schedule._CLOCK_CHECK_INTERVAL", 0.01)
    monkeypatch.setattr(Clock, "ahead", timedelta(0))
    return Clock


@asynccontextmanager
async def scheduled(schedule: JobSchedule) -> AsyncIterator[tuple[Job, asyncio.Task[None]]]:
    job = Job()
    repeating = asyncio.create_task(run_by_schedule(schedule, job))
    await asyncio.sleep(0)
    try:
        yield job, repeating
    finally:
        repeating.cancel()
        await asyncio.wait([repeating])


@pytest.mark.parametrize("schedule", [JobSchedule(0.02), EVERY_SECOND])
async def test_a_job_runs_repeatedly(schedule: JobSchedule):
    async with scheduled(schedule) as (job, _):
        await job.has_run(2)


async def test_a_slow_job_has_only_one_run_at_a_time():
    interval = 0.01
    async with scheduled(JobSchedule(interval)) as (job, _):
        job.release.clear()
        await job.has_run(1)
        await asyncio.sleep(5 * interval)
        assert job.runs == 1
        job.release.set()
        await job.has_run(3)
        assert job.most_at_once == 1


async def test_runs_do_not_delay_the_times_of_an_interval(clock: type[Clock]):
    async with scheduled(JobSchedule(600.0)) as (job, _):
        job.release.clear()
        clock.ahead += timedelta(seconds=600)
        await job.has_run(1)
        clock.ahead += timedelta(seconds=500)
        job.release.set()
        await clock.is_read(10)
        assert job.runs == 1
        clock.ahead += timedelta(seconds=100)
        await job.has_run(2)


@pytest.mark.parametrize(
    ("late", "runs"), [(MISFIRE_GRACE - timedelta(minutes=1), 1), (MISFIRE_GRACE * 2, 0)]
)
async def test_missed_times_result_in_one_run_within_the_grace(
    clock: type[Clock], late: timedelta, runs: int
):
    # Once a year, so that no other time comes during the test.
    clock.set(MONDAY - HOUR)
    async with scheduled(JobSchedule(cron="0 0 1 1 *")) as (job, _):
        await clock.is_read(2)
        clock.set(MONDAY + late)
        await job.has_run(runs)
        await clock.is_read(10)
        assert job.runs == runs


async def test_many_missed_times_result_in_one_run(clock: type[Clock]):
    clock.set(MONDAY + HOUR / 2)
    async with scheduled(JobSchedule(cron="0 * * * *")) as (job, _):
        await clock.is_read(2)
        clock.set(MONDAY + 5.5 * HOUR)
        await job.has_run(1)
        await clock.is_read(10)
        assert job.runs == 1


@pytest.mark.parametrize("schedule", [JobSchedule(600.0), JobSchedule(cron="*/10 * * * *")])
async def test_a_clock_that_is_set_back_does_not_postpone_a_job(
    clock: type[Clock], schedule: JobSchedule
):
    clock.set(MONDAY + 5 * HOUR)
    async with scheduled(schedule) as (job, _):
        await clock.is_read(2)
        clock.set(MONDAY)
        await clock.is_read(4)
        clock.set(MONDAY + HOUR / 5)
        await job.has_run(1)


async def test_an_error_in_a_job_ends_the_schedule_and_is_raised():
    async with scheduled(JobSchedule(0.01)) as (job, repeating):
        job.error = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(repeating, PATIENCE)


async def test_a_running_job_is_cancelled_with_its_schedule():
    async with scheduled(JobSchedule(0.01)) as (job, _):
        job.release.clear()
        await job.has_run(1)
    assert job._at_once == 0


class At(Published):
    """A Source whose clock starts at an hour of the day."""

    def __init__(self, folder: Path, options: Options, hour: float, **settings: Any) -> None:
        super().__init__(folder, options, **settings)
        self.set(hour)

    def set(self, hour: float) -> None:
        target = to_microseconds(MONDAY + hour * HOUR)
        self.clock._ahead = target - time.time_ns() // 1000


def test_all_changes_before_a_cron_time_are_closed(tmp_path: Path):
    options = replace(QUIET, rotate="cron: 0 3 * * *")
    with At(tmp_path, options, 1.0) as source:
        source.update("a", "b")
        source.set(2.5)
        source.wait_written()
    assert not source.read("changelist-archive.xml").resources
    # It is stopped at 3:00, and makes up for that at 3:30.
    source.set(3.5)
    source.update("c")
    with source:
        eventually(lambda: bool(source.read("changelist-archive.xml").resources))
        source.wait_written()
    (closed,) = source.read("changelist-archive.xml").resources
    assert names([source.read(closed.uri)]) == ["a", "b"]
    assert names([source.read("changelist.xml")]) == ["c"]


def test_a_rotation_that_was_missed_by_more_than_an_hour_waits_for_the_next(tmp_path: Path):
    options = replace(QUIET, rotate="cron: 0 3 * * *")
    with At(tmp_path, options, 1.0) as source:
        source.update("a")
        source.wait_written()
    source.set(4.5)
    with source:
        source.update("b")
        source.wait_written()
    assert names([source.read("changelist.xml")]) == ["a", "b"]


def test_a_running_source_rotates_at_cron_times(tmp_path: Path):
    with Published(tmp_path, rotate="cron: * * * * * *") as source:
        for count in (1, 2):
            source.update(count)
            eventually(lambda: len(source.read("changelist-archive.xml").resources) == count)  # noqa: B023
        eventually(lambda: source.read("changelist.xml").resources == ())


def test_a_resource_dump_is_written_at_the_start_and_at_cron_times(tmp_path: Path):
    options = replace(QUIET, resource_dump_every="cron: 0 3 * * *")
    with At(tmp_path, options, 1.0) as source:
        source.update("a")
        eventually(lambda: source.has("resourcedump.xml"))
        first = source.read("resourcedump.xml").at
        source.update("b")
        source.wait_written()
        assert source.read("resourcedump.xml").at == first
    for hour in (2.5, 4.5):  # too early, and too late
        source.set(hour)
        with source:
            source.wait_written()
        assert source.read("resourcedump.xml").at == first
    source.set(27.5)
    with source:
        eventually(lambda: source.read("resourcedump.xml").at != first)


def test_documents_are_dropped_only_at_cron_times(tmp_path: Path):
    options = replace(QUIET, rotate="2 changes", keep=f"1 list, {NEVER_DURING_A_TEST}")
    archive = lambda source: source.read("changelist-archive.xml").resources  # noqa: E731
    with Published(tmp_path, options) as source:
        source.update(*range(8))
        source.wait_written()
        assert len(archive(source)) > 3
    with Published(tmp_path, replace(options, keep="1 list, cron: * * * * * *")) as source:
        eventually(lambda: len(archive(source)) == 1)


def test_the_resource_list_is_written_at_the_start_and_at_cron_times(tmp_path: Path):
    with Published(tmp_path, resource_list_every=NEVER_DURING_A_TEST) as source:
        source.update("a")
        source.wait_written()
        assert source.read("resourcelist.xml").resources == ()
    with Published(tmp_path, resource_list_every="cron: * * * * * *") as source:
        source.update("b")
        source.wait_listed()
        assert sorted(names([source.read("resourcelist.xml")])) == ["a", "b"]


class Standing(Published):
    """A Source whose clock stands still, and which publishes at long intervals."""

    def __init__(self, folder: Path, **changed: Any) -> None:
        super().__init__(folder, resource_list_archive=True, **changed)
        self.now = time.time_ns() // 1000
        self.checks = 0
        self.publisher.source.clock = self._time

    def _time(self) -> int:
        # That thread reads the clock only to detect a pause in recording, twice each time.
        if threading.current_thread().name == "rsnotify-publisher":
            self.checks += 1
        return self.now

    def bulk(self, *names: object) -> None:
        self.publisher.record(map(update, names))
        self.wait_written()

    def rest(self) -> None:
        """Advance the clock past a pause in recording, and wait until it has been detected."""
        self.now += 6_000_000
        noticed = self.checks + 4
        eventually(lambda: self.checks >= noticed)

    def lists(self) -> list[int]:
        """Return the number of entries of each Resource List, newest first."""
        archived = self.read("resourcelist-archive.xml").resources
        former = [len(self.read(entry.uri).resources) for entry in reversed(archived)]
        return [len(self.read("resourcelist.xml").resources), *former]


def test_the_resource_list_is_written_when_recording_pauses_after_many_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_publisher.documents.document_store.MIN_CHANGES_TO_OUTDATE", 4)
    with Standing(tmp_path) as source:
        source.bulk(*range(5))
        source.bulk(*range(5, 10))
        assert source.lists() == [0], "recording has not paused"
        source.rest()
        eventually(lambda: source.lists() == [10, 0])
        source.bulk(*range(10, 19))
        source.rest()
        source.bulk(19)
        source.rest()
        eventually(lambda: source.lists()[0] == 20)
    assert source.lists() == [20, 10, 0], "one lacked fewer changes than it had entries"


def test_a_resource_list_with_a_cron_expression_is_written_only_at_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_publisher.documents.document_store.MIN_CHANGES_TO_OUTDATE", 4)
    with Standing(tmp_path, resource_list_every=NEVER_DURING_A_TEST) as source:
        source.bulk(*range(5))
        source.rest()
        source.bulk(5)
        assert source.lists() == [0]


def test_scheduled_rotation_closes_changes_regardless_of_the_limits():
    policy = parse_rotation("10 changes or cron: 0 3 * * *")
    assert policy.minimum_open(1, 10, oldest=50, now=99, scheduled=None) is None
    assert policy.minimum_open(1, 10, oldest=50, now=99, scheduled=49) is None
    minimum = policy.minimum_open(10, 10, oldest=50, now=99, scheduled=60)
    assert (minimum.changes, minimum.since) == (5, 60)


def test_documents_expire_by_the_limits_given_with_a_schedule():
    policy = parse_retention("1 list, cron: 0 3 * * *")
    documents = [FinishedDocument("changelist", at, at + 1, 1, 1, ()) for at in (1, 2)]
    assert policy.expired(documents, now=9) == documents[:1]
