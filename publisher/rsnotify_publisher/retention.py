"""When changes are closed, and how long closed documents are offered: a line of text each.

    rotate = "500 changes or 1 h"
    rotate = "10,000 changes or cron: 0 3 * * *"
    keep = "30 days, 1000 lists, 2 GB"

A line names limits: a count (`500 changes`, `1000 lists`), a time (`90 s`, `15 min`, `1 h`,
`30 days`, `4 weeks`), a size (`500 kB`, `25 MB`, `2 GB`), a cron expression (`cron: 0 3 * * *`,
see `schedule`); each kind once, in any order, with a comma, "or" or "and" between them. Instants
are counts of microseconds here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify_publisher.journal import FinishedDocument
from rsnotify_publisher.schedule import CRON, JobSchedule, parse_cron

_SECOND = 1_000_000
_COUNTS = {"change", "changes", "list", "lists", "document", "documents", "dump", "dumps"}
_TIMES = {
    _SECOND: ("s", "sec", "second", "seconds"),
    60 * _SECOND: ("min", "minute", "minutes"),
    3_600 * _SECOND: ("h", "hour", "hours"),
    86_400 * _SECOND: ("d", "day", "days"),
    604_800 * _SECOND: ("w", "week", "weeks"),
}
_SIZES = {
    1: ("b", "byte", "bytes"),
    10**3: ("kb",),
    10**6: ("mb",),
    10**9: ("gb",),
    10**12: ("tb",),
}
_UNITS = {
    unit: (kind, factor)
    for kind, table in (("age", _TIMES), ("size", _SIZES), ("count", {1: tuple(_COUNTS)}))
    for factor, units in table.items()
    for unit in units
}
_PARTS = re.compile(r", | or | and ")
_LIMIT = re.compile(r"(\d+(?:[,_]\d{3})*(?:\.\d+)?)\s*([A-Za-z]+)")


class MinimumOpen(Struct, frozen=True):
    """What stays open after a rotation: to satisfy one of these is enough."""

    changes: int | None
    size: int | None
    since: int | None

    def allows(self, changes: int, size: int, last_closed: int) -> bool:
        """Return whether changes may be closed, if so many changes and bytes then stay open."""
        return (
            (self.changes is not None and changes >= self.changes)
            or (self.size is not None and size >= self.size)
            or (self.since is not None and last_closed <= self.since)
        )


class RotationPolicy(Struct, frozen=True):
    """When changes move from the open Change List to a closed one.

    When a limit is reached (a number of changes or bytes, or the age of the first change), the
    older half is closed. What stays open still reaches back half the limit, so that a reader that
    polls now and then seldom needs the archive. At a time of the schedule, all changes up to that
    time are closed.
    """

    changes: int | None = None
    size: int | None = None
    age: int | None = None
    schedule: JobSchedule | None = None

    def minimum_open(
        self, changes: int, size: int, oldest: int, now: int, scheduled: int | None = None
    ) -> MinimumOpen | None:
        """Return what has to stay open; None if no limit is reached.

        The first three arguments are the number of changes in the open period, their bytes, and the
        datetime of the first. All changes through `scheduled`, a time of the schedule, are closed.
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
    """How long a closed document stays in its archive; each archive is judged by itself.

    - With an age, documents that ended less than that long ago stay, whatever their number and
      size: a Destination that was offline for a shorter time finds every change. With nothing
      else, all older ones are dropped.
    - With a count or a size (of all files), the newest that fit them all stay.
    - With both, documents older than the age stay as long as they are among the newest that fit.
    - With a schedule, documents are dropped only at its times.
    """

    age: int | None = None
    count: int | None = None
    size: int | None = None
    schedule: JobSchedule | None = None

    def expired(self, documents: Sequence[FinishedDocument], now: int) -> list[FinishedDocument]:
        """Return which documents of an archive, all of them given oldest first, need not stay."""
        end = self._surplus(documents)
        if self.age is not None:
            kept = (n for n, one in enumerate(documents[:end]) if one.end > now - self.age)
            end = next(kept, end)
        return list(documents[:end])

    def _surplus(self, documents: Sequence[FinishedDocument]) -> int:
        """Return how many of the oldest exceed the count or the size."""
        if self.count is None and self.size is None:
            return len(documents)
        surplus = 0 if self.count is None else max(0, len(documents) - self.count)
        if self.size is None:
            return surplus
        left = self.size
        for number in range(len(documents) - 1, surplus - 1, -1):
            left -= documents[number].size
            if left < 0:
                return number + 1
        return surplus


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
            reason = f"{part!r} is no count, time or size"
        elif kind in limits:
            reason = f"{part!r} is a second {kind}"
        else:
            limits[kind] = int(float(match[1].replace(",", "").replace("_", "")) * factor)
            if limits[kind] > 0:
                continue
            reason = f"{part!r} is nothing"
        raise ConfigurationError(f'{name} is {text!r}, but {reason}; write it like "{example}"')
    return limits, schedule
