"""What of some fragments goes into a log, and what gives way to it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import MICROSECOND
from rsnotify_hub.log.fragments import Fragment, covers, heartbeat_interval
from rsnotify_hub.log.store import LogState


class AppendPlan(Struct, frozen=True):
    """What to append.

    Args:
        fragments: What goes into the log.
        replacing: The position of the heartbeat at the log's end that gives way, if it does.
    """

    fragments: tuple[Fragment, ...]
    replacing: int | None


def plan_append(state: LogState | None, fragments: Sequence[Fragment]) -> AppendPlan:
    """Decide what of some fragments to append to a log.

    A heartbeat that reaches no further than the log is dropped; one at the end gives way to
    what covers it, so that a quiet topic's log does not grow. A whole content gives way to
    whatever comes after it (in the log, the store sees to that), and stands later than all
    before it, whatever the clock says.

    Args:
        state: The log; None when there is none yet.
        fragments: What was published, in order.
    """
    kept: list[Fragment] = []
    replacing = None
    through = state.through if state else None
    for fragment in fragments:
        if fragment.heartbeat and through is not None and fragment.until <= through:
            continue
        if fragment.whole and through is not None and fragment.until <= through:
            fragment = replace(fragment, until=through + MICROSECOND)
        if kept:
            if _gives_way(kept[-1], fragment):
                kept.pop()
        elif state is not None and state.heartbeat and covers(fragment, state.heartbeat):
            replacing = state.position
        kept.append(fragment)
        through = max(through, fragment.until) if through else fragment.until
    return AppendPlan(tuple(kept), replacing)


def _gives_way(before: Fragment, fragment: Fragment) -> bool:
    heartbeat = heartbeat_interval(before)
    return before.whole or (heartbeat is not None and covers(fragment, heartbeat))
