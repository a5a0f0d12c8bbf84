"""Atom and RSS, parsed by feedparser (`pip install "rsnotify[feeds]"`).

Each entry is a resource, identified by its link.

- A change is detected if an entry's date, title, summary, content or enclosures change while the
  entry is in the feed.
- Deletions are not detected, because an entry also leaves a feed when newer ones are added.
- A feed shows its newest entries first. If its older half has no entry that is unchanged since the
  previous check, entries may have been missed in between. If the feed has pages of older entries
  (RFC 5005), the adapter reads them until two readings agree; otherwise it reports the gap. In a
  feed with a different order, changes are detected only on the first page.
- If a feed names a hub, the gateway subscribes to it (WebSub). A delivery only triggers a check of
  the feed; its content is not trusted. The feed is polled as well, in case the hub fails.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
import re
import time
from calendar import timegm
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from io import BytesIO
from typing import Any
from xml.parsers import expat
from xml.sax import SAXException

import feedparser
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import (
    MalformedDocument,
    TooLarge,
    Unavailable,
    WrongDocument,
    without_credentials,
)
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import Rel, Resource
from rsnotify.format.xml_parser import expat_parser
from rsnotify_gateway.adapter import (
    KnownEntries,
    OriginBatch,
    OriginCursor,
    OriginTerms,
    OriginType,
    SeenEntry,
    origin_uri,
)
from rsnotify_gateway.change_detection import usable_uri
from rsnotify_gateway.client import OriginClient
from rsnotify_subscriber.fetching.credentials import without_login
from rsnotify_subscriber.push.websub_callbacks import Callbacks
from rsnotify_subscriber.push.websub_transport import WebSubTransport

logger = logging.getLogger("rsnotify.gateway")

#: An XML declaration with an encoding, and the number of bytes to search for it.
_DECLARATION = re.compile(
    rb"""<\?xml\s[^>]{0,200}?encoding\s{0,20}=\s{0,20}["']([A-Za-z0-9._:-]{1,40})["']"""
)
_DECLARATION_BYTES = 1_000
#: The first bytes of documents with a byte order mark, or in an encoding that does not extend
#: ASCII (XML §F.1). Longer marks come first.
_MARKS = (
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF8, "utf-8"),
    ("<".encode("utf-32-be"), "utf-32-be"),
    ("<".encode("utf-32-le"), "utf-32-le"),
    ("<".encode("utf-16-be"), "utf-16-be"),
    ("<".encode("utf-16-le"), "utf-16-le"),
)
#: Encodings that take quadratic time to decode.
_SLOW_ENCODINGS = frozenset({"idna", "punycode"})
#: Encodings to try if the declared encoding is missing or wrong.
_LIKELY_ENCODINGS = ("utf-8", "windows-1252")
#: Everything before the root element. All repetitions are possessive, so matching is linear.
_PROLOGUE = re.compile(
    rb"(?>[ \t\r\n]++|<\?(?>[^?]++|\?(?!>))*+\?>|<!--(?>[^-]++|-(?!->))*+-->"
    rb"|<!DOCTYPE[^<>\[\]]*+>)*+"
)
_ROOT = re.compile(rb"<[A-Za-z_]")
_MAX_PROLOGUE_BYTES = 100_000
#: Limits on what takes feedparser quadratic time, or time for each element: nesting depth,
#: namespaces, attributes of an element, characters in a base URI, and characters in a word of a
#: person's name.
_MAX_DEPTH, _MAX_NAMESPACES, _MAX_ATTRIBUTES, _MAX_BASE, _MAX_WORD = 200, 100, 100, 2_000, 500
_BASES = ("http://www.w3.org/XML/1998/namespace base", "base")
#: Elements in which feedparser searches for a person's email address.
_PERSONS = frozenset(
    {"author", "contributor", "creator", "email", "managingeditor", "name", "owner", "publisher"}
    | {"webmaster"}
)
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
#: The relations of links to older entries (RFC 5005 §3, §4).
_OLDER = ("next", "prev-archive")


class FeedEntry(Struct, frozen=True):
    """An entry of a feed, with a hash of its dates, texts and enclosures."""

    uri: str
    updated: Instant | None
    digest: str


class ParsedFeed(Struct, frozen=True):
    """A feed, or one page of it, and the URI of the page with older entries.

    `nameless` is the number of entries without a URI.
    """

    entries: tuple[FeedEntry, ...]
    older: str | None
    nameless: int
    has_hub: bool


def parse_feed(data: bytes, uri: str) -> ParsedFeed:
    """Parse a feed, or a page of a feed, that was read from `uri`.

    Raises:
        DocumentError: The data is not a feed, is not well-formed, or exceeds the limits.
    """
    content = b"<?xml version='1.0' encoding='utf-8'?>\n" + _root(data, uri)
    _check_structure(content, uri)
    fields = {"content-location": uri, "content-type": "application/xml; charset=utf-8"}
    try:
        # Never pass the bytes themselves: feedparser might open them as a file name.
        found = feedparser.parse(BytesIO(content), sanitize_html=False, response_headers=fields)
    except Exception as error:  # a malformed feed can raise any exception
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


def _root(data: bytes, uri: str) -> bytes:
    """Return the root element in UTF-8, without the prologue.

    feedparser takes at least quadratic time to process the encoding and the prologue. A feed does
    not need a prologue.
    """
    content = _decoded(data, uri).encode("utf-8", "replace")
    found = _PROLOGUE.match(content)
    assert found is not None  # the pattern also matches an empty string
    end = found.end()
    if content.startswith(b"<!DOCTYPE", end):
        raise MalformedDocument("it declares entities, which is not accepted", source=uri)
    if end > _MAX_PROLOGUE_BYTES:
        reason = f"more than {_MAX_PROLOGUE_BYTES} bytes precede its root element"
        raise TooLarge(reason, source=uri)
    if _ROOT.match(content, end) is None:
        raise WrongDocument("it is neither Atom nor RSS", source=uri)
    return content[end:]


def _decoded(data: bytes, uri: str) -> str:
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    if encoding is None and (declared := _DECLARATION.match(data[:_DECLARATION_BYTES].lstrip())):
        encoding = declared[1].decode()
    for name in filter(None, (encoding, *_LIKELY_ENCODINGS)):
        with suppress(LookupError, ValueError):  # the encoding is unknown or wrong
            if codecs.lookup(name).name not in _SLOW_ENCODINGS:
                return data.decode(name).removeprefix("\ufeff")
    raise MalformedDocument("its encoding is unknown", source=uri)


def _check_structure(content: bytes, uri: str) -> None:
    """Raise an error if the content is not well-formed, or would take feedparser too long."""
    parser = expat_parser(" ")
    structure = _Structure(uri)
    parser.StartElementHandler = structure.start
    parser.EndElementHandler = structure.end
    parser.CharacterDataHandler = structure.data
    parser.StartNamespaceDeclHandler = structure.declare
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise MalformedDocument(f"not well-formed XML: {error}", source=uri) from None


class _Structure:
    """Counts the structures that slow feedparser down. Raises `TooLarge` above the limits."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._depth = 0
        self._namespaces: set[tuple[str | None, str]] = set()
        #: The depth of the outermost element about a person, and the text in it.
        self._person: int | None = None
        self._name: list[str] = []

    def _limit(self, count: int, most: int, subject: str, units: str) -> None:
        if count > most:
            raise TooLarge(f"{subject} has more than {most} {units}", source=self._uri)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._limit(self._depth, _MAX_DEPTH, "it", "levels of elements")
        self._limit(len(attributes), _MAX_ATTRIBUTES, "an element", "attributes")
        for base in _BASES:
            self._limit(len(attributes.get(base, "")), _MAX_BASE, "a base URI", "characters")
        if self._person is None and name.rpartition(" ")[2].lower() in _PERSONS:
            self._person, self._name = self._depth, []

    def end(self, name: str) -> None:
        if self._depth == self._person:
            self._person = None
            longest = max(map(len, _WORD.findall("".join(self._name))), default=0)
            self._limit(longest, _MAX_WORD, "a word in a name", "characters")
        self._depth -= 1

    def data(self, text: str) -> None:
        if self._person is not None:
            self._name.append(text)

    def declare(self, prefix: str | None, namespace: str) -> None:
        self._namespaces.add((prefix, namespace))
        self._limit(len(self._namespaces), _MAX_NAMESPACES, "it", "namespaces")


def _entry(entry: Any) -> FeedEntry | None:
    uri = entry.get("link") or entry.get("id") or ""
    if not uri.startswith(("http://", "https://")):
        return None
    # Without `get`, which warns and returns the publication date if `updated` is missing.
    dates = [name for name in ("updated", "published") if name in entry]
    updated = next((entry[f"{name}_parsed"] for name in dates), None)
    contents = [part.get("value", "") for part in entry.get("content", ())]
    files = [one.get(key, "") for one in entry.get("enclosures", ()) for key in ("href", "length")]
    texts = [*(entry[name] for name in dates), entry.get("title", ""), entry.get("summary", "")]
    digest = blake2b("\0".join([*texts, *contents, *files]).encode(), digest_size=16).hexdigest()
    return FeedEntry(without_login(uri), None if updated is None else _instant(updated), digest)


def _instant(parsed: time.struct_time) -> Instant | None:
    try:
        return datetime.fromtimestamp(timegm(parsed), UTC)
    except (ValueError, OverflowError):  # for example in the year 0
        return None


_MAX_BYTES = 20_000_000
_MAX_PAGES = 1_000
#: Maximum number of times several pages are reread if they change during reading.
_MAX_ROUNDS = 5


class FeedCursor(OriginCursor, omit_defaults=True):
    """The content of a feed at the last check.

    Args:
        entries: A digest of each entry.
        condition: The header field for a conditional request.
        gap: When a check last found that entries may have been missed.
        nameless: The number of entries without a URI.
        has_hub: Whether the feed names a WebSub hub.
    """

    entries: tuple[str, ...] = ()
    condition: tuple[str, str] | None = None
    gap: str | None = None
    nameless: int = 0
    has_hub: bool = False


class FeedAdapter:
    """Reads a feed, whose WebSub hub delivers to `callbacks`."""

    def __init__(self, url: str, client: OriginClient, callbacks: Callbacks) -> None:
        self._url = url
        self._client = client
        self._websub = WebSubTransport(url, (), client.sessions, callbacks)
        self._has_hub = asyncio.Event()
        self._last = FeedCursor()

    def terms(self) -> OriginTerms:
        limits = ["Changes are detected only while an entry is in the feed."]
        if self._last.gap is not None:
            limits.append(f"Entries may have been missed before {self._last.gap}.")
        if self._last.nameless:
            limits.append(f"Skipped entries without a URI: {self._last.nameless:,}.")
        return OriginTerms("Atom or RSS", "second", "Deletions are not detected.", tuple(limits))

    async def await_announcements(self, check_soon: Callable[[], None]) -> None:
        """Wait until the feed names a hub, and subscribe to it."""
        await self._has_hub.wait()
        await self._websub.receive(None, _Announcements(check_soon))

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Yield the entries of the feed, and of older pages up to the first with a known entry."""
        self._last = before = FeedCursor.decoded(cursor)
        if before.has_hub:
            self._has_hub.set()
        feed, condition = await self._read(self._url, before.condition)
        if feed is None:
            yield OriginBatch()
            return
        expected = set(before.entries)
        pages = await self._stable_pages(feed, expected)
        gap = before.gap
        is_whole = len(pages) > 1 and pages[-1].older is None
        is_cut_off = len(pages) >= _MAX_PAGES
        if (expected or is_cut_off) and not is_whole and not _joins(pages[-1], expected):
            gap = format_datetime(datetime.fromtimestamp(time.time(), UTC))
            many = f"has more than {_MAX_PAGES:,} pages"
            reason = many if is_cut_off else "has no entry from the last check"
            logger.warning("%s %s; some entries may be missed", self._url, reason)
        if len(pages) > 1:
            condition = None  # the first page was reread, and may have changed
        listed: set[str] = set()
        found = [_entries(page, listed) for page in pages]
        for entries in reversed(found[1:]):  # oldest first
            yield OriginBatch(entries)
        newest = tuple(map(_digest, pages[0].entries))
        self._last = FeedCursor(newest, condition, gap, pages[0].nameless, feed.has_hub)
        if feed.has_hub:
            self._has_hub.set()
        yield OriginBatch(found[0], self._last.encoded())

    async def _stable_pages(self, newest: ParsedFeed, expected: set[str]) -> list[ParsedFeed]:
        """Return the newest page, and older pages up to the first with an expected entry.

        Several pages are read until two readings agree, because entries move between pages.
        """
        pages = await self._read_pages(newest, expected)
        for _ in range(_MAX_ROUNDS):
            if len(pages) == 1 or len(pages) >= _MAX_PAGES:
                return pages
            first, _ = await self._read(self._url, None)
            assert first is not None  # the request was not conditional
            before, pages = pages, await self._read_pages(first, expected)
            if pages == before:
                return pages
        raise Unavailable(self._url, "its pages keep changing during reading")

    async def _read_pages(self, newest: ParsedFeed, expected: set[str]) -> list[ParsedFeed]:
        pages, read = [newest], {self._url}
        while not _joins(pages[-1], expected) and (older := pages[-1].older) is not None:
            uri = origin_uri(self._url, older)
            if uri in read or len(read) == _MAX_PAGES:
                break
            read.add(uri)
            page, _ = await self._read(uri, None)
            assert page is not None  # the request was not conditional
            pages.append(page)
        return pages

    async def _read(
        self, uri: str, condition: tuple[str, str] | None
    ) -> tuple[ParsedFeed | None, tuple[str, str] | None]:
        data, answer = await self._client.content(uri, _MAX_BYTES, condition)
        if answer is None:
            return None, condition
        found = await asyncio.to_thread(parse_feed, data, uri)
        if any(relation == Rel.HUB for relation, _ in answer.links):
            found = replace(found, has_hub=True)
        return found, answer.condition


class _Announcements:
    """Triggers a check of a feed for each delivery from its hub, and for each gap."""

    def __init__(self, check_soon: Callable[[], None]) -> None:
        self._check_soon = check_soon

    def up(self, hub: str | None = None) -> None:
        logger.info("%s announces the changes of a feed", without_credentials(hub or "a hub"))

    def audience(self, listeners: int) -> None:
        pass

    def gap(self) -> None:
        self._check_soon()

    def fragment(self, document: bytes) -> None:
        self._check_soon()


def _joins(page: ParsedFeed, expected: set[str]) -> bool:
    """Return whether a page has an entry that is unchanged since the last check.

    Only the older half of the page counts, because entries may be pinned to the top of a feed.
    """
    older = page.entries[len(page.entries) // 2 :]
    return not expected.isdisjoint(map(_digest, older))


def _digest(entry: FeedEntry) -> str:
    return blake2b(f"{entry.uri} {entry.digest}".encode(), digest_size=8).hexdigest()


def _entries(page: ParsedFeed, listed: set[str]) -> tuple[SeenEntry, ...]:
    """Return the entries of a page that are not in `listed`, oldest first. Add them to `listed`.

    If a feed lists several versions of a resource, the first one is the current version.
    """
    found = []
    for entry in page.entries:
        uri = usable_uri(entry.uri)
        if uri is not None and uri not in listed:
            listed.add(uri)
            found.append(SeenEntry(Resource(uri, lastmod=entry.updated), entry.digest))
    return tuple(reversed(found))


FEED = OriginType(
    lambda origin, client, callbacks: FeedAdapter(without_login(origin.url), client, callbacks)
)
