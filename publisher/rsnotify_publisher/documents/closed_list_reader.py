"""Reads closed Change Lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from rsnotify.format.model import Resource
from rsnotify.format.reader import SitemapReader
from rsnotify.format.vocabulary import Capability, ChangeType
from rsnotify_publisher.files import reading
from rsnotify_publisher.journal import FinishedDocument, Journal


def changes_in(folder: Path, closed: FinishedDocument) -> Iterator[Resource]:
    """Stream the changes of a closed Change List, each with its datetime."""
    reader = SitemapReader()
    for piece in reading(folder / closed.files[0]):
        for change in reader.feed(piece):
            # In a 1.0 list the datetime of the change is in lastmod alone.
            yield replace(change, datetime=change.changed_at)


def still_listed(uris: Sequence[str], since: int, journal: Journal, folder: Path) -> Iterable[str]:
    """Return which of some resources that were in the set after an instant (µs) are not deleted.

    If the Source itself returns the set, only changes show that a resource is deleted.
    """
    if not uris:
        return ()
    if journal.state().tracked:
        return [uri for uri in uris if journal.resource(uri) is not None]
    deleted = _deleted(since, journal, folder)
    return [uri for uri in uris if uri not in deleted]


def _deleted(since: int, journal: Journal, folder: Path) -> set[str]:
    """Return the resources that were deleted after an instant and not created again."""
    with journal.snapshot() as state:
        closed = journal.finished(Capability.CHANGE_LIST)
        opened = journal.changes(max(since, state.closed))
    lists = [changes_in(folder, document) for document in closed if document.end > since]
    deleted: set[str] = set()
    for change in chain(*lists, opened):
        if change.change is ChangeType.DELETED:
            deleted.add(change.uri)
        else:
            deleted.discard(change.uri)
    return deleted
