"""A change on its way into the copy, with all data to apply and to record it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from time import time_ns

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.vocabulary import ChangeType
from rsnotify.selection.representations import WantedRepresentation
from rsnotify_subscriber.fetching.contents import Content, Unchanged
from rsnotify_subscriber.fetching.digests import agree
from rsnotify_subscriber.handlers import Received
from rsnotify_subscriber.storage.content_log import UnflushedContent
from rsnotify_subscriber.storage.resource_state import ResourceState

#: The most bytes of content that are cheaper to keep in the state than to flush at once.
_SMALL = 16_384


class PreparedChange(Struct, frozen=True):
    """A change whose content is available, or that needs no effect.

    Args:
        change: The change as the follower gave it.
        decided: The change to apply; None if the state covers it, or it is not selected.
        wanted: The representation to fetch.
        content: The content, if the change needs one.
        unchanged: The state of the resource, if its content stays; only the record is updated.
        doubt: Why the content may differ from what was announced; empty if nothing contradicts.
    """

    change: Change
    decided: Change | None
    wanted: WantedRepresentation
    content: Content | None = None
    unchanged: ResourceState | None = None
    doubt: str = ""

    def with_answer(
        self, answer: Content | Unchanged, held: ResourceState | None
    ) -> PreparedChange:
        """Return it with the answer to a request; `held` is the state of the resource."""
        if isinstance(answer, Unchanged):
            assert held is not None, "the request had the validator of the held version"
            kept = replace(held, fetched_at=answer.fetched_at)
            return replace(self, decided=None, unchanged=kept, doubt=answer.doubt)
        ready = replace(self, content=answer, doubt=answer.doubt)
        if held is None or not held.exists or agree(held.hash, answer.hashes) is not True:
            return ready
        kept = held
        if answer.fetched_at is not None:
            kept = replace(held, validator=answer.validator, fetched_at=answer.fetched_at)
        return replace(ready, decided=None, unchanged=kept)

    @property
    def is_dated_only(self) -> bool:
        """Whether content was fetched for an entry of a Resource List with a date and no hash."""
        entry, has_content = self.wanted.entry, self.content is not None
        return has_content and entry.change is None and not entry.hash and bool(entry.lastmod)

    @property
    def stored_uri(self) -> str:
        """The URI of the resource as it is spelled in the state."""
        return (self.unchanged or self.decided or self.change).uri

    def received(self) -> Received:
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

    def new_state(self) -> ResourceState | None:
        change, content = self.decided, self.content
        at = to_microseconds(self.change.at)
        entry = self.wanted.entry
        # After a doubt, the next comparison with a list must find a difference.
        lastmod = to_microseconds(entry.lastmod) if entry.lastmod and not self.doubt else None
        if self.unchanged is not None:
            kept, kind = self.unchanged, self.change.change.value
            if self.change.change is ChangeType.DELETED:
                kind, lastmod = kept.change, None  # the resource was not deleted
            else:
                kept = kept.respelled(self.change.resource.uri)
            return replace(kept, changed_at=at, change=kind, lastmod=lastmod, mtime=None)
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
            mtime=0,  # until the file is written
        ).respelled(change.resource.uri)


def unflushed_contents(batch: Iterable[PreparedChange]) -> list[UnflushedContent] | None:
    """Return what the state keeps until a handler has flushed it; None if that is too large."""
    kept: list[UnflushedContent] = []
    for ready in batch:
        assert ready.decided is not None, "only a decided change is applied"
        data = ready.content.data if ready.content is not None else None
        if ready.content is not None and (data is None or len(data) > _SMALL):
            return None
        kept.append((ready.decided.uri, data))
    return kept


def write(batch: Iterable[PreparedChange]) -> None:
    for ready in batch:
        if ready.content is not None:
            ready.content.write()


def modification_times(batch: Iterable[PreparedChange]) -> dict[str, int]:
    """Set and return the times (ns), by URI, of the files that a handler is about to rename.

    Left to the system, all files that are written within some milliseconds would have one time,
    and of two with the same size, none would show that it took the place of the other.
    """
    return {
        ready.decided.uri: _stamped(ready.content.path)
        for ready in batch
        if ready.decided is not None and ready.content is not None
    }


def _stamped(path: Path) -> int:
    now = time_ns()
    os.utime(path, ns=(now, now))
    return os.stat(path).st_mtime_ns  # the file system may keep less of it
