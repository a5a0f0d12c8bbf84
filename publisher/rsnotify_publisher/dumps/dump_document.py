"""Writes the documents that list packages: a dump, or its index and parts (core §11.1, §13.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import MAX_BYTES, Rel
from rsnotify.format.writer import entry, write_document
from rsnotify_publisher.files import write_atomically

_PARTS = "resourcesync"
_COMPACT = "%Y%m%dT%H%M%S%fZ"


class DumpDocument(Struct, frozen=True):
    """Writes Resource Dumps and Change Dumps into the folder with the URI `base_url`."""

    folder: Path
    base_url: str
    max_entries: int
    max_bytes: int = MAX_BYTES

    def write(self, name: str, head: Document, packages: Iterable[Resource]) -> list[str]:
        """Write the document, or its parts and then the index; return the names of the parts.

        The name is relative to the base URL; `head` is the document without its entries.
        """
        groups = list(self._groups(packages))
        if len(groups) == 1:
            self._write(name, replace(head, resources=groups[0]))
            return []
        parts = list(self._parts(name, head, groups))
        for part, document in parts:
            self._write(part, document)
        listed = tuple(self._listed(part, document) for part, document in parts)
        self._write(name, replace(head, index=True, resources=listed))
        return [part for part, _ in parts]

    def _groups(self, packages: Iterable[Resource]) -> Iterator[tuple[Resource, ...]]:
        """Yield groups of entries that fit into a document each; at least one group."""
        group: list[Resource] = []
        size = 0
        for package in packages:
            length = len(entry(package))
            if group and (len(group) == self.max_entries or size + length > self.max_bytes):
                yield tuple(group)
                group, size = [], 0
            group.append(package)
            size += length
        yield tuple(group)

    def _parts(
        self, name: str, head: Document, groups: list[tuple[Resource, ...]]
    ) -> Iterator[tuple[str, Document]]:
        """Yield the parts. If the dump is open, its last part is open, too."""
        links = (*head.links, Link(Rel.INDEX, self.base_url + name))
        for number, group in enumerate(groups, 1):
            part = replace(head, resources=group, links=links, completed=group[-1].completed)
            if head.from_ is not None:
                until = head.until if number == len(groups) else group[-1].until
                part = replace(part, from_=group[0].from_, until=until)
            yield _part_name(name, part, number), part

    def _listed(self, name: str, part: Document) -> Resource:
        return Resource(
            self.base_url + name,
            at=part.at,
            completed=part.completed,
            from_=part.from_,
            until=part.until,
        )

    def _write(self, name: str, document: Document) -> None:
        write_atomically(self.folder / name, [write_document(document)])


def _part_name(name: str, part: Document, number: int) -> str:
    """Return a name that no part of a former index has, since clients may still hold that index."""
    path = PurePosixPath(name)
    folder = path.parent if path.parent.parts else PurePosixPath(_PARTS)
    begin, end = part.at or part.from_, part.resources[-1].until
    assert begin is not None
    stem = f"{path.stem}-part-{begin:{_COMPACT}}"
    if end is not None:  # a Change Dump that still grows has other bytes for each end
        stem += f"-{end:{_COMPACT}}" if part.until else f"-{end:{_COMPACT}}-open"
    return str(folder / f"{stem}-{number:05}.xml")
