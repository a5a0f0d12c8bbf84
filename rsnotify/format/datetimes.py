"""W3C Datetimes (core §7): parses all forms, and formats UTC with microseconds.

Throughout rsnotify, an instant is a `datetime.datetime` in UTC. An instant parsed from a coarse
form, without seconds, has `fold` 1, which has no other meaning in UTC. Such an instant is the
beginning of a minute, day, month or year; `time_span` returns its end. Arithmetic drops `fold`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from itertools import accumulate
from operator import le

from msgspec import to_builtins

#: The type of an instant: an aware `datetime` in UTC.
Instant = datetime

MICROSECOND = timedelta(microseconds=1)
#: An instant after every change.
LATEST = datetime.max.replace(tzinfo=UTC)

# https://www.w3.org/TR/NOTE-datetime requires a time zone after a time. Some Sources omit it, and
# mean UTC.
_FORM = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)"
    r"(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(?:([Zz])|([+-])(\d\d):(\d\d))?)?)?)?",
    re.ASCII,
)


_from_iso = datetime.fromisoformat


def parse_datetime(text: str) -> Instant:
    """Return the first instant denoted by a W3C Datetime of any form, in UTC.

    `fold` is 1 if the form has no seconds. Digits beyond microseconds are ignored. A missing time
    zone means UTC.

    Raises:
        ValueError: The string is not a W3C Datetime, or denotes no valid date and time.
    """
    # C code parses the form that rsnotify and nearly all Sources write. It also accepts weeks,
    # decimal commas and times without colons, which are not W3C Datetimes, so these are excluded.
    if text[-1:] == "Z" and text[10:11] == "T" and len(text) in (20, 27):
        try:
            if text[5] != "W" and text[13] == text[16] == ":" and text[19] in ".Z":
                return _from_iso(text)
        except ValueError:
            pass  # the slow path parses rarer forms of this length, and reports errors
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
        raise ValueError(f"{text!r} is not a valid datetime: {error}") from None
    return instant if second is not None else instant.replace(fold=1)


def format_datetime(instant: Instant) -> str:
    """Format an instant as `YYYY-MM-DDThh:mm:ss.ffffffZ`, the form recommended by core §7.

    Raises:
        ValueError: The datetime is naive, so it is not an instant.
    """
    text: str = to_builtins(instant)  # eight times as fast as `isoformat`
    if len(text) == 27:  # with microseconds and "Z"; all other forms have other lengths
        return text
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone, so it is not an instant")
    if len(text) != 20:
        return format_datetime(instant.astimezone(UTC))
    return text[:19] + ".000000Z"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_microseconds(instant: Instant) -> int:
    """Return the number of microseconds since 1970, for exact storage in the same order."""
    return (instant - _EPOCH) // MICROSECOND


def from_microseconds(count: int) -> Instant:
    """Return the instant for which `to_microseconds` returned `count`."""
    return _EPOCH + timedelta(microseconds=count)


def parse_http_date(text: str) -> Instant | None:
    """Parse the date in an HTTP header (RFC 9110 §5.6.7). Return None if it is malformed."""
    try:
        moment = parsedate_to_datetime(text)
        # Without a zone, or with "-0000", it is naive. A valid HTTP date is in GMT.
        return None if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


_FIRST = datetime.min.replace(tzinfo=UTC)
_SECOND, _MINUTE, _DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
#: The easternmost and westernmost offsets from UTC. A day begins earlier, or ends later, there.
_MAX_EAST, _MAX_WEST = timedelta(hours=14), timedelta(hours=12)
#: Maximum difference between the clocks that date changes and responses.
_MAX_CLOCK_DIFFERENCE = timedelta(minutes=1)


def postponed(instant: Instant, by: timedelta) -> Instant:
    """Return `instant + by`, but at most the last instant of the calendar.

    Some Sources write the year 9999 for "never".
    """
    return instant + by if instant < LATEST - by else LATEST


def just_before(instant: Instant) -> Instant:
    """Return the instant a microsecond earlier, but at least the first instant of the calendar.

    Some Sources write the year 1 for "unknown".
    """
    return max(instant, _FIRST + MICROSECOND) - MICROSECOND


def end_of_unit(instant: Instant) -> Instant:
    """Return the end of the longest unit of time that an instant may denote.

    An instant without a fraction may denote a second, and one at midnight a day. A coarse instant
    denotes a minute or, at midnight, the longest unit that begins with it: a day, month or year.
    """
    if instant.microsecond:
        return postponed(instant, MICROSECOND)
    if instant.hour or instant.minute or instant.second:
        return postponed(instant, _MINUTE if instant.fold else _SECOND)
    if not instant.fold or instant.day > 1:
        return postponed(instant, _DAY)
    months = 1 if instant.month > 1 else 12
    year, month = instant.year + (instant.month + months > 12), instant.month + months
    if year > LATEST.year:
        return LATEST
    return instant.replace(year=year, month=month - 12 if month > 12 else month, fold=0)


def time_span(instant: Instant) -> tuple[Instant, Instant]:
    """Return the beginning and end of the time span that a coarse instant may denote.

    A date may be in any time zone.
    """
    end = end_of_unit(instant)
    if instant.hour or instant.minute:
        return instant, end
    begin = max(instant, _FIRST + _MAX_EAST) - _MAX_EAST
    return begin, postponed(end, _MAX_WEST)


def is_undecided(one: Instant, other: Instant) -> bool:
    """Return whether coarse datetimes do not determine which of two instants is later."""
    if one.fold and other.fold:
        first, second = min(one, other), max(one, other)
        return first < second < end_of_unit(first)
    if not (one.fold or other.fold):
        return False
    coarse, exact = (one, other) if one.fold else (other, one)
    begin, end = time_span(coarse)
    return begin <= exact < end


def dates_from_list_order(times: list[Instant], sent: Instant | None) -> list[Instant] | None:
    """Replace datetimes in the future with the datetimes of the following entries (core §12.1).

    The Source's clock may have been fast before it was corrected, or a single entry may have a
    wrong date. Return None if the list is still out of order, because it was then never sorted, so
    its order proves nothing. `sent` is the `Date` of the response with the list.
    """
    if sent is None:
        return None
    present = postponed(sent, _MAX_CLOCK_DIFFERENCE)

    def date(following: Instant, time: Instant) -> Instant:
        return following if time > present else time

    dated = list(accumulate(reversed(times), date))
    dated.reverse()
    return dated if all(map(le, dated, dated[1:])) else None
