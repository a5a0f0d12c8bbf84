"""When changes are closed, and how long what is closed stays offered: a line of text each.

    rotate = "500 changes or 1 h"
    keep = "30 days, 1000 lists, 2 GB"

A line names limits: a count (`500 changes`, `1000 lists`), a time (`90 s`, `15 min`, `1 h`,
`30 days`, `4 weeks`), a size (`500 kB`, `25 MB`, `2 GB`); each kind once, in any order, with a
comma, "or" or "and" between them. Instants are counts of microseconds here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify_publisher.journal import FinishedDocument

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


class Floor(Struct, frozen=True):
    """What has to stay open: to satisfy one of these is enough, as each limit was reached."""

    changes: int | None
    size: int | None
    since: int | None

    def permits(self, changes: int, size: int, gone: int) -> bool:
        """Whether something may be closed.

        Args:
            changes: How many changes stay open then.
            size: How many bytes stay.
            gone: The datetime of the last change that is closed.
        """
        return (
            (self.changes is not None and changes >= self.changes)
            or (self.size is not None and size >= self.size)
            or (self.since is not None and gone <= self.since)
        )


class Rotation(Struct, frozen=True):
    """When the older half of the open Change List is closed: at whichever limit comes first.

    What stays open still reaches back half the limit, so that a reader that polls now and
    then seldom needs the archive.

    Args:
        changes: With as many changes.
        size: With as many bytes.
        age: When its first change is so old.
    """

    changes: int | None = None
    size: int | None = None
    age: int | None = None

    def floor(self, changes: int, size: int, oldest: int, now: int) -> Floor | None:
        """Return what has to stay open; None if no limit is reached.

        Args:
            changes: How many changes there are in the open period.
            size: How many bytes.
            oldest: The datetime of the first.
            now: The time of day.
        """
        full = self.changes is not None and changes >= self.changes
        large = self.size is not None and size >= self.size
        old = self.age is not None and oldest <= now - self.age
        if not (changes and (full or large or old)):
            return None
        return Floor(
            self.changes // 2 if full and self.changes else None,
            self.size // 2 if large and self.size else None,
            now - self.age // 2 if old and self.age else None,
        )


class Retention(Struct, frozen=True):
    """How long a closed document stays in its archive; each archive is judged by itself.

    - With an age, what ended less than that long ago stays, however much it is: who was away
      for a shorter time finds every change. With nothing else, all that is older goes.
    - With a count or a size, the newest that fit them all stay.
    - With both, what is older than the age stays as long as it is among the newest that fit.

    Args:
        age: How long ago it ended, at least.
        count: How many documents, the newest.
        size: How many bytes they and their parts and packages have together.
    """

    age: int | None = None
    count: int | None = None
    size: int | None = None

    def expired(self, volumes: Sequence[FinishedDocument], now: int) -> list[FinishedDocument]:
        """Return which of the volumes of an archive need not stay.

        Args:
            volumes: All of them, oldest first.
            now: The time of day.
        """
        cut = self._beyond(volumes)
        if self.age is not None:
            cut = next((n for n, v in enumerate(volumes[:cut]) if v.end > now - self.age), cut)
        return list(volumes[:cut])

    def _beyond(self, volumes: Sequence[FinishedDocument]) -> int:
        """Return how many of the oldest lie beyond the count or the size."""
        if self.count is None and self.size is None:
            return len(volumes)
        cut = 0 if self.count is None else max(0, len(volumes) - self.count)
        if self.size is None:
            return cut
        room = self.size
        for number in range(len(volumes) - 1, cut - 1, -1):
            room -= volumes[number].size
            if room < 0:
                return number + 1
        return cut


def parse_rotation(text: str) -> Rotation:
    """Read when changes are closed, such as `500 changes or 1 h`.

    Raises:
        ConfigurationError: The text says nothing of the kind.
    """
    limits = _limits("rotate", text, "500 changes or 1 h")
    return Rotation(limits.get("count"), limits.get("size"), limits.get("age"))


def parse_retention(text: str) -> Retention:
    """Read how long closed documents are kept, such as `30 days, 1000 lists, 2 GB`.

    Raises:
        ConfigurationError: The text says nothing of the kind.
    """
    limits = _limits("keep", text, "30 days, 1000 lists, 2 GB")
    return Retention(limits.get("age"), limits.get("count"), limits.get("size"))


def _limits(name: str, text: str, example: str) -> dict[str, int]:
    limits: dict[str, int] = {}
    for part in _PARTS.split(" ".join(text.split())):
        match = _LIMIT.fullmatch(part.strip())
        kind, factor = _UNITS.get(match[2].lower(), (None, 0)) if match else (None, 0)
        if match is None or kind is None:
            reason = f"{part!r} is no count, time or size"
        elif kind in limits:
            reason = f"{part!r} is a second {kind}"
        else:
            limits[kind] = int(float(match[1].replace(",", "").replace("_", "")) * factor)
            if limits[kind] > 0:
                continue
            reason = f"{part!r} is nothing"
        raise ConfigurationError(f'{name} is {text!r}, but {reason}; write it like "{example}"')
    return limits
