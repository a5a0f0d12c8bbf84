"""The documents of a Source: their names, and what each says (docs/protocol.md)."""

from __future__ import annotations

from rsnotify.datetimes import from_microseconds
from rsnotify.model import Document, Link, Resource
from rsnotify.vocabulary import Capability, Rel
from rsnotify_publisher.journal import Span

CAPABILITY_LIST = "capabilitylist.xml"
RESOURCE_LIST = "resourcelist.xml"
CHANGE_LIST = "changelist.xml"
ARCHIVE = "changelist-archive.xml"
CHANNEL = "channel.xml"
DESCRIPTION = ".well-known/resourcesync"
#: Closed Change Lists and the parts of an indexed Resource List stand below this.
PARTS = "resourcesync/"
#: Not a document but a service: it stands below PARTS, so that no resource can have its name.
CHANGE_MEMORY = PARTS + "changes"

#: Names at the top of the base URL that no resource can have.
RESERVED = frozenset(
    {CAPABILITY_LIST, RESOURCE_LIST, CHANGE_LIST, ARCHIVE, CHANNEL, PARTS.rstrip("/")}
)


def compact(at: int) -> str:
    """Write an instant (µs) so that it can stand in the name of a file and in a URI."""
    return from_microseconds(at).strftime("%Y%m%dT%H%M%S%fZ")


def closed_list_name(span: Span) -> str:
    """Return the name of a closed Change List, relative to the base URL."""
    return f"{PARTS}changelist-{compact(span.from_at)}-{compact(span.until_at)}.xml"


class Documents:
    """Says what the documents of one Source hold.

    Args:
        base_url: Ends in a slash.
        hubs: Every way in to a hub.
        described_by: A document about this set of resources, if there is one (core §9).
        change_memory: Whether the Capability List names the change memory.
    """

    def __init__(
        self,
        base_url: str,
        hubs: tuple[str, ...],
        *,
        described_by: str | None = None,
        change_memory: bool = False,
    ) -> None:
        self.base_url = base_url
        self.hubs = hubs
        self.topic = self.uri(CHANNEL)
        #: The Source Description above; a Source of several sets puts its own here.
        self.description_uri = self.uri(DESCRIPTION)
        self._described_by = (
            () if described_by is None else (Link(Rel.DESCRIBED_BY, described_by),)
        )
        self._change_memory = change_memory
        self._up = Link(Rel.UP, self.uri(CAPABILITY_LIST))

    def uri(self, name: str) -> str:
        """Return the URI of a document."""
        return self.base_url + name

    def description(self) -> Document:
        """Say what stands in the Source Description of this set alone (core §8)."""
        return Document(Capability.DESCRIPTION, (self.described(),))

    def described(self) -> Resource:
        """Say what a Source Description says of this set: its Capability List (core §8)."""
        return Resource(
            self.uri(CAPABILITY_LIST),
            capability=Capability.CAPABILITY_LIST,
            links=self._described_by,
        )

    def capability_list(self) -> Document:
        """Say what the Source offers (core §9), the channel and its hubs among it."""
        offered = (
            Resource(self.uri(RESOURCE_LIST), capability=Capability.RESOURCE_LIST),
            Resource(self.uri(CHANGE_LIST), capability=Capability.CHANGE_LIST),
            Resource(self.uri(ARCHIVE), capability=Capability.CHANGE_LIST_ARCHIVE),
            Resource(
                self.topic,
                capability=Capability.CHANGE_NOTIFICATION,
                links=tuple(Link(Rel.HUB, hub) for hub in self.hubs),
            ),
        )
        links = [*self._described_by, Link(Rel.UP, self.description_uri)]
        if self._change_memory:
            links.append(Link(Rel.CHANGE_SET, self.uri(CHANGE_MEMORY)))
        return Document(Capability.CAPABILITY_LIST, offered, links=tuple(links))

    def archive(self, closed: list[Span]) -> Document:
        """Enumerate the closed Change Lists, oldest first (archives §5)."""
        entries = tuple(
            Resource(
                self.uri(closed_list_name(span)),
                from_=from_microseconds(span.from_at),
                until=from_microseconds(span.until_at),
            )
            for span in closed
        )
        return Document(Capability.CHANGE_LIST_ARCHIVE, entries, links=(self._up,))

    def change_list(self, from_at: int, until_at: int | None = None) -> Document:
        """Begin a Change List, open unless it has an end (core §12.1, archives §2.2)."""
        return Document(
            Capability.CHANGE_LIST,
            from_=from_microseconds(from_at),
            until=None if until_at is None else from_microseconds(until_at),
            links=(self._up, Link(Rel.ARCHIVES, self.uri(ARCHIVE))),
        )

    def resource_list(self, at: int, *, is_part: bool = False) -> Document:
        """Begin a Resource List, or a part of one that has an index (core §10)."""
        index = (Link(Rel.INDEX, self.uri(RESOURCE_LIST)),) if is_part else ()
        links = (self._up, *index)
        return Document(Capability.RESOURCE_LIST, at=from_microseconds(at), links=links)

    def resource_list_index(self, at: int, parts: list[str]) -> Document:
        """Enumerate the parts of a Resource List, given by name (core §10.2)."""
        instant = from_microseconds(at)
        entries = tuple(Resource(self.uri(name), at=instant) for name in parts)
        return Document(
            Capability.RESOURCE_LIST, entries, index=True, at=instant, links=(self._up,)
        )
