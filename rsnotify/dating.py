"""What a datetime stands for, and what of a list is dated by its place."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from operator import gt, ne

from rsnotify.datetimes import MICROSECOND, Instant

_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
#: What is dated so much later than what stands behind it in a list was not merely written late.
_STEP = timedelta(minutes=1)
#: One in so many entries, at most, stands where a list goes back that is in order else.
_RARE = 4
_LATEST = datetime.max.replace(tzinfo=UTC)


def postponed(instant: Instant, by: timedelta) -> Instant:
    """Return the instant that is so much later, or the last one of the calendar.

    The year 9999 is what some Sources write for "never".
    """
    return instant + by if instant < _LATEST - by else _LATEST


def ends(instant: Instant) -> Instant:
    """Return when that is over for which an instant may stand.

    It may be a whole second of which no fraction is told, or a day of which no time is told.
    """
    if instant.microsecond:
        return postponed(instant, MICROSECOND)
    is_day = not (instant.hour or instant.minute or instant.second)
    return postponed(instant, _DAY if is_day else _SECOND)


def by_place(times: list[Instant]) -> list[Instant] | None:
    """Let list order decide where few entries are dated as if they stood elsewhere (core §12.1).

    The clock of a Source may be set, and an entry have a wrong date. So an entry is as late as the
    latest ahead of it; or what is far ahead of its time, as early as what stands behind it: as
    fewer entries are dated anew.

    Args:
        times: The datetimes of a list's entries, in its order.

    Returns:
        Datetimes that are in order; None where so many are out of order that it tells nothing, or
        it goes back as often as on: the latest may come first, many of them of one second.
    """
    back = sum(after < before for before, after in pairwise(times))
    if back > len(times) // _RARE or back >= sum(map(gt, times[1:], times)):
        return None
    raised = list(accumulate(times, max))
    lowered = list(accumulate(_lowered(times), max))
    return min(raised, lowered, key=lambda dated: sum(map(ne, dated, times)))


def _lowered(times: list[Instant]) -> list[Instant]:
    """Return instants, and in place of each that is far ahead of a later one, that one."""
    lowered: list[Instant] = []
    least = times[-1]
    for time in reversed(times):
        is_ahead = time - least > _STEP
        least = least if is_ahead else min(least, time)
        lowered.append(least if is_ahead else time)
    return lowered[::-1]
