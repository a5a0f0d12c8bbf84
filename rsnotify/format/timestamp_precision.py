"""The unit of time that a datetime stands for, and datetimes that list order corrects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import accumulate
from operator import le

from rsnotify.format.datetimes import LATEST, MICROSECOND, Instant

_FIRST = datetime.min.replace(tzinfo=UTC)
_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
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

    Without a fraction it may stand for a whole second, and without a time for a whole day.
    """
    if instant.microsecond:
        return postponed(instant, MICROSECOND)
    is_day = not (instant.hour or instant.minute or instant.second)
    return postponed(instant, _DAY if is_day else _SECOND)


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
