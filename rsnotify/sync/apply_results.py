"""Handles the answers to `Apply`, and the resources that are listed and missing on the server.

A resource that stays missing for long is removed from the copy, so that T can pass it. It is
fetched again from time to time, and the follower is not `level` meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from rsnotify.errors import NotFound, RsnotifyError
from rsnotify.format.coverage import EARLIEST, Change, CheckMethod
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify.sync.actions import MissingResource, Progress
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.continuous_audit import ContinuousAudit
from rsnotify.sync.sync_state import SyncState
from rsnotify.sync.unconfirmed_changes import announced_at

#: How many resources that are listed and missing are stored with the progress.
_MOST_MISSING = 1_000


class ApplyResults:
    """Records which changes are applied, and derives the progress to store.

    `missing` are the resources that were listed and missing when the last run ended.
    """

    def __init__(
        self,
        state: SyncState,
        catch_up: CatchUp,
        audit: ContinuousAudit,
        missing: tuple[MissingResource, ...],
    ) -> None:
        self._state = state
        self._catch_up = catch_up
        self._audit = audit
        self._missing = missing
        self._is_watching = bool(missing)
        #: By URI, changes of missing resources, and the deletions applied in their place.
        self._removals: dict[str, tuple[Change, Change]] = {}

    def start(self, now: float) -> None:
        """Fetch again the resources that were missing when the last run ended."""
        kind, check = ChangeType.UPDATED, CheckMethod.FETCH
        for one in self._missing:
            at = one.announced
            resource = Resource(one.uri, change=kind, datetime=at if at > EARLIEST else None)
            self._state.pending.watch(Change(one.uri, kind, at, resource, check=check), now)

    # Progress

    def progress(self) -> Progress | None:
        state = self._state
        return self._with_missing(state.frontiers.progress(state.pending.low_water()))

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        """Return the progress to store with changes, before `applied` is called for them."""
        low_water = self._state.pending.low_water_after(changes)
        removed = [self._removals[one.uri][0] for one in changes if self._is_removal(one)]
        return self._with_missing(self._state.frontiers.progress_after(low_water), removed)

    def _with_missing(
        self, progress: Progress | None, removed: Sequence[Change] = ()
    ) -> Progress | None:
        changes = [*(self._state.pending.watched if self._is_watching else ()), *removed]
        if progress is None or not changes:
            return progress
        missing = (MissingResource(one.uri, announced_at(one)) for one in changes[:_MOST_MISSING])
        return replace(progress, missing=tuple(missing))

    def _is_removal(self, change: Change) -> bool:
        """Return whether a deletion is applied because its resource is listed and missing."""
        return change.uri in self._removals and change is self._removals[change.uri][1]

    # Answers

    def applied(self, changes: Iterable[Change], now: float) -> None:
        """Record changes as applied, and watch the missing resources among them."""
        pending = self._state.pending
        for change in changes:
            is_latest = pending.applied(change)
            if self._is_removal(change):
                listed, _ = self._removals.pop(change.uri)
                if is_latest:  # else a later change shows whether the resource exists
                    self._is_watching = True
                    fetch = replace(listed, check=CheckMethod.FETCH)
                    pending.watch(fetch, now + self._state.pace.gone_after)

    def failed(self, change: Change, error: RsnotifyError, now: float) -> None:
        """Retry a change later, or remove its resource if it has been missing for long."""
        state = self._state
        is_watched = state.pending.is_watched(change.uri)
        missing = isinstance(error, NotFound)
        least = max(error.retry_after or 0.0, state.pace.gone_after if is_watched else 0.0)
        attempts = state.pending.failed(change, now, least, missing=missing)
        if not attempts or is_watched:
            return
        if self._is_gone(change, error, attempts, now):
            state.actions.note(
                f"{change.uri} is listed, but not there: it is removed from the copy, and fetched "
                "again from time to time",
                warning=True,
            )
            removal = replace(change, change=ChangeType.DELETED, package=None)
            self._removals[change.uri] = (change, removal)
            state.pending.add(removal, missing=change)
            self._catch_up.comparisons.expedite()
        else:
            text = f"could not apply, try {attempts}: {error}"
            state.actions.note(text, warning=attempts == 3)
            # The resource may have changed or been deleted since: then the lists show it.
            delay = state.pace.retry.delay(attempts, state.random)
            state.schedule.catch_up_by(now + delay)

    def _is_gone(self, change: Change, error: RsnotifyError, attempts: int, now: float) -> bool:
        pace = self._state.pace
        is_listed = change.resource.change is None
        if is_listed and self._audit.repairing and attempts >= pace.give_up:
            # A resource that was missing when everything was compared for a difference need not
            # hold up T for long: if it was a mistake, the digest shows that again.
            return isinstance(error, NotFound)
        since = self._state.pending.missing_since(change)
        return since is not None and now - since >= pace.gone_after
