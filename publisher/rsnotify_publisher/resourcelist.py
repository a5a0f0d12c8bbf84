"""The Resource List: one document, or an index and parts, streamed from a snapshot."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from rsnotify.model import Document, Resource
from rsnotify.writing import closing, entry, opening, write_document
from rsnotify_publisher.documents import PARTS, RESOURCE_LIST, Documents, compact
from rsnotify_publisher.files import atomic, write_atomically


class ResourceListWriter:
    """Writes the Resource List of one Source.

    Args:
        documents: Says how the documents begin.
        folder: Where they are written.
        max_entries: Resources in one document.
        max_bytes: Bytes in one document.
    """

    def __init__(
        self, documents: Documents, folder: Path, *, max_entries: int, max_bytes: int
    ) -> None:
        self._documents = documents
        self._folder = folder
        self._max_entries = max_entries
        self._max_bytes = max_bytes

    def write(self, at: int, resources: Iterable[Resource]) -> None:
        """Write it, and remove the parts of the one before the last.

        Those of the last stay, for readers that have its index in hand.

        Args:
            at: The instant (µs) of the snapshot.
            resources: What it holds, streamed.

        Raises:
            OSError: The folder cannot be written.
        """
        target = self._folder / RESOURCE_LIST
        stale = self._parts() - self._parts_of(target)
        names = self._write_parts(at, resources)
        if len(names) == 1:
            part = self._folder / names[0]
            self._make_single(at, part, target)
            part.unlink()
        else:
            index = self._documents.resource_list_index(at, names)
            write_atomically(target, [write_document(index)])
        for part in stale - {self._folder / name for name in names}:
            part.unlink(missing_ok=True)

    def _parts(self) -> set[Path]:
        return set((self._folder / PARTS).glob("resourcelist-*.xml"))

    def _parts_of(self, target: Path) -> set[Path]:
        """Return those that share the instant of the newest, which the index refers to."""
        newest = max(self._parts(), default=None)
        if newest is None:
            return set()
        stem = newest.name.rpartition("-")[0]
        return set(newest.parent.glob(f"{stem}-*.xml"))

    def _write_parts(self, at: int, resources: Iterable[Resource]) -> list[str]:
        head = self._documents.resource_list(at, is_part=True)
        entries = map(entry, resources)
        names: list[str] = []
        pending = next(entries, None)
        while pending is not None or not names:
            names.append(f"{PARTS}resourcelist-{compact(at)}-{len(names) + 1:05}.xml")
            with atomic(self._folder / names[-1]) as file:
                pending = self._fill(file, head, pending, entries)
        return names

    def _fill(
        self, file: BinaryIO, head: Document, pending: bytes | None, entries: Iterator[bytes]
    ) -> bytes | None:
        """Write one part, and return the entry that no longer fitted."""
        end = closing(head)
        count, size = 0, file.write(opening(head)) + len(end)
        while pending is not None:
            size += len(pending)
            if count == self._max_entries or (count and size > self._max_bytes):
                break
            file.write(pending)
            count += 1
            pending = next(entries, None)
        file.write(end)
        return pending

    def _make_single(self, at: int, part: Path, target: Path) -> None:
        """Write the only part anew as the Resource List, without the link to an index."""
        skipped = len(opening(self._documents.resource_list(at, is_part=True)))
        with open(part, "rb") as source, atomic(target) as file:
            file.write(opening(self._documents.resource_list(at)))
            source.seek(skipped)
            shutil.copyfileobj(source, file)
