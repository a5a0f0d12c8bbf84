"""The unit of time that a datetime stands for, and datetimes that list order corrects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import accumulate
from operator import le

from rsnotify.format.datetimes import LATEST, MICROSECOND, Instant

_FIRST = datetime.min.replace(tzinfo=UTC)
_SECOND, _MINUTE, _DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
#: By how much earlier a day may begin in a time zone than in UTC, and by how much later it may end.
_EAST, _WEST = timedelta(hours=14), timedelta(hours=12)
#: By how much the clock that dates changes may differ from the one that dates responses.
_CLOCK_DIFFERENCE = timedelta(minutes=1)


def postponed(instant: Instant, by: timedelta) -> Instant:
    """Return the instant that is so much later, or the last one of the calendar.

    Some Sources write the year 9999 for "never".
    """
    return instant + by if instant < LATEST - by else LATEST


def just_before(instant: Instant) -> Instant:
    """Return the instant a microsecond earlier, or the first one of the calendar.

    Some Sources write the year 1 for "unknown".
    """
    return max(instant, _FIRST + MICROSECOND) - MICROSECOND


def end_of_unit(instant: Instant) -> Instant:
    """Return the end of the unit of time that an instant may stand for.

    Without a fraction it may stand for a whole second, and without a time for a whole day. One that
    was written without seconds stands for its minute, or without a time for the longest unit that
    begins with it: a day, a month or a year.
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
    """Return when something dated with a coarse instant happened: from the first to the second.

    A date without a time may be of any time zone.
    """
    end = end_of_unit(instant)
    if instant.hour or instant.minute:
        return instant, end
    begin = max(instant, _FIRST + _EAST) - _EAST
    return begin, postponed(end, _WEST)


def is_undecided(one: Instant, other: Instant) -> bool:
    """Return whether two datetimes, of which one is coarser, leave open which of them is later."""
    if one.fold and other.fold:
        first, second = min(one, other), max(one, other)
        return first < second < end_of_unit(first)
    if not (one.fold or other.fold):
        return False
    coarse, exact = (one, other) if one.fold else (other, one)
    begin, end = time_span(coarse)
    return begin <= exact < end


def dates_from_list_order(times: list[Instant], sent: Instant | None) -> list[Instant] | None:
    """Replace datetimes in the future by those of the following entries (core §12.1).

    The clock of the Source may have been ahead before it was set, or one entry may have a wrong
    date. If the list is then still out of order, it was never sorted: its order proves nothing, and
    this returns None. `sent` is when it was sent, by the clock of the Source.
    """
    if sent is None:
        return None
    present = postponed(sent, _CLOCK_DIFFERENCE)

    def date(following: Instant, time: Instant) -> Instant:
        return following if time > present else time

    dated = list(accumulate(reversed(times), date))
    dated.reverse()
    return dated if all(map(le, dated, dated[1:])) else None
