"""W3C Datetimes (core §7): every form is read, UTC with microseconds is written.

An instant is a `datetime.datetime` in UTC everywhere in rsnotify. One that was read from a coarse
form, without seconds, has the `fold` 1, which has no other meaning in UTC: it is the beginning of
the minute, day, month or year that was written (`timestamp_precision.time_span`). Arithmetic drops
the `fold`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

from msgspec import to_builtins

#: The type of an instant: an aware `datetime` in UTC.
Instant = datetime

MICROSECOND = timedelta(microseconds=1)
#: After every change.
LATEST = datetime.max.replace(tzinfo=UTC)

# https://www.w3.org/TR/NOTE-datetime. A zone is mandatory after a time there; some Sources omit
# it, and mean UTC.
_FORM = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)"
    r"(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(?:([Zz])|([+-])(\d\d):(\d\d))?)?)?)?",
    re.ASCII,
)


_from_iso = datetime.fromisoformat


def parse_datetime(text: str) -> Instant:
    """Return the first instant that a W3C Datetime of any form denotes, in UTC.

    Its `fold` is 1 if the form has no seconds. Digits beyond the microsecond are ignored; an absent
    zone means UTC.

    Raises:
        ValueError: The text is not a W3C Datetime, or not an instant of the calendar.
    """
    # C code reads the form that rsnotify and nearly every Source write. It also accepts weeks and
    # a decimal comma, which W3C Datetimes do not have, so those are excluded first.
    if text[-1:] == "Z" and text[10:11] == "T" and len(text) in (20, 27):
        try:
            if text[5] != "W" and text[19] in ".Z":
                return _from_iso(text)
        except ValueError:
            pass  # the slow path explains the error, or reads a rarer form of this length
    text = text.strip()
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a W3C Datetime such as 2013-01-03T09:00:00Z")
    year, month, day, hour, minute, second, fraction, _, sign, zone_h, zone_m = match.groups()
    try:
        offset = timedelta(hours=int(zone_h or 0), minutes=int(zone_m or 0))
        instant = datetime(
            int(year),
            int(month or 1),
            int(day or 1),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or "0")[:6].ljust(6, "0")),
            tzinfo=timezone(-offset if sign == "-" else offset),
        ).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a datetime of the calendar: {error}") from None
    return instant if second is not None else instant.replace(fold=1)


def format_datetime(instant: Instant) -> str:
    """Write an instant as `YYYY-MM-DDThh:mm:ss.ffffffZ`, the form core §7 recommends.

    Raises:
        ValueError: The datetime is naive, so that it is not an instant.
    """
    if instant.tzinfo is not UTC:
        if instant.tzinfo is None:
            raise ValueError(f"{instant!r} has no time zone, so it denotes no instant")
        instant = instant.astimezone(UTC)
    text: str = to_builtins(instant)  # takes an eighth of the time of `isoformat`
    return text if len(text) == 27 else text[:19] + ".000000Z"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_microseconds(instant: Instant) -> int:
    """Return whole microseconds since 1970, for storage: exact, and in the same order."""
    return (instant - _EPOCH) // MICROSECOND


def from_microseconds(count: int) -> Instant:
    """Return the instant for which `to_microseconds` returned `count`."""
    return _EPOCH + timedelta(microseconds=count)


def parse_http_date(text: str) -> Instant | None:
    """Read the date of an HTTP header (RFC 9110 §5.6.7); None if it is malformed."""
    try:
        moment = parsedate_to_datetime(text)
        # An absent zone ("-0000") leaves it naive; HTTP dates are GMT anyway.
        return None if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
