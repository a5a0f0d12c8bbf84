"""ResourceSync documents as immutable values, with the names and limits of the specification.

Names follow core §7. The field for `from` is `from_`, because `from` is a Python keyword.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256

from msgspec import Struct

from rsnotify.format.datetimes import Instant

SITEMAP_NS = "http://www.sitemaps.org/schemas/sitemap/0.9"
RS_NS = "http://www.openarchives.org/rs/terms/"

#: The path at which a Source publishes its Source Description (core §6.3.2).
WELL_KNOWN_PATH = "/.well-known/resourcesync"

#: Maximum number of entries and bytes of a document (core §7). Larger lists need an index.
MAX_ENTRIES = 50_000
MAX_BYTES = 50_000_000

#: Maximum size of inline content, in bytes. Destinations fetch larger content.
INLINE_LIMIT = 16_384


class Capability:
    """Values of `rs:md/@capability` (core §7, archives §3 to §6, change notification §3)."""

    DESCRIPTION = "description"
    CAPABILITY_LIST = "capabilitylist"
    RESOURCE_LIST = "resourcelist"
    CHANGE_LIST = "changelist"
    RESOURCE_DUMP = "resourcedump"
    CHANGE_DUMP = "changedump"
    RESOURCE_DUMP_MANIFEST = "resourcedump-manifest"
    CHANGE_DUMP_MANIFEST = "changedump-manifest"
    RESOURCE_LIST_ARCHIVE = "resourcelist-archive"
    CHANGE_LIST_ARCHIVE = "changelist-archive"
    RESOURCE_DUMP_ARCHIVE = "resourcedump-archive"
    CHANGE_DUMP_ARCHIVE = "changedump-archive"
    CHANGE_NOTIFICATION = "change-notification"
    FRAMEWORK_NOTIFICATION = "framework-notification"


#: The capabilities accepted for fragments: the current one, `changelist`, and that of an old draft.
FRAGMENT_CAPABILITIES = frozenset(
    {Capability.CHANGE_NOTIFICATION, Capability.CHANGE_LIST, "changelist-notification"}
)


class ChangeType(StrEnum):
    """Values of `rs:md/@change` (core §7)."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"


class Rel:
    """Relation types that rsnotify uses (core §7, §14, archives §2)."""

    ALTERNATE = "alternate"
    ARCHIVES = "archives"
    CANONICAL = "canonical"
    #: The change memory, by its name in the early draft (§3.2, §4.1).
    CHANGE_SET = "http://resourcesync.org/ns/changeset"
    COLLECTION = "collection"
    CONTENTS = "contents"
    DESCRIBED_BY = "describedby"
    DESCRIBES = "describes"
    DUPLICATE = "duplicate"
    HUB = "hub"
    INDEX = "index"
    MEMENTO = "memento"
    #: Links to notifications about a group of documents (RFC 5989 §7): the framework's channel.
    MONITOR_GROUP = "monitor-group"
    NEXT = "next"
    #: A URI, because no such relation is registered (core §14.4).
    PATCH = "http://www.openarchives.org/rs/terms/patch"
    RESOURCESYNC = "resourcesync"
    SELF = "self"
    TIMEGATE = "timegate"
    TIMEMAP = "timemap"
    #: The class of the resource (RFC 6903 §6).
    TYPE = "type"
    UP = "up"
    VIA = "via"


#: Attributes of other namespaces, as (Clark name, value) in document order.
Attributes = tuple[tuple[str, str], ...]


class Link(Struct, frozen=True, omit_defaults=True, gc=False):
    """An `rs:ln`: a related resource (core §7, §14).

    Args:
        rel: A registered relation type, or a URI.
        href: The related resource.
        pri: The priority among links with the same relation, 1 (first) to 999,999; None means last.
    """

    rel: str
    href: str
    encoding: str | None = None
    hash: str | None = None
    length: int | None = None
    modified: Instant | None = None
    path: str | None = None
    pri: int | None = None
    type: str | None = None
    attributes: Attributes = ()


class Resource(Struct, frozen=True, omit_defaults=True, gc=False):
    """An entry of a document: a `<url>` or `<sitemap>` element (core §7).

    The attributes of its `rs:md` are fields, too. Each kind of document uses some of them.

    Args:
        uri: The content of `<loc>`.
        lastmod: The content of `<lastmod>`; in a 1.0 change document, the datetime of the change.
        change: The type of change, in a change document.
        datetime: The datetime of the change, in a 1.1 change document.
        hash: Whitespace-separated `algorithm:digest` pairs.
    """

    uri: str
    lastmod: Instant | None = None
    changefreq: str | None = None
    change: ChangeType | None = None
    datetime: Instant | None = None
    at: Instant | None = None
    completed: Instant | None = None
    from_: Instant | None = None
    until: Instant | None = None
    capability: str | None = None
    encoding: str | None = None
    hash: str | None = None
    length: int | None = None
    path: str | None = None
    type: str | None = None
    links: tuple[Link, ...] = ()
    attributes: Attributes = ()

    @classmethod
    def of(
        cls,
        uri: str,
        content: bytes,
        *,
        type: str | None = None,
        change: ChangeType | None = None,
        lastmod: Instant | None = None,
        links: Iterable[Link] = (),
    ) -> Resource:
        """Return a resource with the length and SHA-256 of its content.

        Resource.of("https://source.example/data/res1", b"<a> <b> <c> .", type="text/turtle")
        """
        digest = sha256(content).hexdigest()
        return cls(
            uri,
            lastmod,
            change=change,
            hash=f"sha-256:{digest}",
            length=len(content),
            type=type,
            links=tuple(links),
        )

    @property
    def changed_at(self) -> Instant | None:
        """The datetime of the change: `datetime` (1.1) or, if absent, `lastmod` (1.0)."""
        return self.datetime or self.lastmod


class Document(Struct, frozen=True, omit_defaults=True):
    """A ResourceSync document: a `urlset`, or a `sitemapindex` if `index` is true.

    Args:
        capability: The `rs:md/@capability`; None for a plain Sitemap, which has no `rs:md`.
        resources: The `<url>` or `<sitemap>` children, in document order.
        index: Whether the root element is `sitemapindex`.
    """

    capability: str | None
    resources: tuple[Resource, ...] = ()
    index: bool = False
    at: Instant | None = None
    completed: Instant | None = None
    from_: Instant | None = None
    until: Instant | None = None
    links: tuple[Link, ...] = ()
    attributes: Attributes = ()

    @property
    def changed_at(self) -> Instant | None:
        """The datetime of the last change listed in the document."""
        return self.resources[-1].changed_at if self.resources else None

    def link(self, rel: str) -> str | None:
        """Return the target of the first link with this relation; None if there is none."""
        return next((link.href for link in self.links if link.rel == rel), None)
