"""Atom and RSS, parsed by feedparser (`pip install "rsnotify[gateway]"`).

Each entry is a resource, by its link.

- A change is seen if the date, title, summary, content or enclosures of an entry change, while the
  feed has the entry.
- A deletion is never seen: an entry leaves a feed as newer ones come. So nothing is ever deleted.
- A feed shows its newest entries first. If its older half has none that was there, unchanged, in
  the check before, entries may have been missed between the two. Then pages of older entries are
  read, if it has any (RFC 5005), until two readings agree; otherwise the gap is reported. In a feed
  of another order, changes on other pages than the first are not seen.
- A feed that names a hub is subscribed to (WebSub). What the hub delivers is a reason to read the
  feed, and proves nothing. The feed is polled as well, in case the hub fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from hashlib import blake2b

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import Unavailable, without_credentials
from rsnotify.format.datetimes import format_datetime
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import Rel
from rsnotify_gateway.adapter import KnownEntries, OriginBatch, OriginTerms, SeenEntry, origin_uri
from rsnotify_gateway.client import OriginClient
from rsnotify_gateway.feed_parser import FeedEntry, ParsedFeed, parse_feed
from rsnotify_gateway.reconciling import usable_uri
from rsnotify_subscriber.push.websub.callbacks import Callbacks
from rsnotify_subscriber.push.websub.transport import WebSubTransport

_log = logging.getLogger("rsnotify.gateway")
_MOST_BYTES = 20_000_000
_MOST_PAGES = 1_000
_DISJOINT = "has no entry of the last check"
#: How often several pages are read again, if they change meanwhile.
_MOST_ROUNDS = 5


class FeedCursor(Struct, omit_defaults=True):
    """What a feed had in the last check.

    Args:
        entries: A digest of each entry.
        condition: The header field of a conditional request.
        gap: The last time at which entries may have been missed.
        nameless: The number of entries without a URI.
        has_hub: Whether the feed names a hub.
    """

    entries: tuple[str, ...] = ()
    condition: tuple[str, str] | None = None
    gap: str | None = None
    nameless: int = 0
    has_hub: bool = False


_decode = msgspec.json.Decoder(FeedCursor).decode


class FeedAdapter:
    """Reads a feed.

    Args:
        url: The URL of the feed.
        callbacks: Where hubs reach us.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        url: str,
        client: OriginClient,
        callbacks: Callbacks,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._client = client
        self._websub = WebSubTransport(url, (), client.sessions, callbacks)
        self._has_hub = asyncio.Event()
        self._clock = clock
        self._last = FeedCursor()

    def terms(self) -> OriginTerms:
        """Return what a feed shows, and whether entries may have been missed."""
        limits = ["A change is seen only while the feed has the entry."]
        if self._last.gap is not None:
            limits.append(f"Entries may have been missed before {self._last.gap}.")
        if self._last.nameless:
            limits.append(f"{self._last.nameless:,} entries have no URI and are left out.")
        return OriginTerms("Atom or RSS", "second", "A deletion is never seen.", tuple(limits))

    async def await_announcements(self, check_soon: Callable[[], None]) -> None:
        """Subscribe at the hub that the feed names, once it does."""
        await self._has_hub.wait()
        await self._websub.receive(None, _Announcements(check_soon))

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Check the feed; yield its entries, and older ones until one is known."""
        before = FeedCursor() if cursor is None else _decode(cursor)
        self._last = before
        if before.has_hub:
            self._has_hub.set()
        feed, condition = await self._read(self._url, before.condition)
        if feed is None:
            yield OriginBatch()
            return
        expected = set(before.entries)
        pages = await self._pages(feed, expected)
        gap = before.gap
        is_whole = len(pages) > 1 and pages[-1].older is None
        is_cut_off = len(pages) >= _MOST_PAGES
        if (expected or is_cut_off) and not is_whole and not _joins(pages[-1], expected):
            gap = format_datetime(datetime.fromtimestamp(self._clock(), UTC))
            reason = f"has more than {_MOST_PAGES:,} pages" if is_cut_off else _DISJOINT
            _log.warning("%s %s; some entries may be missed", self._url, reason)
        if len(pages) > 1:
            condition = None  # the first page may be another one than that of the condition
        listed: set[str] = set()
        found = [_entries(page, listed) for page in pages]
        for entries in reversed(found[1:]):  # oldest first
            yield OriginBatch(entries)
        newest = tuple(map(_digest, pages[0].entries))
        self._last = FeedCursor(newest, condition, gap, pages[0].nameless, feed.has_hub)
        if feed.has_hub:
            self._has_hub.set()
        yield OriginBatch(found[0], msgspec.json.encode(self._last).decode())

    async def _pages(self, newest: ParsedFeed, expected: set[str]) -> list[ParsedFeed]:
        """Return the newest page, and older ones until an entry is expected.

        Several pages are read until two readings agree, since entries move between pages.
        """
        pages = await self._walk(newest, expected)
        for _ in range(_MOST_ROUNDS):
            if len(pages) == 1 or len(pages) >= _MOST_PAGES:
                return pages
            first, _ = await self._read(self._url, None)
            assert first is not None  # the request was not conditional
            before, pages = pages, await self._walk(first, expected)
            if pages == before:
                return pages
        raise Unavailable(self._url, "it changes while its pages are read")

    async def _walk(self, newest: ParsedFeed, expected: set[str]) -> list[ParsedFeed]:
        pages, read = [newest], {self._url}
        while not _joins(pages[-1], expected) and (older := pages[-1].older) is not None:
            uri = origin_uri(self._url, older)
            if uri in read or len(read) == _MOST_PAGES:
                break
            read.add(uri)
            page, _ = await self._read(uri, None)
            assert page is not None  # the request was not conditional
            pages.append(page)
        return pages

    async def _read(
        self, uri: str, condition: tuple[str, str] | None
    ) -> tuple[ParsedFeed | None, tuple[str, str] | None]:
        data, answer = await self._client.content(uri, _MOST_BYTES, condition)
        if answer is None:
            return None, condition
        found = await asyncio.to_thread(parse_feed, data, uri)
        if any(relation == Rel.HUB for relation, _ in answer.links):
            found = replace(found, has_hub=True)
        return found, answer.condition


class _Announcements:
    """Checks a feed when its hub delivers something, or may have missed something."""

    def __init__(self, check_soon: Callable[[], None]) -> None:
        self._check_soon = check_soon

    def up(self, hub: str | None = None) -> None:
        _log.info("%s announces changes of a feed", without_credentials(hub or "a hub"))

    def audience(self, listeners: int) -> None:
        pass

    def gap(self) -> None:
        self._check_soon()

    def fragment(self, document: bytes) -> None:
        self._check_soon()


def _joins(page: ParsedFeed, expected: set[str]) -> bool:
    """Return whether a page has an entry of the last check that did not change since.

    Only its older half counts, since entries may be pinned to the top of a feed.
    """
    older = page.entries[len(page.entries) // 2 :]
    return not expected.isdisjoint(map(_digest, older))


def _digest(entry: FeedEntry) -> str:
    return blake2b(f"{entry.uri} {entry.digest}".encode(), digest_size=8).hexdigest()


def _entries(page: ParsedFeed, listed: set[str]) -> tuple[SeenEntry, ...]:
    """Return the entries of a page that newer ones have not listed, oldest first.

    A feed may list several versions of a resource; the first is its state.
    """
    found = []
    for entry in page.entries:
        uri = usable_uri(entry.uri)
        if uri is not None and uri not in listed:
            listed.add(uri)
            found.append(SeenEntry(Resource(uri, lastmod=entry.updated), entry.digest))
    return tuple(reversed(found))
