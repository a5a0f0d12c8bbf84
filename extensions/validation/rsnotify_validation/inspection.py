"""Inspects a Source: returns the tree of its documents, with facts about each.

The inspection descends from the Source Description to the set of resources that the URI leads to,
or to all sets if it leads to several. It reads each document completely and only once, within
limits, because an index or dump may lead to a hundred thousand documents. Packages are never
fetched. A document that cannot be fetched or read appears in the tree with its problem. If a
gateway publishes a document about its origin (docs/protocol.md), the tree includes its statements.
"""

from __future__ import annotations

from collections import Counter
from datetime import time
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from rsnotify.errors import DocumentError, FetchError, InvalidDocument, SeveralSets
from rsnotify.format.datetimes import Instant
from rsnotify.format.links import resolve
from rsnotify.format.model import Capability, Document, Link, Rel, Resource
from rsnotify.format.offer import repeated_capability
from rsnotify.format.reader import SitemapReader
from rsnotify.sync.doubts import describe_undated
from rsnotify_subscriber.discovery.discovery import ROBOTS_PATH, find_offer
from rsnotify_subscriber.fetching.credentials import NO_CREDENTIALS, Credentials, without_login
from rsnotify_subscriber.fetching.fetcher import Fetcher, stream_document
from rsnotify_subscriber.fetching.responses import check_status, read_beginning
from rsnotify_subscriber.fetching.sessions import Sessions

#: Maximum number of entries of a document that are kept, to inspect the documents they lead to.
MAX_ENTRIES = 1_000
_CHANGES = frozenset({Capability.CHANGE_LIST, Capability.CHANGE_DUMP_MANIFEST})
#: The capabilities of a Resource List and of a plain Sitemap.
_RESOURCES = frozenset({Capability.RESOURCE_LIST, None})
#: The relations of links between documents, which the tree shows anyway.
_TREE_RELATIONS = frozenset(
    {Rel.UP, Rel.INDEX, Rel.ARCHIVES, Rel.SELF, Rel.RESOURCESYNC, Rel.MONITOR_GROUP, Rel.HUB}
)


class Granularity(StrEnum):
    """The finest unit of the datetimes in a document."""

    DAYS = "days"
    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"
    MICROSECONDS = "microseconds"


#: All granularities, from the coarsest to the finest.
_GRANULARITIES = list(Granularity)


class NamedLink(Struct, frozen=True):
    """A link in a document, or the URI of a hub."""

    rel: str
    uri: str


class InspectedDocument(Struct, omit_defaults=True, rename={"from_": "from"}):
    """A document of a Source and, below it, the documents that it leads to.

    Args:
        uri: The URI of the document.
        capability: The capability that the document states or, if it cannot be read, the one that
            its parent document states.
        problem: Why the document could not be read. If set, most other fields are empty.
        warnings: Other problems of the document.
        index: Whether the document is an index, with its parts as entries.
        bytes: The uncompressed size of the document.
        listed_bytes: The sum of the lengths in the entries.
        changes: The number of entries for each type of change.
        profile: "1.1" if the entries have `datetime`, or "1.0" if they have only `lastmod`.
        granularity: The granularity of the datetimes in the entries.
        reaches: The earliest and the latest instant in the entries.
        unread: The number of documents below that were not read, because of limits or because they
            belong to other sets of resources.
        links: The document's links, except links between documents. For a channel, its hubs.
        parts: The documents below this one.
    """

    uri: str
    capability: str | None = None
    problem: str | None = None
    warnings: tuple[str, ...] = ()
    index: bool = False
    entries: int | None = None
    bytes: int = 0
    listed_bytes: int = 0
    changes: dict[str, int] = {}
    at: Instant | None = None
    completed: Instant | None = None
    from_: Instant | None = None
    until: Instant | None = None
    profile: str | None = None
    granularity: Granularity | None = None
    reaches: tuple[Instant, Instant] | None = None
    unread: int = 0
    links: tuple[NamedLink, ...] = ()
    parts: list[InspectedDocument] = []


class DocumentTally:
    """Reads one document, and counts its entries, in constant memory.

    Attributes:
        bytes: The number of bytes received by `feed`.
        first_entries: The first entries, up to a limit.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.first_entries: list[Resource] = []
        self._reader = SitemapReader()
        self._entries = 0
        self._lengths = 0
        self._undated = 0
        self._changes: Counter[str] = Counter()
        self._with_datetime = 0
        self._granularity: Granularity | None = None
        self._reaches: tuple[Instant, Instant] | None = None

    def feed(self, piece: bytes) -> None:
        self.bytes += len(piece)
        for resource in self._reader.feed(piece):
            self._add(resource)

    def _add(self, resource: Resource) -> None:
        self._entries += 1
        self._lengths += resource.length or 0
        self._undated += resource.hash is None and resource.lastmod is None
        if len(self.first_entries) < MAX_ENTRIES:
            self.first_entries.append(resource)
        if resource.change is not None:
            self._changes[resource.change] += 1
        self._with_datetime += resource.datetime is not None
        for instant in (resource.from_, resource.at, resource.changed_at, resource.until):
            if instant is not None:
                self._add_instant(instant)

    def _add_instant(self, instant: Instant) -> None:
        earliest, latest = self._reaches or (instant, instant)
        self._reaches = min(earliest, instant), max(latest, instant)
        if self._granularity is not Granularity.MICROSECONDS:
            finest = granularity_of(instant)
            self._granularity = max(self._granularity or finest, finest, key=_GRANULARITIES.index)

    def close(self, uri: str) -> tuple[InspectedDocument, Document]:
        """Finish the document. Return the facts about it, and the document without its entries."""
        head = self._reader.close()
        found = InspectedDocument(
            uri,
            head.capability,
            index=head.index,
            entries=self._entries,
            bytes=self.bytes,
            listed_bytes=self._lengths,
            changes=dict(self._changes),
            at=head.at,
            completed=head.completed,
            from_=head.from_,
            until=head.until,
            granularity=self._granularity,
            reaches=self._reaches,
            links=tuple(
                NamedLink(link.rel, resolve(uri, link.href))
                for link in head.links
                if link.rel not in _TREE_RELATIONS
            ),
        )
        if self._undated and not head.index and head.capability in _RESOURCES:
            text = describe_undated(self._undated, self._entries)
            found.warnings = (f"{text}; changes of their content are not detected",)
        if head.capability in _CHANGES and not head.index and self._entries:
            found.profile = "1.1" if self._with_datetime else "1.0"
        return found, head


def granularity_of(instant: Instant) -> Granularity:
    """Return the finest nonzero unit of an instant."""
    if instant.microsecond % 1_000:
        return Granularity.MICROSECONDS
    if instant.microsecond:
        return Granularity.MILLISECONDS
    return Granularity.DAYS if instant.time() == time.min else Granularity.SECONDS


#: The end of the URI of a gateway's document about its origin.
ORIGIN_PATH = "/origin.json"
_MAX_ORIGIN_BYTES = 100_000


class FollowedOrigin(Struct):
    """The members of a gateway's origin.json that the inspection shows."""

    origin: str
    protocol: str
    deletions: str
    limits: tuple[str, ...] = ()
    checked: str | None = None
    failing_since: str | None = None
    problem: str | None = None


async def origin_statements(sessions: Sessions, uri: str) -> tuple[str, ...]:
    """Return a gateway's statements about its origin, such as which changes it cannot detect."""
    try:
        async with sessions.get(uri, {"Accept-Encoding": "gzip"}) as response:
            check_status(uri, response)
            data = await read_beginning(uri, response, _MAX_ORIGIN_BYTES + 1)
            if len(data) > _MAX_ORIGIN_BYTES:
                return (f"{uri} has more than {_MAX_ORIGIN_BYTES:,} bytes, and was not read",)
        found = msgspec.json.decode(data, type=FollowedOrigin)
    except (FetchError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return (f"the document about the origin cannot be read: {error}",)
    statements = [f"follows {found.origin} by {found.protocol}", found.deletions, *found.limits]
    if found.problem is not None:
        statements.append(
            f"the origin was last checked at {found.checked}; checks have failed since "
            f"{found.failing_since}: {found.problem}"
        )
    return tuple(statements)


#: Maximum number of parts of an index, or manifests of a dump, that are read.
MAX_PARTS = 20
#: Maximum number of documents that are read.
MAX_DOCUMENTS = 400
#: No more documents are read once this many bytes have been read.
MAX_TOTAL_BYTES = 1_000_000_000
_NOTIFICATIONS = frozenset({Capability.CHANGE_NOTIFICATION, Capability.FRAMEWORK_NOTIFICATION})
_PARENTS = frozenset({Capability.DESCRIPTION, Capability.CAPABILITY_LIST})
_DUMPS = frozenset({Capability.RESOURCE_DUMP, Capability.CHANGE_DUMP})


async def inspect(
    url: str,
    *,
    allow_private_addresses: bool = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> InspectedDocument:
    """Return the topmost document of a Source, with the other documents below it.

    Args:
        url: Any URI at which a Destination could follow the Source.
        allow_private_addresses: Whether documents may name hosts at private addresses.
        credentials: The credentials for the origin of `url`, as for a `Subscriber`.

    Raises:
        RsnotifyError: The URI leads to nothing that can be inspected.
    """
    sessions = Sessions(
        url, allow_private_addresses=allow_private_addresses, credentials=credentials
    )
    url = without_login(url)
    with TemporaryDirectory(prefix="rsnotify-inspect-") as temporary:
        async with sessions:
            inspector = _SourceInspector(sessions)
            try:
                offer = await find_offer(Fetcher(sessions, Path(temporary)), url)
            except SeveralSets as several:
                return await _inspect_several(inspector, several)
            except InvalidDocument as error:  # a Capability List that cannot be followed
                found = await inspector.inspect(error.source or url)
                if found.problem is not None:
                    raise
                return found
            below = inspector.only = offer.uri or url
            root = await inspector.inspect(offer.source_description or below)
            if below not in inspector.read:  # the Source Description does not lead to it
                root.parts.append(await inspector.inspect(below))
            return root


async def _inspect_several(inspector: _SourceInspector, several: SeveralSets) -> InspectedDocument:
    if not several.where.endswith(ROBOTS_PATH):
        return await inspector.inspect(several.where)
    sitemaps = [await inspector.inspect(uri) for uri in several.found]
    return InspectedDocument(several.where, "robots.txt", entries=len(sitemaps), parts=sitemaps)


class _SourceInspector:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._bytes = 0
        #: The documents that a Capability List or Source Description lists. They are placed below
        #: it, even if other documents link to them.
        self._listed: set[str] = set()
        self.read: set[str] = set()
        #: The only Capability List to inspect, or None to inspect all.
        self.only: str | None = None

    @property
    def _is_at_limit(self) -> bool:
        return len(self.read) >= MAX_DOCUMENTS or self._bytes > MAX_TOTAL_BYTES

    async def inspect(self, uri: str, stated: str | None = None) -> InspectedDocument:
        """Read a document and all documents that it leads to.

        `stated` is the capability that its parent document states.
        """
        found, head, entries = await self._read_document(uri, stated)
        if head is not None:
            if stated not in (None, found.capability):
                found.warnings += (f"its parent document calls it {stated}",)
            if found.capability == Capability.CAPABILITY_LIST:
                if (repeated := repeated_capability(entries, uri)) is not None:
                    found.warnings += (repeated,)
                for link in _targets(uri, head.links, Rel.DESCRIBED_BY):
                    if link.uri.endswith(ORIGIN_PATH):
                        found.warnings += await origin_statements(self._sessions, link.uri)
            await self._inspect_below(found, head, entries)
        return found

    async def _read_document(
        self, uri: str, stated: str | None
    ) -> tuple[InspectedDocument, Document | None, list[Resource]]:
        """Read one document. Return the facts about it, its head and its first entries.

        The head is None if the document has a problem.
        """
        self.read.add(uri)
        tally = DocumentTally()
        try:
            async with self._sessions.get(uri, {"Accept-Encoding": "gzip"}) as response:
                check_status(uri, response)
                await stream_document(uri, response, self._sessions.large, tally.feed)
            return *tally.close(uri), tally.first_entries
        except (FetchError, DocumentError) as error:
            return InspectedDocument(uri, stated, problem=_reason(error)), None, []
        finally:
            self._bytes += tally.bytes

    async def _inspect_below(
        self, found: InspectedDocument, head: Document, entries: list[Resource]
    ) -> None:
        if found.index:
            await self._inspect_first(found, [entry.uri for entry in entries], found.capability)
        elif found.capability in _PARENTS:
            self._listed.update(resolve(found.uri, entry.uri) for entry in entries)
            inspected = [one for one in entries if not self._is_other_set(found.uri, one)]
            found.unread += len(entries) - len(inspected)
            for entry in inspected:
                await self._inspect_entry(found, entry)
            for links in (head.links, *(entry.links for entry in entries)):
                await self._inspect_framework(found, links)
        elif found.capability in _DUMPS:
            await self._inspect_first(found, _manifests(entries), f"{found.capability}-manifest")
        for link in head.links:
            if link.rel == Rel.ARCHIVES and resolve(found.uri, link.href) not in self._listed:
                await self._inspect_part(found, link.href)
        await self._inspect_pages(found, head)

    def _is_other_set(self, above: str, entry: Resource) -> bool:
        is_set = entry.capability == Capability.CAPABILITY_LIST
        return is_set and self.only not in (None, resolve(above, entry.uri))

    async def _inspect_pages(self, found: InspectedDocument, head: Document) -> None:
        """Inspect the other pages of a list that is split into pages by `rel="next"` links."""
        page = found
        last: Document | None = head
        while last is not None and (link := last.link(Rel.NEXT)) is not None:
            uri = resolve(page.uri, link)
            if uri in self.read:
                page.warnings += (f"its link with rel=next leads back to {uri}",)
                return
            if self._is_at_limit:
                found.unread += 1
                return
            page, last, _ = await self._read_document(uri, found.capability)
            found.parts.append(page)

    async def _inspect_entry(self, above: InspectedDocument, entry: Resource) -> None:
        """Inspect a document or channel that a Source Description or Capability List lists."""
        if entry.capability in _NOTIFICATIONS:
            uri = resolve(above.uri, entry.uri)
            if uri not in self.read:
                above.parts.append(await self._inspect_channel(uri, entry.capability, entry.links))
        elif (found := await self._inspect_part(above, entry.uri, entry.capability)) is not None:
            described_by = _targets(above.uri, entry.links, Rel.DESCRIBED_BY)
            found.links += tuple(link for link in described_by if link not in found.links)

    async def _inspect_framework(self, above: InspectedDocument, links: tuple[Link, ...]) -> None:
        """Inspect the channel of notifications about documents, if there is only a link to it."""
        for link in links:
            uri = resolve(above.uri, link.href)
            if link.rel == Rel.MONITOR_GROUP and uri not in self.read:
                capability = Capability.FRAMEWORK_NOTIFICATION
                above.parts.append(await self._inspect_channel(uri, capability, links))

    async def _inspect_channel(
        self, uri: str, capability: str | None, links: tuple[Link, ...]
    ) -> InspectedDocument:
        """Check whether a channel can be fetched. Its content is elsewhere in the tree."""
        self.read.add(uri)
        found = InspectedDocument(uri, capability, links=_targets(uri, links, Rel.HUB))
        try:
            async with self._sessions.get(uri, {}) as response:
                check_status(uri, response)
        except FetchError as error:
            found.problem = _reason(error)
        return found

    async def _inspect_first(
        self, found: InspectedDocument, uris: list[str], stated: str | None
    ) -> None:
        """Inspect the first parts of an index, or the first manifests of a dump."""
        if uris:
            found.unread += max(0, (found.entries or 0) - MAX_PARTS)
        for uri in uris[:MAX_PARTS]:
            await self._inspect_part(found, uri, stated)

    async def _inspect_part(
        self, above: InspectedDocument, uri: str, stated: str | None = None
    ) -> InspectedDocument | None:
        """Inspect a document below another one, unless it was read or a limit is reached."""
        uri = resolve(above.uri, uri)
        if uri in self.read:
            return None
        if self._is_at_limit:
            above.unread += 1
            return None
        found = await self.inspect(uri, stated)
        above.parts.append(found)
        return found


def _manifests(packages: list[Resource]) -> list[str]:
    """Return the URIs of manifests that are published next to their packages (core §11.1)."""
    return [link.href for package in packages for link in package.links if link.rel == Rel.CONTENTS]


def _targets(base: str, links: tuple[Link, ...], rel: str) -> tuple[NamedLink, ...]:
    return tuple(NamedLink(rel, resolve(base, link.href)) for link in links if link.rel == rel)


def _reason(error: FetchError | DocumentError) -> str:
    """Return the reason of an error without the URI, which the tree shows anyway."""
    entry = error.entry if isinstance(error, DocumentError) else None
    return error.reason if entry is None else f"entry {entry}: {error.reason}"
