"""W3C Datetimes as the validator reads them: strictly, and with their written precision.

`2013-01-02` is a whole day. Two datetimes are compared only up to their precision, so that coarse
datetimes are not reported as out of order.
"""

from __future__ import annotations

import re
from datetime import timedelta

from msgspec import Struct

from rsnotify.format.datetimes import MICROSECOND, Instant, parse_datetime

# https://www.w3.org/TR/1998/NOTE-datetime-19980827: the zone is mandatory after a time.
_FORM = re.compile(
    r"\d{4}(-\d\d(-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d))?)?)?",
    re.ASCII,
)
_RECOMMENDED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", re.ASCII)
#: The duration of the unit that is written, by the number of groups of the form plus one.
_DURATIONS = {
    1: timedelta(days=365),
    2: timedelta(days=28),
    3: timedelta(days=1),
    4: timedelta(minutes=1),
    5: timedelta(seconds=1),
}


class StrictDatetime(Struct, frozen=True):
    """The instants that a datetime may mean, from the first to the last."""

    first: Instant
    last: Instant

    def is_before(self, other: StrictDatetime) -> bool:
        """Return whether it is certainly earlier."""
        return self.last < other.first


def read_strict_datetime(text: str | None) -> StrictDatetime | None:
    """Read a W3C Datetime; None if it is malformed."""
    match = _FORM.fullmatch(text.strip()) if text is not None else None
    if match is None or text is None:
        return None
    try:
        first = parse_datetime(text)
        return StrictDatetime(first, first + _duration(match) - MICROSECOND)
    except (ValueError, OverflowError):
        return None


def _duration(match: re.Match[str]) -> timedelta:
    fraction = match.group(5)
    if fraction:
        return max(MICROSECOND, timedelta(seconds=10.0 ** -(len(fraction) - 1)))
    written = sum(group is not None for group in match.groups()[:4])
    return _DURATIONS[written + 1]


def is_recommended(text: str) -> bool:
    """Return whether a text has the form that core §7 recommends."""
    return _RECOMMENDED.fullmatch(text.strip()) is not None
