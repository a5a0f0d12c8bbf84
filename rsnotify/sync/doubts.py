"""Reasons why a copy may differ from the Source's documents.

A follower is `level` only while there is no doubt. Each doubt is a sentence for the operator of the
Destination, and each leads to a verification: the lists are read, a resource is fetched, or
everything is compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from rsnotify.errors import without_credentials
from rsnotify.format.datetimes import format_datetime
from rsnotify.plural import counted
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.pending_changes import PendingChanges
from rsnotify.sync.sync_state import SyncState

OLDER_LIST = (
    "the Resource List or Resource Dump is older than one that was compared before; it may be an "
    "old copy, or the Source was restored from a backup"
)
BEHIND = (
    "the Change List lacks changes that it listed earlier; it may be an old copy, or "
    "the Source was restored from a backup"
)


def undated(count: int, entries: int, *, are_dates_kept: bool = True) -> str:
    """Return how many of the entries of a list do not show whether their content has changed."""
    lack = "no date and no hash" if are_dates_kept else "no hash, and no date that is kept"
    return f"{count:,} of {counted(entries, 'entry has', 'entries have')} {lack}"


def has_doubts(state: SyncState, catch_up: CatchUp) -> bool:
    frontiers = state.frontiers
    return bool(
        not state.settled
        or state.pending
        or frontiers.has_push_gap
        or frontiers.uncovered_gap
        or state.unconfirmed.overdue
        or frontiers.has_older_list
        or catch_up.is_behind
    )


def list_doubts(state: SyncState, catch_up: CatchUp) -> Iterator[str]:
    frontiers, failures = state.frontiers, catch_up.failures
    if failures.count:
        yield f"the Source's documents could not be read: {failures.error}"
    elif catch_up.baselining:
        yield "the copy is being compared with the Source's whole set"
    elif not state.settled:
        yield "the Source's lists have not been read to their end yet"
    if state.pending:
        yield _unapplied(state.pending)
    gap = frontiers.uncovered_gap
    if gap is not None:
        after, ends = map(format_datetime, (gap.after, gap.ends))
        cure = f"; {gap.cure}" if gap.cure else ""
        yield f"no document covers the changes from {after} to {ends}{cure}"
    if frontiers.has_push_gap:
        yield "changes were pushed that the Source's lists do not reach yet"
    if state.unconfirmed.overdue:
        yield (
            f"{counted(state.unconfirmed.overdue, 'pushed change')} should be in the Source's "
            "lists by now, and the lists do not have all of them"
        )
    if frontiers.has_older_list:
        yield OLDER_LIST
    if catch_up.is_behind:
        yield BEHIND


def _unapplied(pending: PendingChanges) -> str:
    missing = [change.resource.uri for change in pending.watched]
    if missing:
        return f"{_first(missing)}: listed by the Source, and not available from its server"
    failing = [change.resource.uri for change in pending.failing()]
    if failing:
        return f"{_first(failing)}: could not be fetched or applied yet"
    waiting = counted(len(pending), "resource has", "resources have")
    return f"{waiting} changes that are not applied yet"


def _first(uris: list[str]) -> str:
    more = f" and {len(uris) - 1} more" if len(uris) > 1 else ""
    return without_credentials(uris[0]) + more
