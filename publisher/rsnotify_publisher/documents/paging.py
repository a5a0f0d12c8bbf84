"""Writes long documents: a single one if all entries fit, or an index and parts (core §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rsnotify.format.model import Document
from rsnotify.format.writer import closing, opening
from rsnotify_publisher.files import (
    all_or_none,
    atomic,
    reading,
    remove,
    write_atomically,
    writing,
)
from rsnotify_publisher.source_context import SourceContext

Write = Callable[[bytes], object]


class Pager:
    """Writes long documents of a Source, streamed."""

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
        """Write a document, or its parts and then the index of them; return the names of the parts.

        After any error, no part is left behind.

        Args:
            name: Of the document, below the base URL.
            stem: Beginning of the names of its parts.
            part: Each part without its entries.
            entries: All entries, in order.
            top: Returns the document without its entries; or the index, given the names of parts.
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
        """Write one part; return the entry that did not fit."""
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
        """Copy the only part as the document, with another beginning."""
        skipped = len(opening(old))
        with atomic(target) as file:
            file.write(opening(head))
            for piece in reading(part):
                file.write(piece[skipped:])
                skipped = max(0, skipped - len(piece))
