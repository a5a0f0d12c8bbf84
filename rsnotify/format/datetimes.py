"""W3C Datetimes (core §7): reads every form, and writes UTC with microseconds.

An instant is a `datetime.datetime` in UTC everywhere in rsnotify. An instant that was read from a
coarse form, without seconds, has `fold` 1, which has no other meaning in UTC. Such an instant is
the beginning of the minute, day, month or year that was written, and `time_span` returns the end.
Arithmetic drops `fold`.
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

# https://www.w3.org/TR/NOTE-datetime requires a time zone after a time. Some Sources omit the zone
# and mean UTC.
_FORM = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)"
    r"(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(?:([Zz])|([+-])(\d\d):(\d\d))?)?)?)?",
    re.ASCII,
)


_from_iso = datetime.fromisoformat


def parse_datetime(text: str) -> Instant:
    """Return the first instant that a W3C Datetime of any form denotes, in UTC.

    `fold` is 1 if the form has no seconds. Digits beyond microseconds are ignored. A missing time
    zone means UTC.

    Raises:
        ValueError: The string is not a W3C Datetime, or denotes no valid date and time.
    """
    # C code reads the form that rsnotify and nearly every Source write. It also accepts weeks, a
    # decimal comma and times without colons, which are not W3C Datetimes and are excluded first.
    if text[-1:] == "Z" and text[10:11] == "T" and len(text) in (20, 27):
        try:
            if text[5] != "W" and text[13] == text[16] == ":" and text[19] in ".Z":
                return _from_iso(text)
        except ValueError:
            pass  # the slow path reads a rarer form of this length, or reports the error
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
    """Format an instant as `YYYY-MM-DDThh:mm:ss.ffffffZ`, the form recommended by core §7.

    Raises:
        ValueError: The datetime is naive and therefore not an instant.
    """
    text: str = to_builtins(instant)  # an eighth of the time that `isoformat` takes
    if len(text) == 27:  # "Z" after microseconds; any other form has another length
        return text
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone, so it denotes no instant")
    if len(text) != 20:
        return format_datetime(instant.astimezone(UTC))
    return text[:19] + ".000000Z"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_microseconds(instant: Instant) -> int:
    """Return whole microseconds since 1970, for storage: exact, and in the same order."""
    return (instant - _EPOCH) // MICROSECOND


def from_microseconds(count: int) -> Instant:
    """Return the instant for which `to_microseconds` returned `count`."""
    return _EPOCH + timedelta(microseconds=count)


def parse_http_date(text: str) -> Instant | None:
    """Parse the date in an HTTP header (RFC 9110 §5.6.7). Return None if it is malformed."""
    try:
        moment = parsedate_to_datetime(text)
        # Without a zone, or with "-0000", it is naive and not a valid HTTP date, which is in GMT.
        return None if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


_FIRST = datetime.min.replace(tzinfo=UTC)
_SECOND, _MINUTE, _DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
#: How much earlier than in UTC a day may begin in a time zone, and how much later it may end.
_EAST, _WEST = timedelta(hours=14), timedelta(hours=12)
#: Maximum difference between the clock that dates changes and the clock that dates responses.
_CLOCK_DIFFERENCE = timedelta(minutes=1)


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
    """Return the end of the unit of time that an instant may stand for.

    An instant without a fraction may stand for a whole second, and one without a time for a whole
    day. An instant that was written without seconds stands for its minute or, if it has no time,
    for the longest unit that begins with it: a day, a month or a year.
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

    A date without a time may be in any time zone.
    """
    end = end_of_unit(instant)
    if instant.hour or instant.minute:
        return instant, end
    begin = max(instant, _FIRST + _EAST) - _EAST
    return begin, postponed(end, _WEST)


def is_undecided(one: Instant, other: Instant) -> bool:
    """Return whether it is unclear which of two datetimes is later, because one is coarse."""
    if one.fold and other.fold:
        first, second = min(one, other), max(one, other)
        return first < second < end_of_unit(first)
    if not (one.fold or other.fold):
        return False
    coarse, exact = (one, other) if one.fold else (other, one)
    begin, end = time_span(coarse)
    return begin <= exact < end


def dates_from_list_order(times: list[Instant], sent: Instant | None) -> list[Instant] | None:
    """Replace datetimes in the future with the following entries' datetimes (core §12.1).

    The Source's clock may have been fast before it was corrected, or a single entry may have a
    wrong date. If the list is still out of order afterwards, it was never sorted. Its order then
    proves nothing, and None is returned. `sent` is the time at which the list was sent, by the
    Source's clock.
    """
    if sent is None:
        return None
    present = postponed(sent, _CLOCK_DIFFERENCE)

    def date(following: Instant, time: Instant) -> Instant:
        return following if time > present else time

    dated = list(accumulate(reversed(times), date))
    dated.reverse()
    return dated if all(map(le, dated, dated[1:])) else None
