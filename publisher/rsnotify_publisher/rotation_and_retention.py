"""When the open Change List is closed (rotation), and how long closed documents stay (retention).

`Options.rotate` and `Options.keep` contain limits: a count (`500 changes`, `1000 lists`), a time
(`90 s`, `15 min`, `1 h`, `30 days`, `4 weeks`), a size (`500 kB`, `25 MB`, `2 GB`), or a cron
expression. Each kind may occur once. They may be in any order, separated by a comma, "or" or "and".

Instants in this module are microseconds since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify_publisher.job_schedule import CRON, JobSchedule, parse_cron
from rsnotify_publisher.journal import FinishedDocument

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


_SEPARATOR = re.compile(r", | or | and ")
_LIMIT = re.compile(r"(\d+(?:[,_]\d{3})*(?:\.\d+)?)\s*([A-Za-z]+)")


class MinimumOpen(Struct, frozen=True):
    """The minimum that stays open after a rotation: a number of changes or bytes, or a time span.

    Reaching one of them is enough. `since` is when the time span begins (µs).
    """

    changes: int | None
    size: int | None
    since: int | None

    def allows(self, changes: int, size: int, last_closed: int) -> bool:
        """Return whether changes through `last_closed` (µs) may be closed.

        `changes` and `size` are the number of changes and bytes that then stay open.
        """
        return (
            (self.changes is not None and changes >= self.changes)
            or (self.size is not None and size >= self.size)
            or (self.since is not None and last_closed <= self.since)
        )


class RotationPolicy(Struct, frozen=True):
    """Decides when changes move from the open Change List to a closed one.

    When a limit is reached (a number of changes or bytes, or the age of the first change), the
    older half is closed. The open list then still reaches back half the limit, so that even readers
    that poll rarely seldom need the archive. At a scheduled time, all changes up to that time are
    closed.
    """

    changes: int | None = None
    size: int | None = None
    age: int | None = None
    schedule: JobSchedule | None = None

    def minimum_open(
        self, changes: int, size: int, oldest: int, now: int, scheduled: int | None = None
    ) -> MinimumOpen | None:
        """Return the minimum that stays open, or None if no limit is reached.

        `changes` and `size` are those of the open period, and `oldest` is the datetime of its first
        change. Changes through the last scheduled time are closed in any case.
        """
        has_count = self.changes is not None and changes >= self.changes
        has_size = self.size is not None and size >= self.size
        has_age = self.age is not None and oldest <= now - self.age
        is_due = scheduled is not None and oldest <= scheduled
        if not (changes and (has_count or has_size or has_age or is_due)):
            return None
        since = now - self.age // 2 if has_age and self.age else None
        if is_due and scheduled is not None:
            since = scheduled if since is None else max(scheduled, since)
        return MinimumOpen(
            self.changes // 2 if has_count and self.changes else None,
            self.size // 2 if has_size and self.size else None,
            since,
        )


class RetentionPolicy(Struct, frozen=True):
    """Decides how long a closed document stays in its archive, for each archive separately.

    - With an age, documents that ended less than that long ago stay, regardless of number and
      size: a Destination that was offline for a shorter time finds every change. If there is no
      other limit, all older documents are dropped.
    - With a count or a total size, the newest documents that fit all limits stay.
    - With both, documents older than the age stay as long as they are among the newest that fit.
    - With a schedule, documents are dropped only at its times.
    """

    age: int | None = None
    count: int | None = None
    size: int | None = None
    schedule: JobSchedule | None = None

    def expired(self, documents: Sequence[FinishedDocument], now: int) -> list[FinishedDocument]:
        """Return the documents to drop from an archive, given all its documents, oldest first."""
        end = self._excess(documents)
        if self.age is not None:
            kept = (n for n, one in enumerate(documents[:end]) if one.end > now - self.age)
            end = next(kept, end)
        return list(documents[:end])

    def _excess(self, documents: Sequence[FinishedDocument]) -> int:
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
        raise ConfigurationError(f"keep is {text!r}, which contains no limit; add one")
    return RetentionPolicy(limits.get("age"), limits.get("count"), limits.get("size"), schedule)


def _limits(name: str, text: str, example: str) -> tuple[dict[str, int], JobSchedule | None]:
    limits: dict[str, int] = {}
    schedule: JobSchedule | None = None
    for part in _SEPARATOR.split(" ".join(text.split())):
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
            reason = f"{part!r} is not above 0"
        raise ConfigurationError(f'{name} is {text!r}, but {reason}; write it like "{example}"')
    return limits, schedule
