"""Reasons why a copy may differ from the Source's documents.

A follower is `level` only while there is no doubt. Each doubt is a sentence for the operator of the
Destination, and each leads to a verification: the lists are read, a resource is fetched, or
everything is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

from rsnotify.errors import without_credentials
from rsnotify.format.datetimes import format_datetime
from rsnotify.plural import counted
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.sync_state import SyncState


class Doubts:
    """The doubts of one follower.

    Args:
        state: The state of the follower.
        catch_up: Reads the Source's documents.
    """

    def __init__(self, state: SyncState, catch_up: CatchUp) -> None:
        self._state = state
        self._catch_up = catch_up

    def __bool__(self) -> bool:
        state = self._state
        return bool(
            not state.settled
            or state.pending
            or state.frontiers.has_push_gap
            or state.frontiers.uncovered_gap
            or state.unconfirmed.overdue
            or self._catch_up.is_behind
        )

    def __iter__(self) -> Iterator[str]:
        state, frontiers = self._state, self._state.frontiers
        failures = self._catch_up.failures
        if failures.count:
            yield f"the Source's documents could not be read: {failures.error}"
        elif self._catch_up.baselining:
            yield "the copy is being compared with the Source's whole set"
        elif not state.settled:
            yield "the Source's lists have not been read to their end yet"
        if state.pending:
            yield self._unapplied()
        gap = frontiers.uncovered_gap
        if gap is not None:
            after, ends = map(format_datetime, (gap.after, gap.ends))
            yield f"no document covers the changes from {after} to {ends}"
        if frontiers.has_push_gap:
            yield "changes were pushed that the Source's lists do not reach yet"
        if state.unconfirmed.overdue:
            yield (
                f"{counted(state.unconfirmed.overdue, 'pushed change')} should be in the Source's "
                "lists by now, and the lists do not have all of them"
            )
        if self._catch_up.is_behind:
            yield (
                "the Change List lacks changes that it listed earlier; it may be an old copy, or "
                "the Source was restored from a backup"
            )

    def _unapplied(self) -> str:
        pending = self._state.pending
        missing = pending.watched
        if missing:
            first = without_credentials(missing[0]) + _and_more(missing)
            return f"{first}: listed by the Source, and its server has no content"
        failing = pending.failing()
        if failing:
            first = without_credentials(failing[0].uri) + _and_more(failing)
            return f"{first}: could not be fetched or applied yet"
        waiting = counted(len(pending), "resource has", "resources have")
        return f"{waiting} changes that are not applied yet"


def _and_more(items: Sized) -> str:
    return f" and {len(items) - 1} more" if len(items) > 1 else ""
