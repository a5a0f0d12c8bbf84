"""A Source whose contents are its URIs, and helpers that read its documents."""

from __future__ import annotations

import gzip
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from rsnotify.format.datetimes import Instant, from_microseconds
from rsnotify.format.model import Document, Rel, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Options, Publisher
from tests.publisher.helpers import BASE, PATIENCE, QUICK, Clock, eventually
from tests.publisher.packed import sha256

QUIET = replace(QUICK, resource_list_every=900, grace=0)


class Published:
    """A Source whose contents are its URIs, and what it has published."""

    def __init__(
        self, folder: Path, options: Options = QUIET, *, tracked: bool = True, **changed: Any
    ) -> None:
        self.clock = Clock()
        self.gone: set[str] = set()
        self.publisher = Publisher(
            folder,
            BASE,
            options=replace(options, **changed),
            clock=self.clock,
            content=self._content,
            resources=None if tracked else list,
        )
        self.folder = self.publisher.source.documents_folder

    def __enter__(self) -> Self:
        self.publisher.start()
        assert self.publisher.wait_published(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self.publisher.close()

    def _content(self, uri: str) -> bytes | None:
        return None if uri in self.gone else uri.encode()

    def update(self, *names: object) -> None:
        for name in names:
            uri = f"{BASE}{name}"
            self.publisher.updated(uri, hash=sha256(uri.encode()), type="text/plain")

    def read(self, name: str) -> Document:
        data = (self.folder / name.removeprefix(BASE)).read_bytes()
        return read_document(gzip.decompress(data) if name.endswith(".gz") else data, source=name)

    def has(self, name: str) -> bool:
        return (self.folder / name.removeprefix(BASE)).exists()

    def parts(self, name: str) -> list[Document]:
        top = self.read(name)
        return [self.read(entry.uri) for entry in top.resources] if top.index else [top]

    def wait_written(self) -> None:
        """Wait until all recorded changes are written, and closed if necessary.

        Other conditions may already be true before that.
        """
        last = self._last_change()
        eventually(lambda: self._written() == last)

    def wait_listed(self) -> None:
        """Wait until the Resource List contains all recorded changes, and so stays unchanged."""
        last = self._last_change()
        eventually(lambda: (self.read("resourcelist.xml").at or last) >= last)

    def _last_change(self) -> Instant:
        with self.publisher.source.open_journal() as journal:
            return from_microseconds(journal.state().last_change)

    def _written(self) -> Instant | None:
        opened = self.read("changelist.xml")
        if opened.index:
            opened = self.read(opened.resources[-1].uri)
        return opened.resources[-1].changed_at if opened.resources else opened.from_

    def keeps(self, uris: list[str], kind: str = "changelist") -> bool:
        """Return whether these include a document of a kind, live or in the archive."""
        with self.publisher.source.open_journal() as journal:
            kept = {BASE + volume.files[0] for volume in journal.finished(kind)}
        return not kept.isdisjoint(uris)

    def offered(self) -> dict[str | None, str]:
        return {
            entry.capability: entry.uri.removeprefix(BASE)
            for entry in self.read("capabilitylist.xml").resources
        }


def names(documents: list[Document]) -> list[str]:
    return [entry.uri.removeprefix(BASE) for part in documents for entry in part.resources]


def join(documents: list[Document]) -> None:
    """Check that Change Lists or Dumps join without a gap."""
    for before, after in pairwise(documents):
        assert before.until == after.from_


def read(publisher: Publisher, name: str) -> Document:
    path = publisher.source.documents_folder / name.removeprefix(BASE)
    return read_document(path.read_bytes(), source=name)


def recorded(publisher: Publisher) -> list[Resource]:
    """Return the changes that the journal contains."""
    with publisher.source.open_journal() as journal:
        return journal.changes(0)


def publish(
    folder: Path, *names: str, options: Options = QUICK, hubs: tuple[str, ...] = ()
) -> Publisher:
    """Record updates one by one, then close, which writes the remaining documents."""
    publisher = Publisher(folder, BASE, options=replace(options, grace=0), hubs=hubs)
    with publisher:
        assert publisher.wait_published(PATIENCE)
        for name in names:
            publisher.updated(BASE + name)
    return publisher


def uris(document: Document) -> list[str]:
    return [entry.uri for entry in document.resources]


def numbered(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def members(publisher: Publisher, package: Resource) -> list[tuple[Resource, bytes]]:
    """Return the entries of a package's manifest, each with its bitstream."""
    path = publisher.source.documents_folder / package.uri.removeprefix(BASE)
    with zipfile.ZipFile(path) as archive:
        manifest = read_document(archive.read("manifest.xml"))
        (contents,) = [link.href for link in package.links if link.rel == Rel.CONTENTS]
        assert read(publisher, contents).resources == manifest.resources
        return [
            (entry, archive.read(entry.path.lstrip("/")) if entry.path else b"")
            for entry in manifest.resources
        ]
