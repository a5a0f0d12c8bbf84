"""Writes long documents: a single document if all entries fit, or an index and parts (core §7).

The Resource List is streamed while the set may change. `at` is promised before the first resource
is read, and `completed` after the last. Each resource is listed as it was at some instant in
between, and the Change Lists have all changes since `at` (core §10.1).

`NotificationBuilder` builds the notifications of documents that were written (Framework
Notification §3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.writer import closing, opening
from rsnotify_publisher.files import (
    all_or_none,
    also_as,
    atomic,
    reading,
    remove,
    write_atomically,
    writing,
)
from rsnotify_publisher.journal import FinishedDocument, Recorder
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import (
    ARCHIVES,
    CHANGE_LIST,
    RESOURCE_LIST,
    SourceDocuments,
    stem,
)

Write = Callable[[bytes], object]


class Pager:
    """Writes long documents of a Source as a stream."""

    def __init__(self, source: SourceContext) -> None:
        self._documents = source.documents
        self._folder = source.documents_folder
        self._max_entries = source.options.max_entries
        self._max_bytes = source.options.max_bytes
        self._suffix = ".xml.gz" if source.options.gzip else ".xml"

    def write(
        self,
        name: str,
        stem: str,
        part: Document,
        entries: Iterable[bytes],
        top: Callable[[list[str]], Document],
    ) -> list[str]:
        """Write a document, or its parts and then their index, and return the names of the parts.

        After any error, no part is left behind.

        Args:
            name: The name of the document, relative to the base URL.
            stem: The beginning of the names of its parts.
            part: Each part, without its entries.
            entries: All entries, in order.
            top: Returns the index for the given names of parts, or the document without its entries
                if there are no parts.
        """
        with all_or_none(self._folder) as parts:
            self._write_parts(stem, part, iter(entries), parts)
            if len(parts) > 1:
                write_atomically(self._folder / name, [self._documents.write(top(parts))])
                return parts
            self._make_single(self._folder / parts[0], part, self._folder / name, top([]))
            remove(self._folder, parts)
        return []

    def _write_parts(
        self, stem: str, head: Document, entries: Iterator[bytes], parts: list[str]
    ) -> None:
        pending = next(entries, None)
        while pending is not None or not parts:
            name = f"{stem}-{len(parts) + 1:05}{self._suffix}"
            with writing(self._folder / name) as write:
                parts.append(name)
                pending = self._fill(write, head, pending, entries)

    def _fill(
        self, write: Write, head: Document, pending: bytes | None, entries: Iterator[bytes]
    ) -> bytes | None:
        """Write one part, and return the entry that did not fit, if any."""
        begin, end = opening(head), closing(head)
        write(begin)
        count, size = 0, len(begin) + len(end)
        while pending is not None:
            size += len(pending)
            if count == self._max_entries or (count and size > self._max_bytes):
                break
            write(pending)
            count += 1
            pending = next(entries, None)
        write(end)
        return pending

    def _make_single(self, part: Path, old: Document, target: Path, head: Document) -> None:
        """Copy the only part to the document, with the head replaced."""
        skipped = len(opening(old))
        with atomic(target) as file:
            file.write(opening(head))
            for piece in reading(part):
                file.write(piece[skipped:])
                skipped = max(0, skipped - len(piece))


def write_resource_list(
    source: SourceContext, at: int, resources: Iterable[Resource], completed: Callable[[], int]
) -> FinishedDocument:
    """Write the Resource List of the streamed set, which includes all changes through `at` (µs).

    `completed` is called at the end. It returns a datetime that is not earlier than any change in
    the set.
    """
    documents, folder = source.documents, source.documents_folder
    own = stem(Capability.RESOURCE_LIST, at)
    keeps = documents.keeps(Capability.RESOURCE_LIST)
    name = f"{own}.xml" if keeps else RESOURCE_LIST
    count, end = 0, at

    def entries() -> Iterator[bytes]:
        nonlocal count, end
        for resource in resources:
            count += 1
            yield documents.entry(resource)
        end = completed()

    parts = Pager(source).write(
        name,
        own,
        documents.resource_list_part(at, name),
        entries(),
        lambda parts: documents.resource_list(at, end, parts),
    )
    if keeps:
        parts = [name, *parts]
        also_as(folder / name, folder / RESOURCE_LIST)
    size = sum((folder / part).stat().st_size for part in parts)
    return FinishedDocument(Capability.RESOURCE_LIST, at, end, count, size, tuple(parts))


Notifications = tuple[Resource, ...]


class NotificationBuilder(Struct, frozen=True):
    """Builds notifications, or none if there is no channel for them."""

    documents: SourceDocuments

    def live(self, document: FinishedDocument, *, first: bool) -> Notifications:
        """Return the notification of a new Resource List or Resource Dump."""
        change = ChangeType.CREATED if first else ChangeType.UPDATED
        begin, end = from_microseconds(document.begin), from_microseconds(document.end)
        uri = self.documents.uri(f"{document.kind}.xml")
        return self._if_wanted(
            Resource(uri, capability=document.kind, change=change, at=begin, completed=end)
        )

    def closed(self, document: FinishedDocument) -> Notifications:
        """Return the notifications of a closed Change List and of the new start of the open one."""
        part = replace(
            self.documents.archived(document),
            capability=Capability.CHANGE_LIST,
            change=ChangeType.CREATED,
        )
        return self._if_wanted(part) + self.reopened(document.end)

    def reopened(self, begin: int) -> Notifications:
        """Return the notification that the Change List now begins at `begin` (µs)."""
        return self._if_wanted(
            Resource(
                self.documents.uri(CHANGE_LIST),
                capability=Capability.CHANGE_LIST,
                change=ChangeType.UPDATED,
                from_=from_microseconds(begin),
            )
        )

    def archive(self, kind: str) -> Notifications:
        """Return the notification that an archive has changed."""
        uri = self.documents.uri(ARCHIVES[kind])
        return self._if_wanted(
            Resource(uri, capability=f"{kind}-archive", change=ChangeType.UPDATED)
        )

    def _if_wanted(self, document: Resource) -> Notifications:
        return () if self.documents.framework is None else (document,)


def notify_version(
    documents: SourceDocuments, recorder: Recorder, document: Resource, version: str
) -> None:
    """Insert a notice of a document, unless its last notice had the same version.

    This is for documents that are often rewritten unchanged. `document` has no `change`, and
    `version` differs whenever the document does.
    """
    if documents.framework is not None:
        recorder.run(lambda journal: journal.add_version_notice(document, version))
