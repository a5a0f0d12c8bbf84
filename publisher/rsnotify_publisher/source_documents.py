"""The documents of a Source: their names and contents (docs/protocol.md).

A second channel carries notices of the Source's own documents (Framework Notification 1.0.1). A
notice states that a Resource List, a dump, a closed Change List or another document was written. It
does not include the document's content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import Capability, ChangeType, Document, Link, Rel, Resource
from rsnotify.format.writer import Profile, write_document
from rsnotify.format.writer import entry as write_entry
from rsnotify.runtime.transport_extensions import place_of
from rsnotify_publisher.hubs import url_for_topic
from rsnotify_publisher.journal import FinishedDocument, Journal, Recorder
from rsnotify_publisher.options import Options
from rsnotify_publisher.view import View


class FrameworkChannel(Struct, frozen=True):
    """The channel for notices of documents. `hubs` are its URLs for Destinations."""

    topic: str
    hubs: tuple[str, ...]

    @property
    def links(self) -> tuple[Link, ...]:
        """The links to the channel in a Source Description. No client mistakes them for a set."""
        return (Link(Rel.MONITOR_GROUP, self.topic), *self.hub_links)

    @property
    def hub_links(self) -> tuple[Link, ...]:
        return tuple(Link(Rel.HUB, hub) for hub in self.hubs)

    def content(self, notices: Iterable[Resource], from_: int, until: int, up: str) -> Document:
        """Return the document served at the channel's URI: the notices in an interval (µs)."""
        return Document(
            Capability.FRAMEWORK_NOTIFICATION,
            tuple(notices),
            from_=from_microseconds(from_),
            until=from_microseconds(until),
            links=(Link(Rel.UP, up), Link(Rel.SELF, self.topic), *self.hub_links),
        )


def allows_second_channel(url: str) -> bool:
    """Return whether a hub can have a second channel. A broker whose URL has a topic cannot."""
    broker = place_of(url)
    return broker is None or broker.has_prefix


CAPABILITY_LIST = "capabilitylist.xml"
RESOURCE_LIST = "resourcelist.xml"
RESOURCE_DUMP = "resourcedump.xml"
CHANGE_LIST = "changelist.xml"
CHANGE_DUMP = "changedump.xml"
CHANNEL = "channel.xml"
DESCRIPTION = ".well-known/resourcesync"
#: The archives of documents that are no longer live, by kind (archives §3 to §6).
ARCHIVES = {
    kind: f"{kind}-archive.xml"
    for kind in (
        Capability.RESOURCE_LIST,
        Capability.RESOURCE_DUMP,
        Capability.CHANGE_LIST,
        Capability.CHANGE_DUMP,
    )
}
#: The folder for closed documents, the parts of documents with an index, and packages.
PARTS = "resourcesync/"
#: The open Change List if changelist.xml is an index. No other part is ever rewritten.
OPEN_PART = PARTS + "changelist-open.xml"
#: The channel for notices of documents.
FRAMEWORK = PARTS + "framework.xml"
#: A service, not a document. It is below PARTS so that no resource can have its name.
CHANGE_MEMORY = PARTS + "changes"

#: Names directly below the base URL that no resource can have.
RESERVED = frozenset(
    {
        *(CAPABILITY_LIST, RESOURCE_LIST, RESOURCE_DUMP, CHANGE_LIST, CHANGE_DUMP, CHANNEL),
        *ARCHIVES.values(),
        PARTS.rstrip("/"),
    }
)

_INSTANT = re.compile(r"\d{8}T\d{12}Z", re.ASCII)


def compact(at: int) -> str:
    """Return an instant (µs) in a compact form for file names and URIs."""
    return from_microseconds(at).strftime("%Y%m%dT%H%M%S%fZ")


def digest_of(body: bytes) -> str:
    """Return a short digest of a document."""
    return blake2b(body, digest_size=12).hexdigest()


def is_final(name: str) -> bool:
    """Return whether a file below PARTS is never rewritten, because its name has an instant."""
    return _INSTANT.search(name) is not None


def stem(kind: str, begin: int) -> str:
    """Return the beginning of the file names of a final document and its parts.

    `begin` is the document's `from` or `at`, which is unique among the documents of its kind.
    """
    return f"{PARTS}{kind}-{compact(begin)}"


class SourceDocuments:
    """Builds the documents of one Source, and the notices of them.

    The base URL ends in a slash. `hubs` are the URLs of all hubs. The channel's topic or node is
    added to the URLs of brokers.
    """

    def __init__(
        self,
        base_url: str,
        hubs: tuple[str, ...],
        options: Options,
        *,
        described_by: str | None = None,
        views: Sequence[type[View]] = (),
    ) -> None:
        self.options = options
        self._views = tuple(views)
        self.profile = _profile(self.options.profile)
        #: The file name extension of closed documents and parts of documents.
        self.suffix = ".xml.gz" if self.options.gzip else ".xml"
        self.base_url = base_url
        self.topic = self.uri(CHANNEL)
        self.hubs = tuple(url_for_topic(hub, self.topic) for hub in hubs)
        #: The URLs of the brokers that hubs have stated, for this channel.
        self.stated_brokers: tuple[str, ...] = ()
        channel, wanted = self.uri(FRAMEWORK), self.options.framework
        urls = tuple(url_for_topic(hub, channel) for hub in hubs if allows_second_channel(hub))
        #: The channel for notices of documents; None if there is none.
        self.framework = FrameworkChannel(channel, urls) if wanted and urls else None
        #: The URI of the Source Description. With several sets, `join_source` replaces it.
        self.description_uri = self.uri(DESCRIPTION)
        self._described_by = () if described_by is None else (Link(Rel.DESCRIBED_BY, described_by),)
        self._up = Link(Rel.UP, self.uri(CAPABILITY_LIST))

    def uri(self, name: str) -> str:
        return self.base_url + name

    def description(self) -> Document:
        """Return the Source Description of a Source with only this set (core §8)."""
        # A document about the only set also describes the Source.
        entry = replace(self.description_entry(), links=self._described_by)
        links = self._described_by + self._framework_links
        return Document(Capability.DESCRIPTION, (entry, *self.framework_entries), links=links)

    def description_entry(self) -> Resource:
        """Return this set's entry in the Source Description of several sets (core §8)."""
        links = self._described_by + self._framework_links
        uri = self.uri(CAPABILITY_LIST)
        return Resource(uri, capability=Capability.CAPABILITY_LIST, links=links)

    @property
    def _framework_links(self) -> tuple[Link, ...]:
        return () if self.framework is None else self.framework.links

    @property
    def framework_entries(self) -> tuple[Resource, ...]:
        """The entry of the channel for notices, if enabled (Framework Notification §5)."""
        channel = self.framework
        if channel is None or not self.options.framework_url:
            return ()
        capability = Capability.FRAMEWORK_NOTIFICATION
        return (Resource(channel.topic, capability=capability, links=channel.hub_links),)

    @property
    def offered(self) -> dict[str, str]:
        """The names of the offered documents in order, keyed by capability."""
        options = self.options
        dump = options.resource_dump_every is not None
        wanted = {
            Capability.RESOURCE_LIST: (True, options.resource_list_archive),
            Capability.RESOURCE_DUMP: (dump, options.resource_dump_archive),
            Capability.CHANGE_LIST: (True, True),
            Capability.CHANGE_DUMP: (options.change_dump, options.change_dump_archive),
        }
        live = {kind: f"{kind}.xml" for kind, (offered, _) in wanted.items() if offered}
        archives = {f"{kind}-archive": ARCHIVES[kind] for kind, (_, kept) in wanted.items() if kept}
        return live | archives

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all offered documents that are served over HTTP from their files."""
        offered = (name for name in self.offered.values() if name != CHANGE_LIST)
        return (DESCRIPTION, CAPABILITY_LIST, *offered)

    def has_archive(self, kind: str) -> bool:
        return f"{kind}-archive" in self.offered

    def can_be_archived(self, document: FinishedDocument) -> bool:
        """Return whether a live document has a separate file, so that it can be archived."""
        own_file = f"{stem(document.kind, document.begin)}.xml"
        return self.has_archive(document.kind) and document.files[:1] == (own_file,)

    def write(self, document: Document) -> bytes:
        return write_document(document, profile=self.profile)

    def entry(self, resource: Resource) -> bytes:
        return write_entry(resource, profile=self.profile)

    def capability_list(self, missing: frozenset[str] = frozenset()) -> Document:
        """Return the Capability List (core §9), with the channel if there are hubs.

        Documents whose names are in `missing` do not exist yet, so they are omitted.
        """
        offered = [
            Resource(self.uri(name), capability=capability, links=self._links_to_views(capability))
            for capability, name in self.offered.items()
            if name not in missing
        ]
        if self.hubs:
            urls = dict.fromkeys((*self.hubs, *self.stated_brokers))
            hubs = tuple(Link(Rel.HUB, url) for url in urls)
            channel = Resource(self.topic, capability=Capability.CHANGE_NOTIFICATION, links=hubs)
            offered.append(channel)
        links = [*self._described_by, Link(Rel.UP, self.description_uri)]
        if self.options.change_memory:
            links.append(Link(Rel.CHANGE_SET, self.uri(CHANGE_MEMORY)))
        return Document(Capability.CAPABILITY_LIST, tuple(offered), links=tuple(links))

    def _links_to_views(self, capability: str) -> tuple[Link, ...]:
        """Return the links from the Change List to the views (core §14.3)."""
        views = self._views if capability == Capability.CHANGE_LIST else ()
        return tuple(
            Link(Rel.ALTERNATE, self.uri(view.root), type=view.media_type) for view in views
        )

    def archive(self, kind: str, parts: list[str] | None = None) -> Document:
        """Return an archive without its entries, or its index (archives §3 to §6)."""
        entries = tuple(Resource(self.uri(name)) for name in parts or ())
        return Document(f"{kind}-archive", entries, index=bool(parts), links=(self._up,))

    def archive_part(self, kind: str) -> Document:
        """Return a part of an indexed archive, without its entries (archives §3.1)."""
        index = Link(Rel.INDEX, self.uri(ARCHIVES[kind]))
        return Document(f"{kind}-archive", links=(self._up, index))

    def archive_entry(self, document: FinishedDocument) -> Resource:
        """Return the entry of a finished document in its archive or in an index."""
        begin, end = from_microseconds(document.begin), from_microseconds(document.end)
        uri = self.uri(document.files[0])
        if document.kind in (Capability.RESOURCE_LIST, Capability.RESOURCE_DUMP):
            return Resource(uri, at=begin, completed=end)
        return Resource(uri, from_=begin, until=end)

    def live_notice(self, document: FinishedDocument, *, is_first: bool) -> Resource:
        """Return the notice of a new Resource List or Resource Dump."""
        return Resource(
            self.uri(f"{document.kind}.xml"),
            capability=document.kind,
            change=ChangeType.CREATED if is_first else ChangeType.UPDATED,
            at=from_microseconds(document.begin),
            completed=from_microseconds(document.end),
        )

    def closed_notice(self, document: FinishedDocument) -> Resource:
        """Return the notice of a closed Change List."""
        entry = self.archive_entry(document)
        return replace(entry, capability=document.kind, change=ChangeType.CREATED)

    def reopened_notice(self, begin: int) -> Resource:
        """Return the notice that the open Change List now begins at `begin` (µs)."""
        return Resource(
            self.uri(CHANGE_LIST),
            capability=Capability.CHANGE_LIST,
            change=ChangeType.UPDATED,
            from_=from_microseconds(begin),
        )

    def notify(self, journal: Journal, *notices: Resource) -> None:
        """Insert notices if the Source has a channel for them. Requires a transaction."""
        if self.framework is not None:
            journal.add_notices(notices)

    def notify_version(self, recorder: Recorder, document: Resource, version: str) -> None:
        """Insert a notice of a document unless its last notice had the same version.

        This is for documents that are often rewritten unchanged. `document` must not have `change`
        set.
        """
        if self.framework is not None:
            recorder.run(lambda journal: journal.add_version_notice(document, version))

    def archives_link(self, kind: str) -> tuple[Link, ...]:
        """Return the link from a live document to the archive of its kind (archives §2.2)."""
        return (Link(Rel.ARCHIVES, self.uri(ARCHIVES[kind])),) if self.has_archive(kind) else ()

    def change_list(
        self, from_at: int, until_at: int | None = None, *, is_part: bool = False
    ) -> Document:
        """Return a Change List or a part, without entries (core §12); open without `until_at`."""
        index = (Link(Rel.INDEX, self.uri(CHANGE_LIST)),) if is_part else ()
        return Document(
            Capability.CHANGE_LIST,
            from_=from_microseconds(from_at),
            until=None if until_at is None else from_microseconds(until_at),
            links=(self._up, *index, *self.archives_link(Capability.CHANGE_LIST)),
        )

    def change_list_index(self, closed: list[FinishedDocument], open_from: int) -> Document:
        """Return the index of the open period, whose last part is open (core §12.2)."""
        last = Resource(self.uri(OPEN_PART), from_=from_microseconds(open_from))
        return Document(
            Capability.CHANGE_LIST,
            (*map(self.archive_entry, closed), last),
            index=True,
            from_=from_microseconds(closed[0].begin),
            links=(self._up, *self.archives_link(Capability.CHANGE_LIST)),
        )

    def resource_list(self, at: int, completed: int, parts: list[str] | None = None) -> Document:
        """Return a Resource List without its entries, or the index of its parts (core §10)."""
        instant = from_microseconds(at)
        return Document(
            Capability.RESOURCE_LIST,
            tuple(Resource(self.uri(name), at=instant) for name in parts or ()),
            index=bool(parts),
            at=instant,
            completed=from_microseconds(completed),
            links=(self._up, *self.archives_link(Capability.RESOURCE_LIST)),
        )

    def resource_list_part(self, at: int, index: str) -> Document:
        """Return a part of a Resource List with the named index, without entries (core §10.2)."""
        links = (self._up, Link(Rel.INDEX, self.uri(index)))
        return Document(Capability.RESOURCE_LIST, at=from_microseconds(at), links=links)


def _profile(name: str) -> Profile:
    try:
        return Profile(name)
    except ValueError:
        raise ConfigurationError(f"profile {name!r} is unknown; use 1.1 or 1.0") from None
