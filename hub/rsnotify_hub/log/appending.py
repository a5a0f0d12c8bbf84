"""The decisions on an append: what is stored, what it replaces, and whether it contradicts the log.

A fragment with a `from` states all changes in its interval. If the log has a change in that
interval that the fragment lacks, the Source has lost that change: it was restored from a backup,
or its journal was deleted. The log is then of no use to anyone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import notification_coverage
from rsnotify.format.datetimes import MICROSECOND, Instant
from rsnotify.format.frontier import ChangeKey, change_key
from rsnotify.format.timestamp_precision import postponed
from rsnotify_hub.fragments.fragment import Fragment, covers, heartbeat_interval, read_stored
from rsnotify_hub.store.interface import LogEntry, LogState, LogStore


class AppendPlan(Struct, frozen=True):
    """The fragments to append, and the position of a heartbeat that they replace, if any."""

    fragments: tuple[Fragment, ...]
    replacing: int | None


def plan_append(state: LogState | None, fragments: Sequence[Fragment]) -> AppendPlan:
    """Return what to append to a log.

    A heartbeat that does not extend the log is dropped. A heartbeat at the end of the log is
    replaced by a fragment that covers it, so the log of a quiet topic does not grow. A whole
    content is replaced by whatever follows it (the store does so in the log), and is later than
    everything before it, whatever the clock says.
    """
    appended: list[Fragment] = []
    replacing = None
    through = state.through if state else None
    for fragment in fragments:
        if fragment.heartbeat and through is not None and fragment.until <= through:
            continue
        if fragment.whole and through is not None and fragment.until <= through:
            fragment = replace(fragment, until=postponed(through, MICROSECOND))
        if appended:
            if _is_replaced(appended[-1], fragment):
                appended.pop()
        elif state is not None and state.heartbeat and covers(fragment, state.heartbeat):
            replacing = state.position
        appended.append(fragment)
        through = max(through, fragment.until) if through else fragment.until
    return AppendPlan(tuple(appended), replacing)


def _is_replaced(before: Fragment, fragment: Fragment) -> bool:
    heartbeat = heartbeat_interval(before)
    return before.whole or (heartbeat is not None and covers(fragment, heartbeat))


def overlaps(state: LogState, fragment: Fragment) -> bool:
    """Return whether a fragment covers an interval in which the log may have changes."""
    if state.whole or fragment.whole or fragment.from_ is None:
        return False
    # The first change after a heartbeat covers the heartbeat's interval, and nothing before it.
    end = state.through if state.heartbeat is None else state.heartbeat.from_
    return fragment.from_ < end


async def contradicts(fragment: Fragment, topic: str, store: LogStore) -> bool:
    """Return whether the log of a topic has a change that the fragment should have and lacks."""
    entries = await store.changes(topic, since=fragment.from_)
    return await asyncio.to_thread(_lacks, fragment, entries)


def _lacks(fragment: Fragment, entries: Sequence[LogEntry]) -> bool:
    if all(entry.fragment.body == fragment.body for entry in entries):
        return False
    stated = _changes([fragment])
    known = _changes(entry.fragment for entry in entries)
    begin, until = fragment.from_, fragment.until
    assert begin is not None
    # A Source with a precision of seconds may publish the changes of its last second one by one.
    return any(begin < each[0] < until and each not in stated for each in known)


def _changes(fragments: Iterable[Fragment]) -> set[tuple[Instant, ChangeKey]]:
    found = set[tuple[Instant, ChangeKey]]()
    for fragment in fragments:
        if not fragment.heartbeat:
            coverage = notification_coverage(read_stored(fragment.body))
            found.update((change.at, change_key(change)) for change in coverage.changes)
    return found
