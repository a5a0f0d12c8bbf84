"""A change on its way into the copy, with all that is needed to apply and to record it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.vocabulary import ChangeType
from rsnotify.selection.representations import WantedRepresentation
from rsnotify_subscriber.fetching.contents import Content, Unchanged
from rsnotify_subscriber.fetching.digests import agree
from rsnotify_subscriber.handlers import Received
from rsnotify_subscriber.storage.resource_state import ResourceState


class PreparedChange(Struct, frozen=True):
    """A change whose content is at hand, or about which nothing has to be done.

    Args:
        change: The change as it was handed out.
        decided: What is done about it; None if the state covers it, or it is not selected.
        wanted: What it takes to do it.
        content: The content, if it takes one.
        unchanged: How the resource is held, if that is still what it should be; only the record
            moves.
        doubt: Why it may not be what was announced; empty if nothing contradicts.
    """

    change: Change
    decided: Change | None
    wanted: WantedRepresentation
    content: Content | None = None
    unchanged: ResourceState | None = None
    doubt: str = ""

    def answered(self, answer: Content | Unchanged, held: ResourceState | None) -> PreparedChange:
        """Return it with what came of a request.

        Args:
            answer: The answer.
            held: How the resource is held.
        """
        if isinstance(answer, Unchanged):
            assert held is not None, "the condition was that of what is held"
            kept = replace(held, fetched_at=answer.fetched_at)
            return replace(self, decided=None, unchanged=kept, doubt=answer.doubt)
        ready = replace(self, content=answer, doubt=answer.doubt)
        if held is None or not held.is_there or agree(held.hash, answer.hashes) is not True:
            return ready
        kept = held
        if answer.fetched_at is not None:
            kept = replace(held, validator=answer.validator, fetched_at=answer.fetched_at)
        return replace(ready, decided=None, unchanged=kept)

    @property
    def held_uri(self) -> str:
        """The URI of the resource, as it is spelled in the state."""
        return (self.unchanged or self.decided or self.change).uri

    def received(self) -> Received:
        """Return what the handler receives."""
        change, content = self.decided, self.content
        assert change is not None
        return Received(
            change.change,
            change.uri,
            change.at,
            change.resource,
            content.path if content else None,
            self.wanted.alternate if content else None,
            content.hashes if content else None,
            content.length if content else None,
        )

    def held(self) -> ResourceState | None:
        """Return how the resource is held from now on, if that is new."""
        change, content = self.decided, self.content
        at = to_microseconds(self.change.at)
        entry = self.wanted.entry
        # After a doubt, the next list that is compared must not find it as it is listed.
        lastmod = to_microseconds(entry.lastmod) if entry.lastmod and not self.doubt else None
        if self.unchanged is not None:
            kind = self.change.change.value
            if self.change.change is ChangeType.DELETED:
                kind, lastmod = self.unchanged.change, None  # what was to be deleted is still there
            return replace(self.unchanged, changed_at=at, change=kind, lastmod=lastmod)
        if change is None:
            return None
        kind = change.change.value
        if content is None:
            return ResourceState(change.uri, at, kind)
        return ResourceState(
            change.uri,
            at,
            kind,
            content.hashes,
            content.length,
            lastmod,
            content.validator,
            content.fetched_at,
        )


def write(batch: Iterable[PreparedChange]) -> None:
    """Write the contents to their files, for the handler."""
    for ready in batch:
        if ready.content is not None:
            ready.content.write()
