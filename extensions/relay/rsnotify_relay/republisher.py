"""The handler of a relay, which publishes the changes that it has applied, with their provenance.

A `via` link leads to the resource at the original Source, and has its hash, length and modification
time there (core §14.8). In a chain of relays, the link is passed on unchanged. `lastmod` is not
copied, because time attributes belong to the Source that publishes them. Other links are copied
only if they still apply.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.format.hashes import agree
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from rsnotify.format.uris import URI_CHARACTERS
from rsnotify_publisher import Publisher
from rsnotify_publisher.changes import check_resource, check_uri
from rsnotify_publisher.source_documents import RESERVED
from rsnotify_subscriber import FolderMirror, Received
from rsnotify_subscriber.storage.destination_state import DestinationState

_MARK = "@@"
_OTHER_URI = re.compile(r"@@(https?)/([^/].*)", re.DOTALL)
_WEB = re.compile(r"(https?)://([^/?#]+/.*)", re.DOTALL)
#: Relative URIs that clients alter: they drop the fragment, and resolve dot segments.
_ALTERED = re.compile(r"#|(?:^|/)(?:\.|%2[eE]){1,2}(?:[/?]|$)")
#: Names below the base URL that are reserved for documents.
_DOCUMENTS = RESERVED | {".well-known", "robots.txt"}


class RelayNaming(Struct, frozen=True):
    """A one-to-one mapping between URIs at the Source and at the relay.

    `base` and `base_url` are their base URIs, which end with a slash. A resource below the base of
    the Source has the same relative URI below the base of the relay:

        http://a.example/data/maps/1.ttl     maps/1.ttl
        http://b.example/x?y                 @@http/b.example/x?y       not below the base
        http://a.example/data/channel.xml    @@http/a.example/data/...  the name of a document
        http://a.example/data/a/../b         @@/<escaped URI>           clients resolve the dots
    """

    base: str
    base_url: str

    def relay_uri(self, uri: str) -> str | None:
        """Return the URI of a resource at the relay; None if it would be too long."""
        for relative in self._candidates(uri):
            if not _ALTERED.search(relative):
                with suppress(ConfigurationError):
                    check_uri(self.base_url + relative)
                    return self.base_url + relative
        return None

    def _candidates(self, uri: str) -> list[str]:
        found = []
        relative = uri.removeprefix(self.base)
        first = re.split("[/?]", relative, maxsplit=1)[0]
        is_below = uri.startswith(self.base) and relative
        if is_below and first not in _DOCUMENTS and not first.startswith(_MARK):
            found.append(relative)
        if web := _WEB.fullmatch(uri):
            found.append(f"{_MARK}{web[1]}/{web[2]}")
        return [*found, f"{_MARK}/{quote(uri, safe='')}"]

    def source_uri(self, uri: str) -> str:
        """Return the URI at the Source of a resource of the relay."""
        relative = uri.removeprefix(self.base_url)
        if other := _OTHER_URI.fullmatch(relative):
            return f"{other[1]}://{other[2]}"
        if relative.startswith(_MARK + "/"):
            return unquote(relative.removeprefix(_MARK + "/"))
        return self.base + relative


logger = logging.getLogger("rsnotify.relay")

#: Relations that apply only to the original at its own URI: its sets and collections, its canonical
#: URI, its other versions, and other locations of its current content.
_NOT_COPIED = frozenset(
    {
        Rel.CANONICAL,
        Rel.COLLECTION,
        Rel.CONTENTS,
        Rel.DUPLICATE,
        Rel.HUB,
        Rel.INDEX,
        Rel.MEMENTO,
        Rel.PATCH,
        Rel.RESOURCESYNC,
        Rel.SELF,
        Rel.TIMEGATE,
        Rel.TIMEMAP,
        Rel.UP,
        Rel.VIA,
    }
)


def republished_entry(change: Received, uri: str, known: Resource | None) -> Resource:
    """Return the entry that the relay publishes under `uri` for an applied change.

    `known` is the last published entry for the resource, if there is one.
    """
    if change.change is ChangeType.DELETED:
        via = _valid_links(uri, _via_of_deletion(change.resource, known))
        return Resource(uri, change=ChangeType.DELETED, links=via)
    entry = change.resource
    copied = (link for link in entry.links if link.rel not in _NOT_COPIED)
    return Resource(
        uri,
        change=ChangeType.CREATED if known is None else ChangeType.UPDATED,
        changefreq=entry.changefreq,
        hash=change.hash,
        length=change.length,
        type=change.alternate.type if change.alternate else entry.type,
        links=_valid_links(uri, (*_via(change), *copied)),
    )


def _via_links(entry: Resource | None) -> list[Link]:
    return [link for link in (entry.links if entry else ()) if link.rel == Rel.VIA]


def _via(change: Received) -> list[Link]:
    """Return the links of an applied change to the original."""
    entry = change.resource
    described = change.alternate or entry
    uri = change.alternate.href if change.alternate else entry.uri
    return _via_links(entry) or [
        Link(
            Rel.VIA,
            quote(uri, safe=URI_CHARACTERS),  # some Sources do not escape URIs
            hash=described.hash,
            length=described.length,
            modified=entry.lastmod or entry.datetime,
            type=described.type,
        )
    ]


def _via_of_deletion(entry: Resource, known: Resource | None) -> list[Link]:
    """Return the links of a deletion to the original.

    If the resource is merely missing from a Resource List, the links contain only a URI.
    """
    named = [Link(Rel.VIA, link.href) for link in _via_links(known)]
    return _via_links(entry) or named or [Link(Rel.VIA, quote(entry.uri, safe=URI_CHARACTERS))]


def _valid_links(uri: str, links: Iterable[Link]) -> tuple[Link, ...]:
    """Return the links that are valid in the relay's documents."""
    found = []
    for link in links:
        with suppress(ConfigurationError):
            check_resource(Resource(uri, links=(link,)))
            found.append(link)
    return tuple(found)


class Republisher:
    """A `Handler` that mirrors a set of resources and publishes the copy.

    Changes become durable in the mirror, then in the journal, and T advances after `apply` has
    returned. After a crash in between, the changes arrive again, so none is lost, but some may be
    published twice.

    Args:
        mirror: The mirror that holds the copy.
        publisher: The publisher of the copy, which must publish nothing else. The caller starts it.
    """

    def __init__(self, mirror: FolderMirror, publisher: Publisher) -> None:
        self._mirror = mirror
        self._publisher = publisher
        self._naming: RelayNaming | None = None

    def prepare(self, base: str, temporary: Path) -> None:
        """Prepare the mirror for a set of resources, before the first `apply`.

        Raises:
            ConfigurationError: The relay would follow itself. See also `FolderMirror.prepare`.
        """
        base_url = self._publisher.source.base_url
        if base == base_url:
            raise ConfigurationError(
                f"a relay cannot follow itself: both it and the Source are at {base}"
            )
        self._mirror.prepare(base, temporary)
        self._naming = RelayNaming(base, base_url)

    async def apply(self, changes: Sequence[Received]) -> None:
        """Apply changes durably to the mirror, then record them durably in the journal."""
        records = await asyncio.to_thread(self._apply_to_mirror, changes)
        await self._publisher.arecord(records)

    def _apply_to_mirror(self, changes: Sequence[Received]) -> list[Resource]:
        """Apply changes to the mirror, and return the entries to record."""
        self._mirror.apply(changes)
        assert self._naming is not None, "prepare is called first"
        records = []
        with self._publisher.source.open_journal() as journal:
            for change in changes:
                uri = self._naming.relay_uri(change.uri)
                if uri is None:
                    logger.warning("not publishing %s: its URI would be too long", change.uri)
                    continue
                known = journal.resource(uri)
                if known is not None and change.hash and agree(known[0].hash, change.hash):
                    continue  # a damaged file was restored to its published content
                if known is not None or change.change is not ChangeType.DELETED:
                    records.append(republished_entry(change, uri, known[0] if known else None))
        return records

    def differing(self, state: DestinationState) -> list[str]:
        """Return the URIs of resources whose stored state differs from the published entry."""
        assert self._naming is not None, "prepare is called first"
        with self._publisher.source.open_journal() as journal:
            hashes = {self._naming.source_uri(one.uri): one.hash for one in journal.resources()}
        found = []
        for uri in state.held_uris():
            held = state.find(uri)
            if held is None or not agree(hashes.pop(uri, None), held.hash):
                found.append(uri)
        return [*found, *hashes]

    # Reading the copy

    def content(self, uri: str) -> Path | None:
        """Return the file of the resource published under a URI, if there is one.

        This method blocks on disk I/O, and may be called in any thread.
        """
        found = self.find(uri)
        return None if found is None else found[1]

    def find(self, uri: str) -> tuple[Resource, Path] | None:
        """Return the last published entry for a URI and its file; None if either is missing."""
        if self._naming is None:
            return None
        with self._publisher.source.open_journal() as journal:
            known = journal.resource(uri)
        if known is None:
            return None
        path = self.held_content(self._naming.source_uri(uri))
        return None if path is None else (known[0], path)

    @property
    def place(self) -> str:
        """The folder of the mirror."""
        return self._mirror.place

    def held_content(self, uri: str) -> Path | None:
        """Return the file of a resource of the Source, if there is one."""
        return self._mirror.held_content(uri)

    def find_files(self, uris: Sequence[str]) -> Iterator[tuple[str, os.stat_result | None]]:
        """Yield the path of each resource of the Source, and the `stat` result of its file."""
        return self._mirror.find_files(uris)

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files in the mirror."""
        return self._mirror.paths()
