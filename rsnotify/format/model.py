"""ResourceSync documents as values: frozen, comparable, without behaviour.

Here are also the names on the wire (namespaces, capabilities, relations), and the limits beyond
which the reader refuses a document. Names follow core §7. `from` is a keyword of Python, so the
field is `from_`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256

from msgspec import Struct

from rsnotify.format.datetimes import Instant

SITEMAP_NS = "http://www.sitemaps.org/schemas/sitemap/0.9"
RS_NS = "http://www.openarchives.org/rs/terms/"

#: Where a Source publishes its Source Description (core §6.3.2).
WELL_KNOWN_PATH = "/.well-known/resourcesync"

#: The limits of core §7, beyond which documents are grouped by an index.
MAX_ENTRIES = 50_000
MAX_BYTES = 50_000_000

#: The largest inline content, in bytes; a Destination fetches larger resources.
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


#: The capabilities of fragments: ours, that of a Change List, and that of an older draft.
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
    #: The change memory of the early draft (§3.2, §4.1), by the name it had there.
    CHANGE_SET = "http://resourcesync.org/ns/changeset"
    COLLECTION = "collection"
    CONTENTS = "contents"
    DESCRIBED_BY = "describedby"
    DESCRIBES = "describes"
    DUPLICATE = "duplicate"
    HUB = "hub"
    INDEX = "index"
    MEMENTO = "memento"
    #: Leads to notifications about a group of documents (RFC 5989 §7): the framework's channel.
    MONITOR_GROUP = "monitor-group"
    NEXT = "next"
    #: A URI, since there is no registered relation (core §14.4).
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
        pri: Priority among links of one relation, 1 (first) to 999,999; None means last.
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
    """A `<url>` or `<sitemap>`: a resource that plays a role in ResourceSync (core §7).

    The attributes of its `rs:md` are fields beside `lastmod`; each kind of document uses some.

    Args:
        uri: `<loc>`.
        lastmod: `<lastmod>`; in a 1.0 change document, the datetime of the change.
        change: The type of change, in a change document.
        datetime: The datetime of the change, in a 1.1 change document.
        hash: White-space separated `algorithm:digest` pairs.
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
        """Return the resource with the length and the SHA-256 of this content.

        Resource.of("https://source.example/data/res1", b"<a> <b> <c> .", type="text/turtle")
        """
        digest = sha256(content, usedforsecurity=False).hexdigest()
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
        """The datetime of the change: 1.1's `datetime`, else 1.0's `lastmod`."""
        return self.datetime or self.lastmod


class Document(Struct, frozen=True, omit_defaults=True):
    """A whole ResourceSync document: a `urlset`, or a `sitemapindex` when `index` is true.

    Args:
        capability: `rs:md/@capability`; None in a plain Sitemap, which has no `rs:md`.
        resources: The `<url>` or `<sitemap>` children, in document order.
        index: Whether the root is `sitemapindex`.
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
        """The datetime of the last change in the document."""
        return self.resources[-1].changed_at if self.resources else None

    def link(self, rel: str) -> str | None:
        """Return the target of the first link with this relation; None if there is none."""
        return next((link.href for link in self.links if link.rel == rel), None)


class DocumentLimits(Struct, frozen=True):
    """The limits beyond which the reader refuses a document; they protect memory and time.

    They are several times those of the specification (50,000 entries and 50 MB, core §7), so that
    a list which is only a little too long can still be read.

    Args:
        document_bytes: Bytes of XML, after decompression.
        entries: `<url>` or `<sitemap>` elements.
        entry_length: Characters of all texts and attributes within one entry, and outside of
            all entries.
        entry_elements: Elements of any kind within one entry, and outside of all entries.
        uri_length: Characters of a URI or another text, except a `data:` URI.
        inline_length: Characters of a `data:` URI in a link.
        links: `rs:ln` elements in one entry, or outside of all entries.
        depth: Levels of elements below one that is ignored.
    """

    document_bytes: int = 100_000_000
    entries: int = 200_000
    entry_length: int = 4_000_000
    entry_elements: int = 10_000
    uri_length: int = 8_192
    inline_length: int = 1_000_000
    links: int = 1_000
    depth: int = 100


DEFAULT_LIMITS = DocumentLimits()
