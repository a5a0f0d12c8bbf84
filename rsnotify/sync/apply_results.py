"""Handles the answers to `Apply`, and the resources that are announced and not available.

After some attempts T passes such a resource. It is stored with the progress and fetched again, less
and less often, and the follower is not `level` meanwhile. One that its server does not have for
long is removed from the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from rsnotify.errors import NotFound, RsnotifyError, StorageError, Unavailable
from rsnotify.format.coverage import EARLIEST, Change, CheckMethod
from rsnotify.format.datetimes import LATEST
from rsnotify.format.model import Resource
from rsnotify.format.uris import normalize
from rsnotify.format.vocabulary import ChangeType
from rsnotify.sync.actions import MissingResource, Progress
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.continuous_audit import ContinuousAudit
from rsnotify.sync.retry import LONGEST_RETRY_AFTER
from rsnotify.sync.sync_state import SyncState
from rsnotify.sync.unconfirmed_changes import announced_at

#: How many resources that are not available are stored with the progress. T waits for more.
_MOST_MISSING = 10_000


class ApplyResults:
    """Records which changes are applied, and derives the progress to store.

    `missing` are the resources that were not available when the last run ended.
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
        #: The resources to store with the progress, and the changes they are made from.
        self._missing = missing
        self._passed: Sequence[Change] = ()
        self._only_pushed: frozenset[str] = frozenset()
        #: By URI, changes of missing resources, and the deletions applied in their place.
        self._removals: dict[str, tuple[Change, Change]] = {}

    def start(self, now: float) -> None:
        """Fetch again the resources that were not available when the last run ended."""
        for one in self._missing:
            self._state.pending.watch(_change_of(one), now)

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
        passed, unconfirmed = self._state.pending.passed, self._state.unconfirmed
        if progress is None or not (passed or removed):
            return progress
        candidates = passed if unconfirmed else ()
        pushed = frozenset(one.uri for one in candidates if one.uri in unconfirmed)
        if passed is not self._passed or pushed != self._only_pushed:
            self._passed, self._only_pushed = passed, pushed
            # No later run waits for a list that confirms what was not applied.
            self._missing = tuple(
                MissingResource(one.resource.uri) if one.uri in pushed else _missing_resource(one)
                for one in passed
            )
        return replace(progress, missing=self._missing + tuple(map(_removed_resource, removed)))

    def _is_removal(self, change: Change) -> bool:
        """Return whether a deletion is applied because its resource is listed and missing."""
        return change.uri in self._removals and change is self._removals[change.uri][1]

    # Answers

    def applied(self, changes: Iterable[Change], now: float) -> None:
        """Record changes as applied, and watch the missing resources among them."""
        pending = self._state.pending
        self._catch_up.news_at = now
        for change in changes:
            is_latest = pending.applied(change)
            if self._is_removal(change):
                listed, _ = self._removals.pop(change.uri)
                if is_latest:  # else a later change shows whether the resource exists
                    fetch = replace(listed, check=CheckMethod.FETCH)
                    pending.watch(fetch, now + self._state.pace.gone_after, removed=True)

    def failed(self, change: Change, error: RsnotifyError, now: float) -> None:
        """Retry a change later, or remove its resource if it has been missing for long."""
        state = self._state
        is_watched = state.pending.is_watched(change.uri)
        is_missing = isinstance(error, NotFound)
        gone_after = state.pace.gone_after
        attempts = state.pending.failed(
            change,
            now,
            max(
                error.retry_after or 0.0,
                gone_after if state.pending.is_removed(change.uri) else 0.0,
            ),
            missing=is_missing,
            longest=gone_after if is_missing else LONGEST_RETRY_AFTER,
        )
        if not attempts:
            return
        if self._is_gone(change, error, attempts, now):
            state.actions.note(
                f"{change.resource.uri} is listed, but not there: it is removed from the copy, "
                "and fetched again from time to time",
                warning=True,
            )
            removal = replace(change, change=ChangeType.DELETED, package=None)
            self._removals[change.uri] = (change, removal)
            since = LATEST if is_watched else removal.at
            state.pending.add(removal, since, missing=change)
            self._catch_up.comparisons.expedite()
        elif not is_watched:
            text = f"could not apply, try {attempts}: {error}"
            state.actions.note(text, warning=attempts == 3)
            if self._is_enough(change, error, attempts):
                self._give_up(change, error)
        if state.pending.failed_at(change) >= self._catch_up.began:
            # The resource may have changed or been deleted since: then the lists show it.
            delay = state.pace.retry.delay(attempts, state.random)
            state.schedule.catch_up_by(now + delay)

    def _is_enough(self, change: Change, error: RsnotifyError, attempts: int) -> bool:
        """Return whether a change has failed so often, or for so long, that it is given up."""
        pace, pending = self._state.pace, self._state.pending
        if isinstance(error, Unavailable) and error.is_transient:
            return pending.retried_at(change) - pending.failed_at(change) >= pace.patience
        return attempts >= pace.give_up

    def _give_up(self, change: Change, error: RsnotifyError) -> None:
        """Allow T to pass a resource that is not available.

        T waits if the fault is here, as with a disk or a handler, or if too many are stored.
        """
        pending = self._state.pending
        is_here = isinstance(error, StorageError)
        watch = not is_here and len(pending.passed) < _MOST_MISSING
        pending.give_up(change.uri, watch=watch)

    def _is_gone(self, change: Change, error: RsnotifyError, attempts: int, now: float) -> bool:
        pace = self._state.pace
        is_listed = change.resource.change is None
        if is_listed and self._audit.repairing and attempts >= pace.give_up:
            # A resource that was missing when everything was compared for a difference need not
            # hold up T for long: if it was a mistake, the digest shows that again.
            return isinstance(error, NotFound)
        since = self._state.pending.missing_since(change)
        return since is not None and now - since >= pace.gone_after


def _removed_resource(change: Change) -> MissingResource:
    return MissingResource(change.resource.uri, announced_at(change))


def _missing_resource(change: Change) -> MissingResource:
    if change.check is CheckMethod.FETCH:
        return _removed_resource(change)
    return MissingResource(change.resource.uri, announced_at(change), change.resource, change.at)


def _change_of(missing: MissingResource) -> Change:
    uri, kind = normalize(missing.uri), ChangeType.UPDATED
    at, entry = missing.announced, missing.entry
    if entry is not None:
        # Its datetime may be that of a version which was stored since.
        check = CheckMethod.COMPARE
        return Change(uri, entry.change or kind, missing.at, entry, check=check)
    entry = Resource(missing.uri, change=kind, datetime=at if at > EARLIEST else None)
    return Change(uri, kind, at, entry, check=CheckMethod.FETCH)
