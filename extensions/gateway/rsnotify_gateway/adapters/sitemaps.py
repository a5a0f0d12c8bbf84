"""Sitemaps: a single file, an index and its parts, or the Sitemaps that a robots.txt names.

Files may be compressed. A ResourceSync Resource List is also a Sitemap, and its hashes and lengths
are used.

- A change is detected if an entry's `lastmod`, hash or length changes. An entry with none of them
  shows only creation and deletion. A `lastmod` without a time shows one change a day. An entry that
  is read within the second of its `lastmod` could change again undetected, so it counts as changed
  once more at a later check.
- A deletion is detected as absence from the whole Sitemap. Entries could move between files while
  these are read one after the other. Before an entry counts as deleted, the adapter therefore
  requests all files again until none has changed in between. A Sitemap without entries is invalid,
  and fails the check.
- Each file is requested conditionally. An unchanged file is not reread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import time
from hashlib import blake2b
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from rsnotify.errors import DocumentError, Unavailable, WrongDocument
from rsnotify.format.datetimes import format_datetime, to_microseconds
from rsnotify.format.model import Capability, Resource
from rsnotify.format.reader import SitemapReader
from rsnotify_gateway.adapter import (
    KnownEntries,
    MissingEntry,
    OriginBatch,
    OriginTerms,
    OriginType,
    SeenEntry,
    origin_uri,
)
from rsnotify_gateway.change_detection import required_uri
from rsnotify_gateway.client import OriginClient
from rsnotify_publisher.journal import system_clock
from rsnotify_subscriber.fetching.credentials import without_login

#: Maximum number of files in one Sitemap: an index, its 50,000 parts, and some more.
_MAX_FILES = 60_000
#: Maximum number of times all files are requested if they change during reading.
_MAX_ROUNDS = 3
#: Marks the state of an entry that could change again within the second of its `lastmod`.
_FRESH = " fresh"
#: The age in µs up to which an entry is fresh: a second, and another one because clocks differ.
_FRESH_AGE = 2_000_000


class SitemapFile(Struct, omit_defaults=True):
    """The stored state of one file of a Sitemap.

    Args:
        digest: A hash of the file's content.
        condition: The header field for a conditional request.
        parts: The listed files, if this is an index.
        entries: The number of entries, if this is not an index.
        undated: The number of entries without `lastmod`, hash and length.
        daily: The number of entries whose `lastmod` has no time.
        is_fresh: Whether an entry could change again without a new `lastmod`.
    """

    digest: str
    condition: tuple[str, str] | None = None
    parts: tuple[str, ...] | None = None
    entries: int = 0
    undated: int = 0
    daily: int = 0
    is_fresh: bool = False


#: Decodes a cursor: the files read, by URI.
_decode = msgspec.json.Decoder(dict[str, SitemapFile]).decode


class SitemapAdapter:
    """Reads a Sitemap, an index, or a site's Sitemaps: those in robots.txt, or else sitemap.xml."""

    def __init__(self, url: str, client: OriginClient) -> None:
        self._url = url
        self._client = client
        self._files: dict[str, SitemapFile] = {}

    def terms(self) -> OriginTerms:
        files = self._files.values()
        total = sum(file.entries for file in files)
        limits = []
        if undated := sum(file.undated for file in files):
            limits.append(
                f"Entries without a lastmod: {undated:,} of {total:,}. Changes of their content "
                "are not detected."
            )
        if daily := sum(file.daily for file in files):
            limits.append(
                f"Entries whose lastmod has no time: {daily:,} of {total:,}. Only their first "
                "change of a day is detected."
            )
        return OriginTerms(
            "Sitemap",
            "day" if daily else "second",
            "Deletions are detected as absence from the whole Sitemap.",
            tuple(limits),
        )

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Check all files, and yield the entries of changed files, then the missing entries."""
        check = _SitemapCheck(self._url, self._client, {} if cursor is None else _decode(cursor))
        roots = await self._roots()
        for number in range(_MAX_ROUNDS):
            async for batch in check.walk(roots):
                yield batch
            missing = await check.missing(known)
            if not missing or len(check.walked) == 1 or (number and not check.has_changed):
                break
        else:
            raise Unavailable(
                self._url, "it keeps changing during reading, so deletions cannot be detected"
            )
        self._files = check.walked
        yield OriginBatch(missing, msgspec.json.encode(check.walked).decode())

    async def _roots(self) -> tuple[str, ...]:
        if urlsplit(self._url).path in ("", "/", "/robots.txt"):
            named = await self._client.sitemaps(self._url)
            found = tuple(origin_uri(self._url, uri) for uri in named)
            return found or (origin_uri(self._url, "/sitemap.xml"),)
        return (self._url,)


class _SitemapCheck:
    """One check of a Sitemap, which may walk through its files several times.

    Attributes:
        walked: The files found by the last walk.
        has_changed: Whether one of them has changed since the previous walk or check.
    """

    def __init__(self, url: str, client: OriginClient, files: dict[str, SitemapFile]) -> None:
        self._url = url
        self._client = client
        self.walked = files
        self.has_changed = False
        self._began = system_clock()
        #: The URIs in each file read in this check, by place.
        self._seen: dict[str, set[str]] = {}
        self._before = set(files)

    async def walk(self, roots: tuple[str, ...]) -> AsyncIterator[OriginBatch]:
        """Request all files, and yield the entries of each changed file."""
        before, self.walked = self.walked, {}
        self.has_changed = False
        waiting = list(reversed(roots))
        while waiting:
            uri = waiting.pop()
            if uri in self.walked:
                continue
            if len(self.walked) == _MAX_FILES:
                raise Unavailable(self._url, f"it consists of more than {_MAX_FILES:,} files")
            known = before.get(uri)
            file, document = await self._read(uri, known)
            self.walked[uri] = file
            waiting += [part for part in reversed(file.parts or ()) if part not in self.walked]
            if document is not None:
                self.has_changed |= known is None or known.digest != file.digest
                if file.parts is None:
                    yield self._batch(uri, document)

    async def _read(
        self, uri: str, known: SitemapFile | None
    ) -> tuple[SitemapFile, list[Resource] | None]:
        """Request a file, and return its state. If it has changed, also return its entries."""
        if known is not None and known.is_fresh:
            known = None
        reader, digest = SitemapReader(), blake2b(digest_size=16)
        entries: list[Resource] = []

        def feed(piece: bytes) -> None:
            digest.update(piece)
            entries.extend(reader.feed(piece))

        condition = None if known is None else known.condition
        try:
            answer = await self._client.get(uri, feed, condition)
            if answer is None:
                assert known is not None
                return known, None
            head = reader.close()
            if head.capability not in (None, Capability.RESOURCE_LIST):
                raise WrongDocument(f"it is a {head.capability} document, not a Sitemap")
        except DocumentError as error:
            raise error.at(uri) from None
        if known is not None and known.digest == digest.hexdigest():
            return msgspec.structs.replace(known, condition=answer.condition), None
        file = SitemapFile(digest.hexdigest(), answer.condition)
        if head.index:
            file.parts = tuple(origin_uri(uri, entry.uri) for entry in entries)
        else:
            file.entries = len(entries)
            file.undated = sum(not _state(entry) for entry in entries)
            file.daily = sum(_is_daily(entry) for entry in entries)
            file.is_fresh = any(_is_fresh(entry, self._began) for entry in entries)
        return file, entries

    def _batch(self, uri: str, entries: list[Resource]) -> OriginBatch:
        place = _place(uri)
        found: dict[str, SeenEntry] = {}
        for entry in entries:
            usable = required_uri(uri, entry.uri)
            resource = Resource(
                usable, lastmod=entry.lastmod, hash=entry.hash, length=entry.length, type=entry.type
            )
            state = _state(entry) + (_FRESH if _is_fresh(entry, self._began) else "")
            found[usable] = SeenEntry(resource, state, place)
        self._seen[place] = set(found)
        return OriginBatch(tuple(found.values()))

    async def missing(self, known: KnownEntries) -> tuple[MissingEntry, ...]:
        """Return the recorded entries that the files no longer list."""
        if not self._seen and self._before <= set(self.walked):
            return ()
        places = {_place(uri) for uri, file in self.walked.items() if file.parts is None}

        def absent(uri: str, recorded: frozenset[str]) -> frozenset[str]:
            return frozenset(
                place
                for place in recorded
                if place not in places or uri not in self._seen.get(place, (uri,))
            )

        found = await known.select(lambda uri, recorded: bool(absent(uri, recorded)))
        if found and not sum(file.entries for file in self.walked.values()):
            raise Unavailable(self._url, "it has no entries, but a Sitemap must have some")
        return tuple(MissingEntry(uri, absent(uri, recorded)) for uri, recorded in found)


def _place(uri: str) -> str:
    return blake2b(uri.encode(), digest_size=6).hexdigest()


def _state(entry: Resource) -> str:
    lastmod = format_datetime(entry.lastmod) if entry.lastmod else ""
    return f"{lastmod} {entry.hash or ''} {'' if entry.length is None else entry.length}".strip()


def _is_fresh(entry: Resource, began: int) -> bool:
    """Return whether an entry could change again within the second of its `lastmod`.

    `began` is when the check began (µs).
    """
    if entry.lastmod is None or entry.lastmod.microsecond or entry.hash is not None:
        return False
    return abs(began - to_microseconds(entry.lastmod)) < _FRESH_AGE


def _is_daily(entry: Resource) -> bool:
    return entry.lastmod is not None and entry.hash is None and entry.lastmod.time() == time.min


SITEMAP = OriginType(lambda origin, client, _: SitemapAdapter(without_login(origin.url), client))
