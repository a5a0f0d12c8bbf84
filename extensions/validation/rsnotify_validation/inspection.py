"""Inspects a Source: returns the tree of its documents, with facts about each.

The walk goes down from the Source Description to the set of resources that the URI leads to, or to
all sets if it leads to several. It reads each document completely and only once, within limits,
because an index or a dump may lead to a hundred thousand further documents. Packages are never
fetched. A document that cannot be fetched or read appears in the tree with its problem. If a
gateway publishes a document about the origin that it follows (docs/protocol.md), the tree includes
its statements.
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

#: Maximum number of entries of a document that are kept, to inspect the documents that they name.
MOST_ENTRIES = 1_000
_CHANGES = frozenset({Capability.CHANGE_LIST, Capability.CHANGE_DUMP_MANIFEST})
#: The capabilities of a Resource List and of a plain Sitemap.
_RESOURCES = frozenset({Capability.RESOURCE_LIST, None})
#: The relations of links between documents, which the tree shows anyway.
_OF_THE_TREE = frozenset(
    {Rel.UP, Rel.INDEX, Rel.ARCHIVES, Rel.SELF, Rel.RESOURCESYNC, Rel.MONITOR_GROUP, Rel.HUB}
)


class Granularity(StrEnum):
    """The finest unit of the datetimes of a document."""

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


class InspectionFinding(Struct, omit_defaults=True, rename={"from_": "from"}):
    """A document of a Source and, below it, the documents that it names.

    Args:
        uri: The URI of the document.
        capability: The capability that the document states, or if it cannot be read, the one that
            the document above states.
        problem: The reason why the document could not be read. Little else is known then.
        warnings: Other problems of the document.
        index: Whether the document is an index, with its parts as entries.
        bytes: The uncompressed size of the document.
        listed_bytes: The sum of the lengths in the entries.
        changes: The number of entries for each type of change.
        profile: "1.1" if the entries have `datetime`, or "1.0" if they have only `lastmod`.
        granularity: The granularity of the datetimes in the entries.
        reaches: The earliest and the latest instant in the entries.
        unread: The number of documents below this one that were not read, because of limits or
            because they belong to other sets of resources.
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
    parts: list[InspectionFinding] = []


class DocumentTally:
    """Reads one document, and counts its entries, in constant memory.

    Attributes:
        bytes: The number of bytes received by `feed`.
        kept: The first entries.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.kept: list[Resource] = []
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
        if len(self.kept) < MOST_ENTRIES:
            self.kept.append(resource)
        if resource.change is not None:
            self._changes[resource.change] += 1
        self._with_datetime += resource.datetime is not None
        for instant in (resource.from_, resource.at, resource.changed_at, resource.until):
            if instant is not None:
                self._note(instant)

    def _note(self, instant: Instant) -> None:
        earliest, latest = self._reaches or (instant, instant)
        self._reaches = min(earliest, instant), max(latest, instant)
        if self._granularity is not Granularity.MICROSECONDS:
            finest = granularity_of(instant)
            self._granularity = max(self._granularity or finest, finest, key=_GRANULARITIES.index)

    def close(self, uri: str) -> tuple[InspectionFinding, Document]:
        """Finish the document, and return the facts about it, and the document without entries."""
        head = self._reader.close()
        found = InspectionFinding(
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
                if link.rel not in _OF_THE_TREE
            ),
        )
        if self._undated and not head.index and head.capability in _RESOURCES:
            text = describe_undated(self._undated, self._entries)
            found.warnings = (f"{text}; changed content is not seen",)
        if head.capability in _CHANGES and not head.index and self._entries:
            found.profile = "1.1" if self._with_datetime else "1.0"
        return found, head


def granularity_of(instant: Instant) -> Granularity:
    """Return the finest unit in which an instant is not zero."""
    if instant.microsecond % 1_000:
        return Granularity.MICROSECONDS
    if instant.microsecond:
        return Granularity.MILLISECONDS
    return Granularity.DAYS if instant.time() == time.min else Granularity.SECONDS


#: The end of the URI of a gateway's document about its origin.
ORIGIN_PATH = "/origin.json"
_MOST_BYTES = 100_000


class FollowedOrigin(Struct):
    """The members of a gateway's document about its origin that the inspection shows."""

    origin: str
    protocol: str
    deletions: str
    limits: tuple[str, ...] = ()
    checked: str | None = None
    failing_since: str | None = None
    problem: str | None = None


async def origin_statements(sessions: Sessions, uri: str) -> tuple[str, ...]:
    """Return statements about a gateway's origin, such as what the gateway cannot see there."""
    try:
        async with sessions.get(uri, {"Accept-Encoding": "gzip"}) as response:
            check_status(uri, response)
            data = await read_beginning(uri, response, _MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                return (f"{uri} is too long to be read",)
        found = msgspec.json.decode(data, type=FollowedOrigin)
    except (FetchError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return (f"what is known of the origin cannot be read: {error}",)
    statements = [f"follows {found.origin} by {found.protocol}", found.deletions, *found.limits]
    if found.problem is not None:
        statements.append(
            f"the origin was last checked at {found.checked}, and cannot be checked since "
            f"{found.failing_since}: {found.problem}"
        )
    return tuple(statements)


#: Maximum number of parts of one index, or manifests of one dump, that are read.
MOST_PARTS = 20
#: Maximum number of documents that are read in total, and the number of bytes after which no
#: further document is read.
MOST_DOCUMENTS = 400
MOST_BYTES = 1_000_000_000
_NOTIFICATIONS = frozenset({Capability.CHANGE_NOTIFICATION, Capability.FRAMEWORK_NOTIFICATION})
_PARENTS = frozenset({Capability.DESCRIPTION, Capability.CAPABILITY_LIST})
_DUMPS = frozenset({Capability.RESOURCE_DUMP, Capability.CHANGE_DUMP})


async def inspect(
    url: str,
    *,
    allow_private_addresses: bool = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> InspectionFinding:
    """Return the topmost document of a Source, with the other documents below it.

    Args:
        url: Any URI of the Source that a Destination could follow.
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
            walk = _Walk(sessions)
            try:
                offer = await find_offer(Fetcher(sessions, Path(temporary)), url)
            except SeveralSets as several:
                return await _several(walk, several)
            except InvalidDocument as error:  # a Capability List that cannot be followed
                found = await walk.finding(error.source or url)
                if found.problem is not None:
                    raise
                return found
            below = walk.only = offer.uri or url
            root = await walk.finding(offer.source_description or below)
            if below not in walk.read:  # the Source Description does not lead to it
                root.parts.append(await walk.finding(below))
            return root


async def _several(walk: _Walk, several: SeveralSets) -> InspectionFinding:
    if not several.where.endswith(ROBOTS_PATH):
        return await walk.finding(several.where)
    sitemaps = [await walk.finding(uri) for uri in several.found]
    return InspectionFinding(several.where, "robots.txt", entries=len(sitemaps), parts=sitemaps)


class _Walk:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._bytes = 0
        #: The documents that a Capability List or Source Description names. They are placed below
        #: it, even if other documents link to them.
        self._named: set[str] = set()
        self.read: set[str] = set()
        #: The only Capability List to inspect, or None to inspect all.
        self.only: str | None = None

    @property
    def _is_enough(self) -> bool:
        return len(self.read) >= MOST_DOCUMENTS or self._bytes > MOST_BYTES

    async def finding(self, uri: str, called: str | None = None) -> InspectionFinding:
        """Read a document and all documents that it leads to.

        `called` is the capability that the document above states for it.
        """
        found, head, entries = await self._finding_of(uri, called)
        if head is not None:
            if called not in (None, found.capability):
                found.warnings += (f"the document above calls it {called}",)
            if found.capability == Capability.CAPABILITY_LIST:
                if (repeated := repeated_capability(entries, uri)) is not None:
                    found.warnings += (repeated,)
                for link in _targets(uri, head.links, Rel.DESCRIBED_BY):
                    if link.uri.endswith(ORIGIN_PATH):
                        found.warnings += await origin_statements(self._sessions, link.uri)
            await self._inspect_below(found, head, entries)
        return found

    async def _finding_of(
        self, uri: str, called: str | None
    ) -> tuple[InspectionFinding, Document | None, list[Resource]]:
        """Read one document. Return the facts about it, its head and its first entries.

        The head is None if the document has a problem.
        """
        self.read.add(uri)
        tally = DocumentTally()
        try:
            async with self._sessions.get(uri, {"Accept-Encoding": "gzip"}) as response:
                check_status(uri, response)
                await stream_document(uri, response, self._sessions.large, tally.feed)
            return *tally.close(uri), tally.kept
        except (FetchError, DocumentError) as error:
            return InspectionFinding(uri, called, problem=_reason(error)), None, []
        finally:
            self._bytes += tally.bytes

    async def _inspect_below(
        self, found: InspectionFinding, head: Document, entries: list[Resource]
    ) -> None:
        if found.index:
            await self._sample(found, [entry.uri for entry in entries], found.capability)
        elif found.capability in _PARENTS:
            self._named.update(resolve(found.uri, entry.uri) for entry in entries)
            inspected = [one for one in entries if not self._is_other_set(found.uri, one)]
            found.unread += len(entries) - len(inspected)
            for entry in inspected:
                await self._inspect_entry(found, entry)
            for links in (head.links, *(entry.links for entry in entries)):
                await self._inspect_framework(found, links)
        elif found.capability in _DUMPS:
            await self._sample(found, _manifests(entries), f"{found.capability}-manifest")
        for link in head.links:
            if link.rel == Rel.ARCHIVES and resolve(found.uri, link.href) not in self._named:
                await self._add(found, link.href)
        await self._inspect_pages(found, head)

    def _is_other_set(self, above: str, entry: Resource) -> bool:
        is_set = entry.capability == Capability.CAPABILITY_LIST
        return is_set and self.only not in (None, resolve(above, entry.uri))

    async def _inspect_pages(self, found: InspectionFinding, head: Document) -> None:
        """Inspect the other pages of a list that is split into pages by `rel="next"` links."""
        page = found
        last: Document | None = head
        while last is not None and (link := last.link(Rel.NEXT)) is not None:
            uri = resolve(page.uri, link)
            if uri in self.read:
                page.warnings += (f"its link with rel=next leads back to {uri}",)
                return
            if self._is_enough:
                found.unread += 1
                return
            page, last, _ = await self._finding_of(uri, found.capability)
            found.parts.append(page)

    async def _inspect_entry(self, above: InspectionFinding, entry: Resource) -> None:
        """Inspect a document or channel that a Source Description or Capability List names."""
        if entry.capability in _NOTIFICATIONS:
            uri = resolve(above.uri, entry.uri)
            if uri not in self.read:
                above.parts.append(await self._channel(uri, entry.capability, entry.links))
        elif (found := await self._add(above, entry.uri, entry.capability)) is not None:
            described_by = _targets(above.uri, entry.links, Rel.DESCRIBED_BY)
            found.links += tuple(link for link in described_by if link not in found.links)

    async def _inspect_framework(self, above: InspectionFinding, links: tuple[Link, ...]) -> None:
        """Inspect the channel of notifications about documents, if only a link names it."""
        for link in links:
            uri = resolve(above.uri, link.href)
            if link.rel == Rel.MONITOR_GROUP and uri not in self.read:
                capability = Capability.FRAMEWORK_NOTIFICATION
                above.parts.append(await self._channel(uri, capability, links))

    async def _channel(
        self, uri: str, capability: str | None, links: tuple[Link, ...]
    ) -> InspectionFinding:
        """Check whether a channel answers. Its content is elsewhere in the tree."""
        self.read.add(uri)
        found = InspectionFinding(uri, capability, links=_targets(uri, links, Rel.HUB))
        try:
            async with self._sessions.get(uri, {}) as response:
                check_status(uri, response)
        except FetchError as error:
            found.problem = _reason(error)
        return found

    async def _sample(self, found: InspectionFinding, uris: list[str], called: str | None) -> None:
        """Inspect the first parts of an index, or manifests of a dump."""
        if uris:
            found.unread += max(0, (found.entries or 0) - MOST_PARTS)
        for uri in uris[:MOST_PARTS]:
            await self._add(found, uri, called)

    async def _add(
        self, above: InspectionFinding, uri: str, called: str | None = None
    ) -> InspectionFinding | None:
        """Read a document below another one, unless it was read before or a limit is reached."""
        uri = resolve(above.uri, uri)
        if uri in self.read:
            return None
        if self._is_enough:
            above.unread += 1
            return None
        found = await self.finding(uri, called)
        above.parts.append(found)
        return found


def _manifests(packages: list[Resource]) -> list[str]:
    """Return the URIs of manifests that are published next to their packages (core §11.1)."""
    return [link.href for package in packages for link in package.links if link.rel == Rel.CONTENTS]


def _targets(base: str, links: tuple[Link, ...], rel: str) -> tuple[NamedLink, ...]:
    return tuple(NamedLink(rel, resolve(base, link.href)) for link in links if link.rel == rel)


def _reason(error: FetchError | DocumentError) -> str:
    """Return the reason for an error without the URI, which the tree shows anyway."""
    entry = error.entry if isinstance(error, DocumentError) else None
    return error.reason if entry is None else f"entry {entry}: {error.reason}"
