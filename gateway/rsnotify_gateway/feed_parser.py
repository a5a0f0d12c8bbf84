"""Parses Atom and RSS with feedparser: bytes in, entries out."""

from __future__ import annotations

import re
from calendar import timegm
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any
from xml.sax import SAXException

from msgspec import Struct

from rsnotify.errors import ConfigurationError, MalformedDocument, WrongDocument
from rsnotify.format.datetimes import Instant
from rsnotify.format.vocabulary import Rel

_ENTITY = "<!ENTITY"
_ENTITY_MARKS = [
    _ENTITY.encode(name) for name in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
]
_ENCODING = re.compile(rb"""encoding\s*=\s*["']([\w.-]+)""", re.ASCII)
#: The bytes in which an XML declaration is looked for.
_PROLOG = 1_000
#: Links to older entries (RFC 5005 §3, §4).
_OLDER = ("next", "prev-archive")


class FeedEntry(Struct, frozen=True):
    """An entry.

    Args:
        digest: A text that differs whenever the entry does.
    """

    uri: str
    updated: Instant | None
    digest: str


class ParsedFeed(Struct, frozen=True):
    """A feed, or a page of one.

    Args:
        older: The URI of the page with older entries, if there is one.
        nameless: The number of entries without a URI.
        has_hub: Whether it names a hub (WebSub §4).
    """

    entries: tuple[FeedEntry, ...]
    older: str | None
    nameless: int
    has_hub: bool


def parse_feed(data: bytes, uri: str) -> ParsedFeed:
    """Parse a feed at a URI.

    Raises:
        ConfigurationError: feedparser is not installed.
        DocumentError: It is no feed, or is not well-formed.
    """
    try:
        import feedparser
    except ImportError:
        raise ConfigurationError(
            'feeds need feedparser; install it with pip install "rsnotify[gateway]"'
        ) from None
    if _declares_entities(data):
        raise MalformedDocument("it declares entities, which is refused", source=uri)
    fields = {"content-location": uri}
    try:
        found = feedparser.parse(data, sanitize_html=False, response_headers=fields)
    except Exception as error:  # of any kind, if the feed is not well-formed
        raise MalformedDocument(f"it cannot be parsed: {error}", source=uri) from error
    if isinstance(found.get("bozo_exception"), SAXException):
        reason = f"not well-formed XML: {found['bozo_exception']}"
        raise MalformedDocument(reason, source=uri)
    if not found.get("version"):
        raise WrongDocument("it is neither Atom nor RSS", source=uri)
    links = {link.get("rel"): link.get("href") for link in found.feed.get("links", ())}
    entries = [_entry(entry) for entry in found.entries]
    known = tuple(entry for entry in entries if entry is not None)
    older = next((links[rel] for rel in _OLDER if links.get(rel)), None)
    return ParsedFeed(known, older, len(entries) - len(known), Rel.HUB in links)


def _declares_entities(data: bytes) -> bool:
    """Return whether a feed declares entities, in an encoding that it may be in."""
    if any(mark in data for mark in _ENTITY_MARKS):
        return True
    found = _ENCODING.search(data[:_PROLOG])
    try:
        return found is not None and _ENTITY in data.decode(found[1].decode(), "replace")
    except (LookupError, ValueError):  # then feedparser does not read it in this encoding
        return False


def _entry(entry: Any) -> FeedEntry | None:
    uri = entry.get("link") or entry.get("id") or ""
    if not uri.startswith(("http://", "https://")):
        return None
    # Not by `get`, which returns the date of publication for a missing `updated`, and warns.
    dates = [name for name in ("updated", "published") if name in entry]
    updated = next((entry[f"{name}_parsed"] for name in dates), None)
    contents = [part.get("value", "") for part in entry.get("content", ())]
    files = [one.get(key, "") for one in entry.get("enclosures", ()) for key in ("href", "length")]
    texts = [*(entry[name] for name in dates), entry.get("title", ""), entry.get("summary", "")]
    digest = blake2b("\0".join([*texts, *contents, *files]).encode(), digest_size=16).hexdigest()
    when = None if updated is None else datetime.fromtimestamp(timegm(updated), UTC)
    return FeedEntry(uri, when, digest)
