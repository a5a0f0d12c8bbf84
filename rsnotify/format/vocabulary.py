"""The names on the wire: namespaces, capabilities, relations, limits."""

from __future__ import annotations

from enum import StrEnum

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
