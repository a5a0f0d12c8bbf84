"""Preparing changes: it is decided what each takes, by what is held, and its content is brought."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from rsnotify.errors import FetchError, NotFound, RsnotifyError, StorageError
from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.vocabulary import ChangeType
from rsnotify.selection.representations import WantedRepresentation
from rsnotify.selection.selection import Selection
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.fetching.digests import agree
from rsnotify_subscriber.storage.resource_state import Novelty, ResourceState
from rsnotify_subscriber.storage.state import DestinationState
from rsnotify_subscriber.storage.uri_spellings import normal
from rsnotify_subscriber.sync.prepared_change import PreparedChange
from rsnotify_subscriber.tasks import Tasks


class Preparation:
    """Prepares changes, any number at once.

    Args:
        bringer: Brings content.
        state: Knows what is held.
        tasks: Runs what takes a request.
        selection: What is to be applied; of the rest, only what is held goes.
        put: Is called with each change that is ready.
        failed: Is called with each change that cannot be prepared, and the reason.
    """

    def __init__(
        self,
        bringer: ContentResolver,
        state: DestinationState,
        tasks: Tasks,
        selection: Selection,
        put: Callable[[PreparedChange], None],
        failed: Callable[[Change, RsnotifyError], None],
    ) -> None:
        self._bringer = bringer
        self._state = state
        self._tasks = tasks
        self._selection = selection
        self._put = put
        self._outcome_failed = failed
        #: By the normal form of a URI that can be spelled in several ways: the changes that wait
        #: for the one that is on its way.
        self._underway: dict[str, list[Change]] = {}

    def submit(self, changes: Sequence[Change]) -> None:
        """Begin to prepare changes, each on its own."""
        begun = [change for change in changes if self._begin(change)]
        if not self._state.is_local:
            self._tasks.spawn(self._look_up(begun))
            return
        for change in begun:
            self._prepare(change, self._state.find(change.uri))

    async def _look_up(self, changes: Sequence[Change]) -> None:
        """Look up in a thread how resources are held, then prepare their changes."""
        found = await asyncio.to_thread(self._state.find_all, [change.uri for change in changes])
        for change in changes:
            self._prepare(change, found.get(change.uri))

    def _begin(self, change: Change) -> bool:
        """Return whether no other change of the same resource, spelled otherwise, is on its way."""
        if not _has_spellings(change.uri):
            return True
        waiting = self._underway.setdefault(normal(change.uri), [])
        waiting.append(change)
        return len(waiting) == 1

    def done(self, change: Change) -> None:
        """Go on with what waits for a change that is committed or has failed."""
        if _has_spellings(change.uri):
            waiting = self._underway.pop(normal(change.uri), [])
            self.submit(waiting[1:])

    def _failed(self, change: Change, error: RsnotifyError) -> None:
        self._outcome_failed(change, error)
        self.done(change)

    def _prepare(self, change: Change, held: ResourceState | None) -> None:
        wanted = self._bringer.wanted(change)
        decided = self._selection.decide(change, held=held is not None and held.is_there)
        ready = PreparedChange(change, decided, wanted)
        if decided is None:
            self._put(ready)
            return
        match _verdict(decided, change, wanted, held):
            case Novelty.COVERED:
                self._put(replace(ready, decided=None))
            case Novelty.FETCH:
                self._tasks.spawn(self._verify(ready, held))
            case Novelty.APPLY:
                self._apply(replace(ready, decided=_as_held(decided, held)), held)

    def _apply(self, ready: PreparedChange, held: ResourceState | None) -> None:
        decided, entry = ready.decided, ready.wanted.entry
        if decided is None or decided.change is ChangeType.DELETED:
            self._put(ready)
        elif held is not None and held.is_there and agree(held.hash, entry.hash):
            self._put(replace(ready, decided=None, unchanged=held))
        elif (content := self._bringer.at_hand(ready.wanted)) is not None:
            self._put(ready.answered(content, held))
        else:
            self._tasks.spawn(self._fetch(ready, held))

    async def _fetch(self, ready: PreparedChange, held: ResourceState | None) -> None:
        change = ready.change
        try:
            answer = await self._bringer.bring(ready.wanted, held)
        except FetchError as error:
            self._failed(change, error)
        except OSError as error:
            self._failed(change, StorageError(f"{change.uri}: {error}"))
        else:
            self._put(ready.answered(answer, held))

    async def _verify(self, ready: PreparedChange, held: ResourceState | None) -> None:
        """Fetch the resource itself, and let it become what it is now."""
        change = ready.change
        try:
            content = await self._bringer.current(ready.wanted, held)
        except NotFound as error:
            if change.change is ChangeType.DELETED:
                self._put(_not_there(ready, held))
            else:
                self._failed(change, error)
        except FetchError as error:
            self._failed(change, error)
        except OSError as error:
            self._failed(change, StorageError(f"{change.uri}: {error}"))
        else:
            decided = self._selected(change, held)
            self._put(replace(ready, decided=decided).answered(content, held))

    def _selected(self, change: Change, held: ResourceState | None) -> Change | None:
        """Return the creation or update that a resource turned out to have, if it is selected."""
        is_there = held is not None and held.is_there
        kind = ChangeType.UPDATED if is_there else ChangeType.CREATED
        resource = change.resource
        if resource.change is not None:
            resource = replace(resource, change=kind)
        found = replace(change, change=kind, resource=resource)
        decided = self._selection.decide(found, held=is_there)
        return None if decided is None else _as_held(decided, held)


def _verdict(
    decided: Change, change: Change, wanted: WantedRepresentation, held: ResourceState | None
) -> Novelty:
    described = replace(decided, resource=wanted.entry)
    if decided.change is not change.change:  # it is not selected any more, so it goes
        assert held is not None, "what is not held need not go"
        return Novelty.COVERED if held.covers(described) else Novelty.APPLY
    if held is not None:
        return held.verdict(described)
    if change.check is CheckMethod.FETCH:
        return Novelty.FETCH
    is_nothing = change.check is CheckMethod.COMPARE and change.change is ChangeType.DELETED
    return Novelty.COVERED if is_nothing else Novelty.APPLY


def _not_there(ready: PreparedChange, held: ResourceState | None) -> PreparedChange:
    """Return the deletion of what turned out not to be there, if it is held."""
    if held is None or not held.is_there:
        return replace(ready, decided=None, unchanged=held)
    assert ready.decided is not None, "it was to be verified"
    return replace(ready, decided=_as_held(ready.decided, held))


def _as_held(decided: Change, held: ResourceState | None) -> Change:
    """Return a change with the URI as it is held, where it was spelled otherwise."""
    if held is None or held.uri == decided.uri:
        return decided
    return replace(decided, uri=held.uri)


def _has_spellings(uri: str) -> bool:
    return "%" in uri or "~" in uri
