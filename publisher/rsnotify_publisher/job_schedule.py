"""Schedules of jobs: an interval in seconds, or a cron expression.

A cron expression has five fields: minute, hour, day of the month, month, and day of the week
(0 or 7 is Sunday). A sixth field before them is for seconds. As in cron, if both days are
restricted, a time has to match only one of them.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import from_microseconds, to_microseconds

Job = Callable[[], Awaitable[object]]

#: The prefix of a cron expression in an option.
CRON = "cron:"
#: A cron time that was missed by more than this is skipped, since another one will follow.
MISFIRE_GRACE = timedelta(hours=1)
#: Seconds between two comparisons of a schedule with the clock. The clock may be set, and on Linux
#: the timers of the event loop stop while the machine is suspended.
_CLOCK_CHECK_INTERVAL = 10.0
_EXAMPLE = '"cron: 0 3 * * *"'
_MICROSECOND = timedelta(microseconds=1)
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
#: An item in the field for the days of the week: `*`, a day or a range, and a step.
_DAYS = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/([1-9]\d?))?")


class JobSchedule(Struct, frozen=True):
    """An interval in seconds, or a cron expression without `cron:`."""

    seconds: float = 0.0
    cron: str | None = None

    def trigger(self) -> BaseTrigger:
        return (
            IntervalTrigger(seconds=self.seconds) if self.cron is None else _cron_trigger(self.cron)
        )

    def last_time(self, now: int) -> int | None:
        """Return the last cron time (µs) up to `now` if it was at most `MISFIRE_GRACE` ago."""
        trigger, end = self.trigger(), from_microseconds(now)
        # A short span first: an expression may match every second.
        for span in (timedelta(minutes=1), MISFIRE_GRACE):
            last, start = None, end - span
            while (time := trigger.get_next_fire_time(None, start)) is not None and time <= end:
                last, start = to_microseconds(time.astimezone(UTC)), time + _MICROSECOND
            if last is not None:
                return last
        return None


def parse_schedule(name: str, value: float | str) -> JobSchedule:
    """Parse a schedule: seconds, or a string such as `cron: 0 3 * * *`."""
    if isinstance(value, str) and value.strip().startswith(CRON):
        return JobSchedule(cron=parse_cron(name, value.strip().removeprefix(CRON)))
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not (0 < seconds < math.inf):
        raise ConfigurationError(
            f"{name} is {value!r}; give a number of seconds above 0, or a cron expression such as "
            f"{_EXAMPLE}"
        )
    return JobSchedule(seconds)


def parse_cron(name: str, expression: str) -> str:
    """Return a cron expression. Raises ConfigurationError if it is invalid or never matches."""
    expression = expression.strip()
    try:
        if _cron_trigger(expression).get_next_fire_time(None, datetime.now(UTC)) is None:
            raise ValueError("it never matches")
    except ValueError as error:
        raise ConfigurationError(
            f"{name} has the cron expression {expression!r}, but {_as_clause(error)}; write it "
            f"like {_EXAMPLE}"
        ) from None
    return expression


def _as_clause(error: ValueError) -> str:
    text = str(error).rstrip(".")
    return text[:1].lower() + text[1:]


def _cron_trigger(expression: str) -> BaseTrigger:
    fields = expression.split()
    if len(fields) not in (5, 6):
        raise ValueError(f"it has {len(fields)} fields instead of 5")
    second, minute, hour, day, month, weekday = fields if len(fields) == 6 else ["0", *fields]
    times = {"second": second, "minute": minute, "hour": hour, "month": month, "timezone": UTC}
    if day != "*" and weekday != "*":
        by_day = CronTrigger(day=day, **times)
        return OrTrigger([by_day, CronTrigger(day_of_week=_weekdays(weekday), **times)])
    return CronTrigger(day=day, day_of_week=_weekdays(weekday), **times)


def _weekdays(field: str) -> str:
    """Return the days of the week as names: APScheduler counts from Monday, cron from Sunday."""
    if field == "*":
        return field
    days: set[int] = set()
    for part in field.lower().split(","):
        match = _DAYS.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not a day of the week")
        first, last = _weekday(match[1] or "0"), _weekday(match[2] or match[1] or "6")
        if match[1] and match[3] and not match[2]:
            last = 6
        if first > last:
            raise ValueError(f"{part!r} ends before it begins")
        days.update(day % 7 for day in range(first, last + 1, int(match[3] or 1)))
    return ",".join(_WEEKDAYS[day] for day in sorted(days))


def _weekday(text: str) -> int:
    if text in _WEEKDAYS:
        return _WEEKDAYS.index(text)
    if text.isdecimal() and int(text) <= 7:
        return int(text)
    raise ValueError(f"{text!r} is not a day of the week")


async def run_by_schedule(schedule: JobSchedule, job: Job) -> None:
    """Run a job on a schedule, one run at a time, until it is cancelled or fails.

    Scheduled times during a run are skipped, and several missed times result in one run. A cron
    time that was missed by more than `MISFIRE_GRACE` is skipped. Intervals have no such limit.
    """
    trigger = schedule.trigger()
    interval: timedelta | None = getattr(trigger, "interval", None)
    due = trigger.get_next_fire_time(None, datetime.now(UTC))
    while True:
        now = datetime.now(UTC)
        # If the clock is set back, the job must not wait until it has caught up.
        if interval is None:
            due = min(due, trigger.get_next_fire_time(None, now))
        elif due > now + interval:
            due = now
        if now < due:
            await asyncio.sleep(min((due - now).total_seconds(), _CLOCK_CHECK_INTERVAL))
            continue
        if interval is not None or schedule.last_time(to_microseconds(now)) is not None:
            await job()
        now = datetime.now(UTC)
        if interval is None:
            due = trigger.get_next_fire_time(None, now + timedelta(microseconds=1))
        else:
            due += interval * max(1, (now - due) // interval + 1)
