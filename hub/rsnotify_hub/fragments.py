"""Fragments in the hub: the bytes from the publisher, and the interval that they cover.

Theory of operation. A fragment covers `from` (exclusive) to `until` (inclusive). The hub does not
require contiguous fragments, because a Destination detects a gap itself. It refuses fragments that
would corrupt a Destination's copy: fragments with entries outside the interval or out of order. A
heartbeat (a fragment without entries) only states that nothing changed, so a fragment that covers
the heartbeat at the end of a log replaces it. For a subscriber that lags, the hub merges contiguous
fragments.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from enum import Enum, auto
from functools import lru_cache

from msgspec import Struct

from rsnotify.errors import InvalidDocument, MalformedDocument
from rsnotify.format.coverage import fragment_coverage
from rsnotify.format.datetimes import Instant, just_before
from rsnotify.format.model import Capability, Document, Link, Rel
from rsnotify.format.reader import DEFAULT_LIMITS, DocumentLimits, read_document
from rsnotify.format.writer import write_document

#: The Content-Type of a merged fragment.
MERGED_CONTENT_TYPE = "application/xml"

#: Stored fragments need no limits, because the hub checked them on arrival.
_NO_LIMITS = DocumentLimits(
    document_bytes=sys.maxsize,
    entries=sys.maxsize,
    entry_length=sys.maxsize,
    entry_elements=sys.maxsize,
    links=sys.maxsize,
)

_DECLARED_ENCODING = re.compile(rb"""\s*<\?xml[^>]*?\sencoding\s*=\s*["']([^"']*)["']""")

#: Matches every Framework Notification, and few other documents.
_MAYBE_FRAMEWORK = re.compile(rb"""capability\s*=\s*["'](?:\s*framework-notification|[^"'&]*&)""")

#: Maximum size of a fragment that stays parsed for later merges, in bytes.
_MAX_CACHED_BYTES = 2048


class FragmentKind(Enum):
    """What a fragment contains. A log contains fragments of one kind."""

    #: Changes to resources.
    CHANGES = auto()
    #: Changes to documents: a Framework Notification.
    DOCUMENTS = auto()
    #: The whole content of a topic that is not about changes (`intake`), received at `until`. A
    #: newer content replaces it.
    WHOLE = auto()


class Fragment(Struct, frozen=True):
    """A fragment as it was sent, and what the hub needs to know about its content.

    Args:
        body: The bytes from the publisher, unchanged.
        from_: The start of the interval (exclusive), if the fragment states it.
        until: The end of the interval, or the datetime of the last change.
        begins: `from_`, or the latest instant that is certainly before the first change.
        heartbeat: Whether the fragment has no entries.
    """

    body: bytes
    content_type: str
    from_: Instant | None
    until: Instant
    begins: Instant
    heartbeat: bool
    kind: FragmentKind = FragmentKind.CHANGES


def read_fragment(
    body: bytes, *, content_type: str = "application/xml", limits: DocumentLimits = DEFAULT_LIMITS
) -> Fragment:
    """Read and check a Change Notification, a Change List or a Framework Notification.

    Raises:
        DocumentError: The body is not a fragment, or would corrupt a Destination's copy.
    """
    _check_encoding(body)
    return fragment_from(read_document(body, limits=limits), body, content_type)


def fragment_from(document: Document, body: bytes, content_type: str) -> Fragment:
    """Check the document that was parsed from `body`, and return it as a fragment."""
    coverage = fragment_coverage(document, allow_framework=True)
    until = coverage.until
    if until is None:
        raise InvalidDocument("it has neither an until nor the datetime of a last change")
    if not coverage.changes and coverage.from_ is None:
        raise InvalidDocument("it has neither entries nor a from")
    first = coverage.changes[0].at if coverage.changes else until
    return Fragment(
        body=body,
        content_type=check_content_type(content_type),
        from_=coverage.from_,
        until=until,
        begins=coverage.from_ or just_before(first),
        heartbeat=not coverage.changes,
        kind=_kind_of(document),
    )


def check_content_type(content_type: str) -> str:
    if not (content_type.isascii() and content_type.isprintable()):
        raise InvalidDocument("its Content-Type is not printable ASCII")
    return content_type


def _check_encoding(body: bytes) -> None:
    # The Sitemap protocol requires UTF-8, and WebSocket text frames carry the body unchanged.
    declared = _DECLARED_ENCODING.match(body[:200].removeprefix(b"\xef\xbb\xbf"))
    if (declared and declared.group(1).lower() not in (b"utf-8", b"us-ascii")) or not is_utf_8(
        body
    ):
        raise MalformedDocument("its encoding is not UTF-8")


def is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def stored_fragment(
    body: bytes,
    content_type: str,
    from_: Instant | None,
    until: Instant,
    begins: Instant,
    *,
    heartbeat: bool,
    whole: bool,
) -> Fragment:
    """Build a fragment from its stored fields."""
    kind = FragmentKind.WHOLE if whole else FragmentKind.CHANGES
    # Stores do not keep the kind. Parse only a fragment that may be a Framework Notification.
    if not whole and _MAYBE_FRAMEWORK.search(body):
        kind = _kind_of(_read_cached(body))
    return Fragment(body, content_type, from_, until, begins, heartbeat, kind)


def read_stored(body: bytes) -> Document:
    return read_document(body, limits=_NO_LIMITS)


def _kind_of(document: Document) -> FragmentKind:
    if document.capability == Capability.FRAMEWORK_NOTIFICATION:
        return FragmentKind.DOCUMENTS
    return FragmentKind.CHANGES


def notification_capability(document: Document) -> str:
    """Return the capability of a notification with entries of a document."""
    if _kind_of(document) is FragmentKind.DOCUMENTS:
        return Capability.FRAMEWORK_NOTIFICATION
    return Capability.CHANGE_NOTIFICATION


def up_links(document: Document) -> tuple[Link, ...]:
    """Return the links to the Capability List."""
    return tuple(link for link in document.links if link.rel == Rel.UP)


class Interval(Struct, frozen=True):
    from_: Instant
    until: Instant


def is_later(fragment: Fragment, instant: Instant) -> bool:
    """Return whether a fragment may have changes that a copy lacks whose T is `instant`.

    A fragment that begins and ends at that instant has late changes, from a Source whose datetimes
    have whole seconds.
    """
    if fragment.until == fragment.from_ == instant:
        return not fragment.heartbeat
    return fragment.until > instant


def covers_interval(fragment: Fragment, interval: Interval) -> bool:
    if fragment.from_ is None:
        return False
    return fragment.from_ <= interval.from_ and fragment.until >= interval.until


def heartbeat_interval(fragment: Fragment) -> Interval | None:
    if fragment.heartbeat and fragment.from_ is not None:
        return Interval(fragment.from_, fragment.until)
    return None


def count_chained(fragments: Sequence[Fragment], *, max_bytes: int) -> int:
    """Return the number of leading fragments that can be merged: contiguous and of one kind."""
    if fragments[0].from_ is None:
        return 1
    size = len(fragments[0].body)
    for number in range(1, len(fragments)):
        size += len(fragments[number].body)
        if fragments[number].from_ != fragments[number - 1].until or size > max_bytes:
            return number
        # A log written by an earlier version may contain two kinds.
        if fragments[number].kind is not fragments[0].kind:
            return number
    return len(fragments)


def merge_fragments(fragments: Sequence[Fragment]) -> bytes:
    """Merge contiguous fragments (`count_chained`) into one.

    The result has the last fragment's links and attributes of other namespaces, because these
    describe the whole set.
    """
    bodies = tuple(fragment.body for fragment in fragments)
    return _merge(bodies, fragments[0].from_, fragments[-1].until)


def _read_cached(body: bytes) -> Document:
    return _read_small(body) if len(body) <= _MAX_CACHED_BYTES else read_stored(body)


# Each retry sends the same fragments again, plus some newer ones, and parsing takes 90% of the time
# of a merge.
_read_small = lru_cache(maxsize=512)(read_stored)


# Many subscribers may lag by the same fragments, for example because they are equally slow.
@lru_cache(maxsize=16)
def _merge(bodies: tuple[bytes, ...], from_: Instant | None, until: Instant) -> bytes:
    documents = [_read_cached(body) for body in bodies]
    return write_document(
        Document(
            capability=notification_capability(documents[-1]),
            resources=tuple(entry for document in documents for entry in document.resources),
            from_=from_,
            until=until,
            links=documents[-1].links,
            attributes=documents[-1].attributes,
        )
    )
