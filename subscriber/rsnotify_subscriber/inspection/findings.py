"""The facts about one document of a Source, counted while it is read, entry by entry."""

from __future__ import annotations

from collections import Counter
from datetime import time
from enum import StrEnum
from typing import Any

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify.format.links import resolve
from rsnotify.format.model import Document, Resource
from rsnotify.format.vocabulary import Capability, Rel
from rsnotify.sync.doubts import undated

#: The most entries of a document that are kept, to inspect the documents that they name.
MOST_ENTRIES = 1_000
_CHANGES = frozenset({Capability.CHANGE_LIST, Capability.CHANGE_DUMP_MANIFEST})
#: The capabilities of a Resource List and of a plain Sitemap.
_RESOURCES = frozenset({Capability.RESOURCE_LIST, None})
#: Links between documents, which the tree shows anyway.
_OF_THE_TREE = frozenset(
    {Rel.UP, Rel.INDEX, Rel.ARCHIVES, Rel.SELF, Rel.RESOURCESYNC, Rel.MONITOR_GROUP, Rel.HUB}
)


class Granularity(StrEnum):
    """The finest unit of the datetimes of a document."""

    DAYS = "days"
    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"
    MICROSECONDS = "microseconds"


#: From the coarsest to the finest.
_GRANULARITIES = list(Granularity)


class NamedLink(Struct, frozen=True):
    """A link of a document, or a URI of a hub."""

    rel: str
    uri: str


class InspectionFinding(Struct, omit_defaults=True, rename={"from_": "from"}):
    """A document of a Source and, below it, the documents that it names.

    Args:
        uri: Its URI.
        capability: Its capability, by itself or else by the document above.
        problem: Why it could not be read; then little else is known.
        warnings: What is wrong with it.
        index: Whether it is an index, whose entries are its parts.
        entries: The number of its entries.
        bytes: Its size, uncompressed.
        listed_bytes: The sum of the lengths in its entries.
        changes: The number of entries of each type of change.
        profile: "1.1" if its entries have `datetime`, "1.0" if they have only `lastmod`.
        granularity: The granularity of the datetimes of its entries.
        reaches: The earliest and the latest instant in its entries.
        unread: The number of documents below it that were not read, because of limits.
        links: Its links, but for those to the documents below it.
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
    """Counts the entries of one document as they are read, in constant memory."""

    def __init__(self) -> None:
        self.kept: list[Resource] = []
        self._entries = 0
        self._lengths = 0
        self._undated = 0
        self._changes: Counter[str] = Counter()
        self._with_datetime = 0
        self._granularity: Granularity | None = None
        self._earliest: Instant | None = None
        self._latest: Instant | None = None

    def add(self, resource: Resource) -> None:
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
        self._earliest = min(self._earliest or instant, instant)
        self._latest = max(self._latest or instant, instant)
        if self._granularity is not Granularity.MICROSECONDS:
            finest = granularity_of(instant)
            self._granularity = max(self._granularity or finest, finest, key=_GRANULARITIES.index)

    def finding(self, uri: str, head: Document, size: int) -> InspectionFinding:
        """Return the facts about a document, whose `head` has no entries."""
        facts: dict[str, Any] = {}
        if self._undated and not head.index and head.capability in _RESOURCES:
            text = undated(self._undated, self._entries)
            facts["warnings"] = (f"{text}; changed content is not seen",)
        if head.capability in _CHANGES and not head.index and self._entries:
            facts["profile"] = "1.1" if self._with_datetime else "1.0"
        if self._earliest is not None and self._latest is not None:
            facts["reaches"] = (self._earliest, self._latest)
        return InspectionFinding(
            uri,
            head.capability,
            index=head.index,
            entries=self._entries,
            bytes=size,
            listed_bytes=self._lengths,
            changes=dict(self._changes),
            at=head.at,
            completed=head.completed,
            from_=head.from_,
            until=head.until,
            granularity=self._granularity,
            links=tuple(
                NamedLink(link.rel, resolve(uri, link.href))
                for link in head.links
                if link.rel not in _OF_THE_TREE
            ),
            **facts,
        )


def granularity_of(instant: Instant) -> Granularity:
    """Return the finest unit of an instant that is not zero."""
    if instant.microsecond % 1_000:
        return Granularity.MICROSECONDS
    if instant.microsecond:
        return Granularity.MILLISECONDS
    return Granularity.DAYS if instant.time() == time.min else Granularity.SECONDS
