"""Tuning of a Publisher. The defaults suit a Source of any size.

A cron expression has five fields: minute, hour, day of the month, month, and day of the week
(0 or 7 is Sunday). A sixth field before them is for seconds. As in cron, if both days are
restricted, a time has to match only one of them.

`rotate` and `keep` contain limits: a count (`500 changes`, `1000 lists`), a time (`90 s`, `15 min`,
`1 h`, `30 days`, `4 weeks`), a size (`500 kB`, `25 MB`, `2 GB`), or a cron expression. Each kind
may occur once. They may be in any order, separated by a comma, "or" or "and".

Instants in this module are microseconds since 1970.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from msgspec import Meta, Struct

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify.format.model import MAX_BYTES, MAX_ENTRIES
from rsnotify.runtime.settings import WrongSetting, convert_settings
from rsnotify_publisher.journal import FinishedDocument
from rsnotify_publisher.view import check_views

# The types alone enforce nothing; `check_options` checks them.
_Seconds = Annotated[float, Meta(gt=0)]
#: Seconds, or a cron expression such as "cron: 0 3 * * *"; see `parse_schedule`.
_Schedule = (
    _Seconds | Annotated[str, Meta(description='a cron expression such as "cron: 0 3 * * *"')]
)
_Positive = Annotated[int, Meta(ge=1)]
# The limits of a document (core §7).
_Entries = Annotated[int, Meta(ge=1, le=MAX_ENTRIES)]
_Bytes = Annotated[int, Meta(ge=1, le=MAX_BYTES)]


class Options(Struct, frozen=True, kw_only=True):
    """Tuning of a Publisher.

    The arguments are in four groups: rotation and retention, lists and dumps, the form of
    documents, and push.

    `rotate`, `keep`, `resource_list_every` and `resource_dump_every` accept cron expressions:
    "cron:" and five fields (minute, hour, day of the month, month, day of the week), in UTC. If a
    scheduled time passes while the Source is stopped, the job runs at the next start, provided that
    is within an hour. If several times pass, the job runs once.

    Args:
        rotate: When changes move from the open Change List to a closed one. When a count, age or
            size is reached, whichever comes first, the older half is closed: "500 changes or 1 h".
            At the times of a cron expression, all changes are closed:
            "10,000 changes or cron: 0 3 * * *".
        keep: How long closed documents are offered, for each archive separately, such as
            "30 days, 1000 lists, 2 GB". Documents that ended within the age stay, regardless of
            size. Older documents stay while they are among the newest that fit the count and the
            size. With an age, changes in the open Change List are also closed at that age, if
            `rotate` states neither an age nor a cron expression. With a cron expression,
            documents are dropped only at its times: "30 days, cron: 0 4 * * sun".
        linger: Seconds for which a file stays readable after its document was replaced or dropped
            from an archive, for clients that have just read its URL.
        resource_list_every: Seconds between two Resource Lists, or a cron expression. The first is
            written at the start, the others only if there are changes. If this is in seconds, a
            list is also written when recording pauses for 5 s after many changes: at least 1,000,
            and at least as many as the last list has entries.
        resource_list_archive: Keep former Resource Lists in an archive.
        resource_dump_every: Seconds between two Resource Dumps, or a cron expression. None disables
            them. Requires `content`. The first is written at once, the others only if there are
            changes.
        resource_dump_archive: Keep former Resource Dumps in an archive.
        change_dump: Package the content of the changes in each closed Change List. Requires
            `content`.
        change_dump_archive: Move older packages from the Change Dump to an archive.
        profile: "1.1", which readers of ResourceSync 1.0 can also follow, or "1.0".
        gzip: Write closed Change Lists and parts of Resource Lists as `.xml.gz`.
        max_entries: Maximum number of entries in one document before it gets an index.
        max_bytes: Maximum number of bytes in one document before it gets an index.
        refresh: Maximum number of seconds until a change is in the file of the open Change List. If
            this is more than 10, Destinations that read the file and also receive push report a
            doubt.
        views: Also write the changes in other formats: "iiif" (IIIF Change Discovery 1.0),
            "ldes" (Linked Data Event Streams), and others that installed packages offer. They
            begin where the Change List Archive begins.
        change_memory: List the change memory in the Capability List. Set this if `application` or
            `routes` serve it.
        heartbeat: Seconds without a change before a hub gets a heartbeat, and between two digests
            of the set that are sent with changes.
        fragment_entries: Maximum number of changes in one fragment.
        fragment_bytes: Maximum number of bytes in one fragment, unless a single change is larger.
        framework: Also notify the hubs of new documents, on a separate channel.
        framework_url: Also list that channel in the Source Description as a `<url>`, as described
            in Framework Notification §5. Some clients, including `resync`, mistake it for a second
            set of resources and stop.
        poll: Seconds between two checks for changes that other processes recorded.
        grace: Seconds for which `close` waits for the hubs to accept the remaining changes.
    """

    # Rotation and retention.
    rotate: str = "10,000 changes or 25 MB"
    keep: str = "1000 lists"
    linger: Annotated[float, Meta(ge=0)] = 600.0
    # Lists and dumps of the whole set, and packages of changes.
    resource_list_every: _Schedule = 900.0
    resource_list_archive: bool = False
    resource_dump_every: _Schedule | None = None
    resource_dump_archive: bool = False
    change_dump: bool = False
    change_dump_archive: bool = False
    # The form of documents, and other formats of changes.
    profile: str = "1.1"
    gzip: bool = False
    max_entries: _Entries = MAX_ENTRIES
    max_bytes: _Bytes = MAX_BYTES
    refresh: _Seconds = 1.0
    views: tuple[str, ...] = ()
    change_memory: bool = False
    # Push to hubs.
    heartbeat: _Seconds = 10.0
    fragment_entries: _Entries = 1_000
    fragment_bytes: _Positive = 500_000
    framework: bool = True
    framework_url: bool = False
    poll: _Seconds = 0.015
    grace: Annotated[float, Meta(ge=0)] = 1.0


def check_options(options: Options) -> None:
    """Raise ConfigurationError if a value is out of bounds or has the wrong type."""
    try:
        check_views(convert_settings(msgspec.structs.asdict(options), Options).views)
    except WrongSetting as wrong:
        raise ConfigurationError(f"the options are wrong: {wrong}") from None


CRON = "cron:"
#: A cron time that was missed by more than this is skipped, since another one will follow.
MISFIRE_GRACE = timedelta(hours=1)
_EXAMPLE = '"cron: 0 3 * * *"'
_MICROSECOND = timedelta(microseconds=1)
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAYS = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/([1-9]\d?))?")


class JobSchedule(Struct, frozen=True):
    """An interval in seconds, or a cron expression."""

    seconds: float = 0.0
    cron: str | None = None

    def trigger(self) -> BaseTrigger:
        return IntervalTrigger(seconds=self.seconds) if self.cron is None else _cron(self.cron)

    def last_time(self, now: int) -> int | None:
        """Return the last cron time (µs) up to `now` if it was at most `MISFIRE_GRACE` ago."""
        trigger, end = self.trigger(), from_microseconds(now)
        for span in (timedelta(minutes=1), MISFIRE_GRACE):  # few steps, even if it is every second
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
            f"{name} is {value!r}; give seconds above 0, or a cron expression like {_EXAMPLE}"
        )
    return JobSchedule(seconds)


def parse_cron(name: str, expression: str) -> str:
    """Return a cron expression, or raise ConfigurationError if it is invalid or never matches."""
    expression = expression.strip()
    try:
        if _cron(expression).get_next_fire_time(None, datetime.now(UTC)) is None:
            raise ValueError("no time ever matches it")
    except ValueError as error:
        raise ConfigurationError(
            f"{name} has the cron expression {expression!r}, but {_clause(error)}; write it "
            f"like {_EXAMPLE}"
        ) from None
    return expression


def _clause(error: ValueError) -> str:
    text = str(error).rstrip(".")
    return text[:1].lower() + text[1:]


def _cron(expression: str) -> BaseTrigger:
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
    """Return days of the week as names: APScheduler numbers them from Monday, cron from Sunday."""
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


#: The kind of limit and the factor for each unit. Ages are in microseconds, sizes in bytes.
_UNITS = {
    unit: (kind, factor)
    for kind, factor, units in (
        ("age", 1_000_000, "s sec second seconds"),
        ("age", 60_000_000, "min minute minutes"),
        ("age", 3_600_000_000, "h hour hours"),
        ("age", 86_400_000_000, "d day days"),
        ("age", 604_800_000_000, "w week weeks"),
        ("size", 1, "b byte bytes"),
        ("size", 10**3, "kb"),
        ("size", 10**6, "mb"),
        ("size", 10**9, "gb"),
        ("size", 10**12, "tb"),
        ("count", 1, "change changes list lists document documents dump dumps"),
    )
    for unit in units.split()
}
_PARTS = re.compile(r", | or | and ")
_LIMIT = re.compile(r"(\d+(?:[,_]\d{3})*(?:\.\d+)?)\s*([A-Za-z]+)")


class MinimumOpen(Struct, frozen=True):
    """The minimum that stays open after a rotation. Reaching any one of the limits is enough."""

    changes: int | None
    size: int | None
    since: int | None

    def allows(self, changes: int, size: int, last_closed: int) -> bool:
        """Return whether changes may be closed if this many changes and bytes then stay open."""
        return (
            (self.changes is not None and changes >= self.changes)
            or (self.size is not None and size >= self.size)
            or (self.since is not None and last_closed <= self.since)
        )


class RotationPolicy(Struct, frozen=True):
    """Decides when changes move from the open Change List to a closed one.

    When a limit is reached (a number of changes or bytes, or the age of the first change), the
    older half is closed. The open list then still reaches back half the limit, so that a reader
    that polls occasionally seldom needs the archive. At a scheduled time, all changes up to that
    time are closed.
    """

    changes: int | None = None
    size: int | None = None
    age: int | None = None
    schedule: JobSchedule | None = None

    def minimum_open(
        self, changes: int, size: int, oldest: int, now: int, scheduled: int | None = None
    ) -> MinimumOpen | None:
        """Return the minimum that stays open, or None if no limit is reached.

        `oldest` is the datetime of the first of the `changes` in the open period. All changes
        through the last scheduled time are closed.
        """
        full = self.changes is not None and changes >= self.changes
        large = self.size is not None and size >= self.size
        old = self.age is not None and oldest <= now - self.age
        due = scheduled is not None and oldest <= scheduled
        if not (changes and (full or large or old or due)):
            return None
        since = now - self.age // 2 if old and self.age else None
        if due and scheduled is not None:
            since = scheduled if since is None else max(scheduled, since)
        return MinimumOpen(
            self.changes // 2 if full and self.changes else None,
            self.size // 2 if large and self.size else None,
            since,
        )


class RetentionPolicy(Struct, frozen=True):
    """Decides how long a closed document stays in its archive, for each archive separately.

    - With an age, documents that ended less than that long ago stay, regardless of number and
      size: a Destination that was offline for a shorter time finds every change. If there is no
      other limit, all older documents are dropped.
    - With a count or a size (of all files), the newest documents that fit all limits stay.
    - With both, documents older than the age stay as long as they are among the newest that fit.
    - With a schedule, documents are dropped only at its times.
    """

    age: int | None = None
    count: int | None = None
    size: int | None = None
    schedule: JobSchedule | None = None

    def expired(self, documents: Sequence[FinishedDocument], now: int) -> list[FinishedDocument]:
        """Return the documents to drop from an archive, given all its documents, oldest first."""
        end = self._surplus(documents)
        if self.age is not None:
            kept = (n for n, one in enumerate(documents[:end]) if one.end > now - self.age)
            end = next(kept, end)
        return list(documents[:end])

    def _surplus(self, documents: Sequence[FinishedDocument]) -> int:
        """Return the number of oldest documents that exceed the count or the size."""
        if self.count is None and self.size is None:
            return len(documents)
        count = size = 0
        for document in reversed(documents):
            size += document.size
            if count == self.count or (self.size is not None and size > self.size):
                break
            count += 1
        return len(documents) - count


def parse_rotation(text: str) -> RotationPolicy:
    limits, schedule = _limits("rotate", text, "500 changes or 1 h")
    return RotationPolicy(limits.get("count"), limits.get("size"), limits.get("age"), schedule)


def parse_retention(text: str) -> RetentionPolicy:
    limits, schedule = _limits("keep", text, "30 days, 1000 lists, 2 GB")
    if not limits:
        raise ConfigurationError(f"keep is {text!r}, which only says when; add a limit to it")
    return RetentionPolicy(limits.get("age"), limits.get("count"), limits.get("size"), schedule)


def _limits(name: str, text: str, example: str) -> tuple[dict[str, int], JobSchedule | None]:
    limits: dict[str, int] = {}
    schedule: JobSchedule | None = None
    for part in _PARTS.split(" ".join(text.split())):
        if part.startswith(CRON) and schedule is None:
            schedule = JobSchedule(cron=parse_cron(name, part.removeprefix(CRON)))
            continue
        match = _LIMIT.fullmatch(part.strip())
        kind, factor = _UNITS.get(match[2].lower(), (None, 0)) if match else (None, 0)
        if part.startswith(CRON):
            reason = f"{part!r} is a second cron expression"
        elif match is None or kind is None:
            reason = f"{part!r} is not a count, time or size"
        elif kind in limits:
            reason = f"{part!r} is a second {kind}"
        else:
            limits[kind] = int(float(match[1].replace(",", "").replace("_", "")) * factor)
            if limits[kind] > 0:
                continue
            reason = f"{part!r} is nothing"
        raise ConfigurationError(f'{name} is {text!r}, but {reason}; write it like "{example}"')
    return limits, schedule
