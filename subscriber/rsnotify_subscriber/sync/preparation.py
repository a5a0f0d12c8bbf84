"""Preparing changes: deciding by the state of the copy what to do, and fetching content."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from rsnotify.errors import FetchError, NotFound, RsnotifyError, StorageError
from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.vocabulary import ChangeType
from rsnotify.selection.representations import WantedRepresentation
from rsnotify.selection.selection import Selection
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.fetching.digests import agree
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.resource_state import Novelty, ResourceState
from rsnotify_subscriber.sync.prepared_change import PreparedChange
from rsnotify_subscriber.tasks import Tasks

#: A change whose content is to be fetched, and the state of its resource.
_ToFetch = tuple[PreparedChange, ResourceState | None]


@dataclass
class Preparation:
    """Prepares changes, any number at once."""

    content: ContentResolver
    state: DestinationState
    tasks: Tasks
    selection: Selection
    #: Is called with each change that is prepared.
    ready: Callable[[PreparedChange], None]
    #: Is called with each change that cannot be prepared, and the reason.
    failed: Callable[[Change, RsnotifyError], None]
    #: Changes with content in packages, until all of a submission are prepared.
    _packaged: list[_ToFetch] = field(default_factory=list, init=False)

    def submit(self, changes: Sequence[Change]) -> None:
        uris = [change.uri for change in changes]
        if self.state.database.is_local:
            self._prepare_all(changes, self.state.find_all(uris))
        else:
            self.tasks.spawn(self._look_up(changes, uris))

    async def _look_up(self, changes: Sequence[Change], uris: Sequence[str]) -> None:
        self._prepare_all(changes, await asyncio.to_thread(self.state.find_all, uris))

    def _prepare_all(self, changes: Sequence[Change], held: Mapping[str, ResourceState]) -> None:
        for change in changes:
            self._prepare(change, held.get(change.uri))
        if packaged := self._packaged:
            self._packaged = []
            self.tasks.spawn(self._unpack(packaged))

    async def _unpack(self, packaged: Sequence[_ToFetch]) -> None:
        """Prepare changes with content in packages, which is read together if it is small."""
        contents = await self.content.members([ready.wanted for ready, _ in packaged])
        for (ready, held), content in zip(packaged, contents, strict=True):
            if content is None:
                self.tasks.spawn(self._fetch(ready, held))
            else:
                self.ready(ready.with_answer(content, held))

    @contextmanager
    def _reported_errors(self, change: Change) -> Iterator[None]:
        try:
            yield
        except FetchError as error:
            self.failed(change, error)
        except OSError as error:
            self.failed(change, StorageError(f"{change.resource.uri}: {error}"))

    def _prepare(self, change: Change, held: ResourceState | None) -> None:
        wanted = self.content.wanted(change)
        decided = self.selection.decide(change, held=held is not None and held.exists)
        if decided is not None:
            decided = _as_held(decided, held)
        ready = PreparedChange(change, decided, wanted)
        if decided is None:
            self.ready(ready)
            return
        match _novelty(decided, change, wanted, held):
            case Novelty.COVERED:
                self.ready(replace(ready, decided=None))
            case Novelty.FETCH:
                self.tasks.spawn(self._verify(ready, held))
            case Novelty.APPLY:
                self._apply(ready, held)

    def _apply(self, ready: PreparedChange, held: ResourceState | None) -> None:
        decided, entry = ready.decided, ready.wanted.entry
        if decided is None or decided.change is ChangeType.DELETED:
            self.ready(ready)
        elif held is not None and held.exists and agree(held.hash, entry.hash):
            self.ready(replace(ready, decided=None, unchanged=held))
        elif (content := self.content.inline(ready.wanted)) is not None:
            self.ready(ready.with_answer(content, held))
        elif ready.wanted.package is not None:
            self._packaged.append((ready, held))
        else:
            self.tasks.spawn(self._fetch(ready, held))

    async def _fetch(self, ready: PreparedChange, held: ResourceState | None) -> None:
        with self._reported_errors(ready.change):
            answer = await self.content.resolve(ready.wanted, held)
            self.ready(ready.with_answer(answer, held))

    async def _verify(self, ready: PreparedChange, held: ResourceState | None) -> None:
        """Fetch the resource itself, and apply its current version."""
        with self._reported_errors(ready.change):
            try:
                content = await self.content.current(ready.wanted, held)
            except NotFound:
                if ready.change.change is not ChangeType.DELETED:
                    raise
                self.ready(_missing(ready, held))
            else:
                decided = self._selected(ready.change, held)
                self.ready(replace(ready, decided=decided).with_answer(content, held))

    def _selected(self, change: Change, held: ResourceState | None) -> Change | None:
        """Return the creation or update that the current version amounts to, if it is selected."""
        exists = held is not None and held.exists
        kind = ChangeType.UPDATED if exists else ChangeType.CREATED
        resource = change.resource
        if resource.change is not None:
            resource = replace(resource, change=kind)
        found = replace(change, change=kind, resource=resource)
        decided = self.selection.decide(found, held=exists)
        return None if decided is None else _as_held(decided, held)


def _novelty(
    decided: Change, change: Change, wanted: WantedRepresentation, held: ResourceState | None
) -> Novelty:
    described = replace(decided, resource=wanted.entry)
    if decided.change is not change.change:  # it is not selected any more, so it is removed
        assert held is not None, "only a held resource is removed"
        return Novelty.COVERED if held.covers(described) else Novelty.APPLY
    if held is not None:
        return held.novelty(described)
    if change.check is CheckMethod.FETCH:
        return Novelty.FETCH
    is_no_change = change.check is CheckMethod.COMPARE and change.change is ChangeType.DELETED
    return Novelty.COVERED if is_no_change else Novelty.APPLY


def _missing(ready: PreparedChange, held: ResourceState | None) -> PreparedChange:
    """Return the deletion of a resource that the Source does not have, if the copy has it."""
    if held is None or not held.exists:
        return replace(ready, decided=None, unchanged=held)
    return ready


def _as_held(decided: Change, held: ResourceState | None) -> Change:
    """Return a change with the URI as the state spells it; if it has none, as the Source does."""
    uri = decided.resource.uri if held is None else held.uri
    return decided if uri == decided.uri else replace(decided, uri=uri)
