"""Writes the Resource List, and any other document that may need parts and an index (core §7).

The Resource List is streamed while the set may change. `at` is promised before the first resource
is read, and `completed` after the last. Each resource is listed as it was at some instant in
between, and the Change Lists contain all changes since `at` (core §10.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rsnotify.format.model import Capability, Document, Resource
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
from rsnotify_publisher.journal import FinishedDocument
from rsnotify_publisher.options import Options
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import RESOURCE_LIST, stem


def write_long_document(
    source: SourceContext,
    name: str,
    stem: str,
    part: Document,
    entries: Iterable[bytes],
    top: Callable[[list[str]], Document],
) -> list[str]:
    """Write a document, or its parts and then their index. Return the names of the parts.

    The names of the parts begin with `stem`, and `part` is a part without its entries. `top`
    returns the index of the parts with the given names, or the document without its entries if
    there are no parts. After any error, no part is left behind.
    """
    folder, remaining = source.documents_folder, iter(entries)
    with all_or_none(folder) as parts:
        pending = next(remaining, None)
        while pending is not None or not parts:
            part_name = f"{stem}-{len(parts) + 1:05}{source.documents.suffix}"
            with writing(folder / part_name) as write:
                parts.append(part_name)
                pending = _fill(write, source.options, part, pending, remaining)
        if len(parts) > 1:
            write_atomically(folder / name, [source.documents.write(top(parts))])
            return parts
        _make_single(folder / parts[0], part, folder / name, top([]))
        remove(folder, parts)
    return []


def _fill(
    write: Callable[[bytes], object],
    options: Options,
    head: Document,
    pending: bytes | None,
    entries: Iterator[bytes],
) -> bytes | None:
    """Write one part. Return the first entry that did not fit, or None."""
    begin, end = opening(head), closing(head)
    write(begin)
    count, size = 0, len(begin) + len(end)
    while pending is not None:
        size += len(pending)
        if count == options.max_entries or (count and size > options.max_bytes):
            break
        write(pending)
        count += 1
        pending = next(entries, None)
    write(end)
    return pending


def _make_single(part: Path, old: Document, target: Path, head: Document) -> None:
    """Copy the only part to the document with another head."""
    skipped = len(opening(old))
    with atomic(target) as file:
        file.write(opening(head))
        for piece in reading(part):
            file.write(piece[skipped:])
            skipped = max(0, skipped - len(piece))


def write_resource_list(
    source: SourceContext, at: int, resources: Iterable[Resource], completed: Callable[[], int]
) -> FinishedDocument:
    """Write the Resource List from a streamed set, which includes all changes through `at` (µs).

    `completed` is called at the end. It returns a datetime that is not earlier than any change in
    the set.
    """
    documents, folder = source.documents, source.documents_folder
    own = stem(Capability.RESOURCE_LIST, at)
    has_archive = documents.has_archive(Capability.RESOURCE_LIST)
    name = f"{own}.xml" if has_archive else RESOURCE_LIST
    count, end = 0, at

    def entries() -> Iterator[bytes]:
        nonlocal count, end
        for resource in resources:
            count += 1
            yield documents.entry(resource)
        end = completed()

    parts = write_long_document(
        source,
        name,
        own,
        documents.resource_list_part(at, name),
        entries(),
        lambda parts: documents.resource_list(at, end, parts),
    )
    if has_archive:
        parts = [name, *parts]
        also_as(folder / name, folder / RESOURCE_LIST)
    size = sum((folder / part).stat().st_size for part in parts)
    return FinishedDocument(Capability.RESOURCE_LIST, at, end, count, size, tuple(parts))
