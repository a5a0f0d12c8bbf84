"""What a datetime stands for, and what of a list is dated by its place."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate
from operator import le

from rsnotify.format.datetimes import LATEST, MICROSECOND, Instant

_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
#: By how much the clock that dates changes may differ from the one that dates answers.
_STEP = timedelta(minutes=1)


def postponed(instant: Instant, by: timedelta) -> Instant:
    """Return the instant that is so much later, or the last one of the calendar.

    The year 9999 is what some Sources write for "never".
    """
    return instant + by if instant < LATEST - by else LATEST


def end_of_unit(instant: Instant) -> Instant:
    """Return when that is over for which an instant may stand.

    It may be a whole second of which no fraction is told, or a day of which no time is told.
    """
    if instant.microsecond:
        return postponed(instant, MICROSECOND)
    is_day = not (instant.hour or instant.minute or instant.second)
    return postponed(instant, _DAY if is_day else _SECOND)


def dates_from_list_order(times: list[Instant], sent: Instant | None) -> list[Instant] | None:
    """Let list order decide where entries are dated later than anything can be (core §12.1).

    The clock of a Source may have been ahead and been set, or one entry have a wrong date: it is as
    late then as what stands behind it. Where a list is out of order by other dates, it was not put
    in order, and its order tells nothing.

    Args:
        times: The datetimes of a list's entries, in its order.
        sent: When it was sent, by the clock of the Source; None if that is not told.

    Returns:
        Datetimes that are in order; None where order tells nothing.
    """
    if sent is None:
        return None
    present = postponed(sent, _STEP)

    def date(behind: Instant, time: Instant) -> Instant:
        return behind if time > present else time

    dated = list(accumulate(reversed(times), date))
    dated.reverse()
    return dated if all(map(le, dated, dated[1:])) else None
