"""Whether a fragment contradicts what a log has of the same time.

A fragment with a `from` says all that changed in its interval. If the log has a change in that
interval that the fragment lacks, the Source has lost that change: it was restored from a backup,
or its journal was deleted. What the log has is then of no use to anyone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from rsnotify.format.coverage import notification_coverage
from rsnotify.format.datetimes import Instant
from rsnotify.format.frontier import ChangeKey, change_key
from rsnotify_hub.log.fragments import Fragment, read_kept
from rsnotify_hub.log.store import Entry, LogState, Store

_Told = set[tuple[Instant, ChangeKey]]


def overlaps(state: LogState, fragment: Fragment) -> bool:
    """Return whether a fragment covers an interval in which the log may have changes."""
    if state.whole or fragment.whole or fragment.from_ is None:
        return False
    # The first change after a heartbeat covers what the heartbeat covered, and nothing before it.
    end = state.through if state.heartbeat is None else state.heartbeat.from_
    return fragment.from_ < end


async def contradicts(fragment: Fragment, topic: str, store: Store) -> bool:
    """Return whether the log of a topic has a change that the fragment should have and lacks.

    Raises:
        StorageError: The log cannot be read.
    """
    entries = await store.changes(topic, since=fragment.from_)
    return await asyncio.to_thread(_lacks, fragment, entries)


def _lacks(fragment: Fragment, entries: Sequence[Entry]) -> bool:
    if all(entry.fragment.body == fragment.body for entry in entries):
        return False
    told = _changes([fragment])
    known = _changes(entry.fragment for entry in entries)
    assert fragment.from_ is not None
    # A Source of second granularity may publish the changes of its last second one by one.
    return any(fragment.from_ < one[0] < fragment.until and one not in told for one in known)


def _changes(fragments: Iterable[Fragment]) -> _Told:
    told: _Told = set()
    for fragment in fragments:
        if not fragment.heartbeat:
            coverage = notification_coverage(read_kept(fragment.body))
            told.update((change.at, change_key(change)) for change in coverage.changes)
    return told
