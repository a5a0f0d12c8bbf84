"""Why a copy may not be what its Source's documents say.

`level` is claimed only while there is no doubt. Each doubt is a sentence for the operator of the
Destination, and each leads to a verification: the lists are read, a resource is fetched, or
everything is compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from rsnotify.errors import without_credentials
from rsnotify.format.datetimes import format_datetime
from rsnotify.plural import counted
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.frontiers import SyncFrontiers
from rsnotify.sync.pending_changes import PendingChanges
from rsnotify.sync.unconfirmed import UnconfirmedChanges


class Doubts:
    """The doubts of one follower.

    Args:
        climb: Reads the Source's documents.
        knowledge: What is known.
        worklist: What is not applied yet.
        provisional: What was pushed and no list has confirmed.
    """

    def __init__(
        self,
        climb: CatchUp,
        knowledge: SyncFrontiers,
        worklist: PendingChanges,
        provisional: UnconfirmedChanges,
    ) -> None:
        self._climb = climb
        self._knowledge = knowledge
        self._worklist = worklist
        self._provisional = provisional

    def __bool__(self) -> bool:
        return bool(
            not self._climb.settled
            or self._worklist
            or self._knowledge.gap
            or self._knowledge.hole
            or self._provisional.overdue
            or self._climb.is_behind
        )

    def __iter__(self) -> Iterator[str]:
        climb, knowledge = self._climb, self._knowledge
        if climb.failures:
            yield f"the Source's documents could not be read: {climb.error}"
        elif climb.baselining:
            yield "the copy is being compared with the Source's whole set"
        elif not climb.settled:
            yield "the Source's lists have not been read to their end yet"
        if self._worklist:
            yield self._unapplied()
        if knowledge.hole is not None:
            after, ends = map(format_datetime, (knowledge.hole.after, knowledge.hole.ends))
            yield f"no document covers the changes from {after} to {ends}"
        if knowledge.gap:
            yield "changes were pushed that the Source's lists do not reach yet"
        if self._provisional.overdue:
            yield (
                f"{counted(self._provisional.overdue, 'pushed change')} should be in the Source's "
                "lists by now, and the lists do not have all of them"
            )
        if climb.is_behind:
            yield (
                "the Change List lacks changes that it listed earlier; it may be an old copy, or "
                "the Source was restored from a backup"
            )

    def _unapplied(self) -> str:
        missing = self._worklist.watched
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            first = without_credentials(missing[0])
            return f"{first}{more}: listed by the Source, and its server has no content"
        failing = self._worklist.failing()
        if failing:
            more = f" and {len(failing) - 1} more" if len(failing) > 1 else ""
            return (
                f"{without_credentials(failing[0].uri)}{more}: could not be fetched or applied yet"
            )
        waiting = counted(len(self._worklist), "resource has", "resources have")
        return f"{waiting} changes that are not applied yet"
