"""IIIF Change Discovery 1.0: an ActivityStreams collection whose pages are read backwards.

The object of each activity is a resource, whose state depends on its newest activity (§3.5).

- With datetimes (levels 1 and 2), a check reads the activities since the last check, and some
  earlier ones, because an activity may be listed later than it is dated. Without datetimes (level
  0), it reads all activities, and cannot detect updates.
- At level 2, each deletion is detected: `Delete`, `Remove` from this collection, and `Move`. At
  levels 0 and 1, a deletion is detected as an object's absence from the whole collection, if two
  readings of all pages agree. At level 1, the whole collection is read every `compare` seconds.
- Activities older than a `Refresh` are read only for deletions.
- Pages that shift during reading are reread. If the collection does not reach back to the last
  check, or its newest activity is older than before, all activities are read. At level 2, the gap
  is reported.
- Activities of an object at the same datetime are distinguished by their identifiers, if any.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import InvalidDocument, MalformedDocument, TooLarge, Unavailable, WrongDocument
from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant, format_datetime, parse_datetime
from rsnotify.format.model import Resource
from rsnotify_gateway.adapter import (
    KnownEntries,
    MissingEntry,
    OriginBatch,
    OriginCursor,
    OriginTerms,
    OriginType,
    SeenEntry,
    is_due,
    origin_uri,
)
from rsnotify_gateway.change_detection import usable_uri
from rsnotify_gateway.client import OriginClient
from rsnotify_subscriber.fetching.credentials import without_login

logger = logging.getLogger("rsnotify.gateway")


class Activity(Struct, frozen=True):
    """An activity in a collection, of a kind such as `Update`, with its `endTime`.

    `target` is the destination of a `Move`, or the collection that the object was added to, and
    `origin` the collection that it was removed from. Distinguishable activities of an object differ
    in `state`.
    """

    kind: str
    uri: str | None = None
    target: str | None = None
    origin: str | None = None
    at: Instant | None = None
    state: str = ""


class ActivityPage(Struct, frozen=True):
    """A page of a collection, with its activities from old to new. `previous` has older ones."""

    uri: str
    activities: tuple[Activity, ...]
    previous: str | None = None


class _Named(Struct):
    id: str


_Reference = _Named | str | None


class _Item(Struct, rename="camel"):
    type: str
    id: str | None = None
    object: _Reference = None
    target: _Reference = None
    origin: _Reference = None
    end_time: str | None = None


class _Document(Struct, rename="camel"):
    type: str
    id: str | None = None
    last: _Reference = None
    prev: _Reference = None
    ordered_items: tuple[_Item, ...] | None = None


_decode_document = msgspec.json.Decoder(_Document).decode


def parse_collection(data: bytes, uri: str) -> tuple[str, str]:
    """Return the URIs of a collection and of its last page.

    Raises:
        DocumentError: The document is not a valid collection.
    """
    found = _parse(data, uri, "OrderedCollection")
    last = _uri(found.last, uri)
    if last is None:
        raise InvalidDocument("it has no last page (Change Discovery §3.1)", source=uri)
    return origin_uri(uri, found.id or uri), last


def parse_page(data: bytes, uri: str) -> ActivityPage:
    """Parse a page. Raise `DocumentError` if it is invalid."""
    found = _parse(data, uri, "OrderedCollectionPage")
    if found.ordered_items is None:
        raise InvalidDocument("it has no orderedItems (Change Discovery §3.2)", source=uri)
    activities = tuple(
        _activity(item, uri, number) for number, item in enumerate(found.ordered_items, 1)
    )
    return ActivityPage(uri, activities, _uri(found.prev, uri))


def _parse(data: bytes, uri: str, expected: str) -> _Document:
    try:
        found = _decode_document(data)
    except msgspec.ValidationError as error:
        raise InvalidDocument(f"it is not a valid {expected}: {error}", source=uri) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedDocument(f"not well-formed JSON: {error}", source=uri) from None
    if found.type != expected:
        raise WrongDocument(f"its type is {found.type[:100]}, not {expected}", source=uri)
    return found


def _activity(item: _Item, uri: str, number: int) -> Activity:
    at = None
    if item.end_time is not None:
        try:
            at = parse_datetime(item.end_time)
        except ValueError as error:
            raise InvalidDocument(f"endTime: {error}", source=uri, entry=number) from None
    return Activity(
        item.type,
        _uri(item.object, uri),
        _uri(item.target, uri),
        _uri(item.origin, uri),
        at,
        # Without a datetime, the identifier may be just the position in the list.
        ""
        if at is None
        else f"{item.end_time} {without_login(item.id or '')}".strip().replace("\n", " "),
    )


def _uri(reference: _Reference, base: str) -> str | None:
    text = reference.id if isinstance(reference, _Named) else reference
    return origin_uri(base, text) if text else None


#: Default seconds between comparisons with the whole collection.
_COMPARISON_INTERVAL = 7 * 86_400.0
_MAX_BYTES = 50_000_000
_MAX_PAGES = 50_000
#: Number of entries per batch.
_BATCH_SIZE = 1_000
#: Maximum number of times pages are read if they shift.
_MAX_ROUNDS = 5
_OVERLAP = timedelta(minutes=1)
_BEGIN = EARLIEST + _OVERLAP
#: How far an origin's clock may be ahead. Later datetimes are ignored.
_MAX_AHEAD = timedelta(days=1)
_ACCEPT = "application/ld+json, application/json;q=0.9"
_REFRESH = "Refresh"
#: The types of activities that only collections at level 2 have.
_LEVEL_2_TYPES = frozenset({"Create", "Delete", "Move", "Add", "Remove"})

T = TypeVar("T")


class ActivityCursor(OriginCursor, omit_defaults=True):
    """The progress in reading a collection, through its newest activity.

    `level` is the conformance level that the activities show. `compared` is when the whole
    collection was last read, as a Unix timestamp. Before `gap`, activities may have been missed.
    """

    newest: Instant | None = None
    level: int = 0
    compared: float = 0.0
    gap: str | None = None


class IIIFAdapter:
    """Reads a collection. At level 1, it reads all of it every `compare` seconds."""

    def __init__(self, url: str, client: OriginClient, compare: float | None) -> None:
        self._url = url
        self._reader = _PageReader(client)
        self._compare = compare or _COMPARISON_INTERVAL
        self._last = ActivityCursor()

    def terms(self) -> OriginTerms:
        last = self._last
        deletions = {
            0: "Deletions are detected as absence from the whole collection.",
            1: "Deletions are detected as absence from the whole collection, which is compared "
            f"every {self._compare:g} seconds.",
            2: "All deletions are detected.",
        }
        limits = []
        if last.level == 0:
            limits.append("Activities have no datetimes, so updates are not detected.")
        if last.gap is not None:
            limits.append(f"Activities may have been missed before {last.gap}.")
        return OriginTerms(
            f"IIIF Change Discovery 1.0, level {last.level}",
            "second" if last.level else None,
            deletions[last.level],
            tuple(limits),
        )

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Read the activities since the cursor, or all of them, and yield their objects' states."""
        before = ActivityCursor.decoded(cursor)
        began = time.time()
        latest = datetime.fromtimestamp(began, UTC) + _MAX_AHEAD
        if before.newest is not None and before.newest > latest:
            before = replace(before, newest=None)
        is_compared = before.level < 2 and is_due(before.compared, self._compare)
        is_whole = before.level == 0 or is_compared
        reading = _CollectionReading(self._url, self._reader, before, latest)
        async for entries in reading.entries(is_whole=is_whole):
            yield OriginBatch(entries)
        gap = before.gap
        if not is_whole and (not reading.reaches_back or reading.level == 0):
            logger.warning("%s does not reach back to the last check; reading all of it", self._url)
            is_whole = True
            async for entries in reading.entries(is_whole=True):
                yield OriginBatch(entries)
            if reading.level == 2:
                gap = format_datetime(max(reading.newest, before.newest or EARLIEST))
        missing: list[tuple[str, frozenset[str]]] = []
        if is_whole and reading.level < 2:
            missing = await known.select(lambda uri, _: uri not in reading.processed)
            if missing:
                await reading.confirm()
        compared = began if is_whole else before.compared
        # The origin's clock may be ahead now, and be corrected before the next activity.
        latest = min(reading.newest, datetime.fromtimestamp(began, UTC))
        newest = latest if latest > EARLIEST else None
        self._last = ActivityCursor(newest, reading.level, compared, gap)
        entries = tuple(MissingEntry(uri) for uri, _ in missing)
        yield OriginBatch(entries, self._last.encoded())


class _PageReader:
    """Requests collections and pages, conditionally if they are cached."""

    def __init__(self, client: OriginClient) -> None:
        self._client = client
        #: The collection and its last page by URI, with the condition for the next request.
        self._cache: dict[str, tuple[tuple[str, str], Any]] = {}

    async def read(self, uri: str, parse: Callable[[bytes, str], T], *, cache: bool) -> T:
        """Return the parsed document. Cache it if it is likely to be read again."""
        condition, cached = self._cache.get(uri, (None, None))
        data, answer = await self._client.content(uri, _MAX_BYTES, condition, _ACCEPT)
        if answer is None:
            return cast(T, cached)  # the same function parsed it
        found = await asyncio.to_thread(parse, data, uri)
        self._cache.pop(uri, None)
        if cache and answer.condition is not None:
            self._cache[uri] = (answer.condition, found)
            while len(self._cache) > 2:
                del self._cache[next(iter(self._cache))]
        return found


class _CollectionReading:
    """Reads a collection backwards, repeatedly if its pages shift.

    Args:
        before: The progress of earlier checks.
        latest: The latest plausible datetime of an activity.

    Attributes:
        newest: The datetime of the newest activity.
        level: The conformance level that the activities show.
        reaches_back: Whether the activities reach back to the last check.
        processed: The objects whose newest activity has been found.
    """

    def __init__(
        self, url: str, reader: _PageReader, before: ActivityCursor, latest: Instant
    ) -> None:
        self._url = url
        self._reader = reader
        self._before = before
        self._latest = latest
        self._pages: list[int] = []
        self._id = url
        self._reset()

    def _reset(self) -> None:
        self.newest = EARLIEST
        self.level = self._before.level
        self.reaches_back = False
        self.processed: set[str] = set()
        self._only_deletions = False
        self._is_undated = False
        self._pages = []

    async def entries(
        self, *, is_whole: bool
    ) -> AsyncIterator[tuple[SeenEntry | MissingEntry, ...]]:
        """Yield the state of each object. Start over if the pages shifted during reading."""
        before = self._before.newest
        since = None if is_whole or before is None else max(before, _BEGIN) - _OVERLAP
        for _ in range(_MAX_ROUNDS):
            self._reset()
            newest_page: ActivityPage | None = None
            entries: list[SeenEntry | MissingEntry] = []
            async for page in self._read_pages():
                newest_page = newest_page or page
                if self._process(page, since, entries):
                    break
                if len(entries) >= _BATCH_SIZE:
                    yield tuple(entries)
                    entries.clear()
            yield tuple(entries)
            assert newest_page is not None
            if before is not None and self.newest < before:
                self.reaches_back = False  # the collection went back to an earlier state
            if len(self._pages) == 1 or await self._is_settled(newest_page):
                return
        raise Unavailable(self._url, "its pages keep shifting during reading")

    async def _read_pages(self) -> AsyncIterator[ActivityPage]:
        """Yield the pages, newest first."""
        self._id, last = await self._reader.read(self._url, parse_collection, cache=True)
        uri: str | None = last
        read: set[str] = set()
        while uri is not None:
            if uri in read:
                raise InvalidDocument("its links to previous pages form a cycle", source=uri)
            if len(read) == _MAX_PAGES:
                raise TooLarge(f"it has more than {_MAX_PAGES:,} pages", source=self._url)
            read.add(uri)
            page = await self._reader.read(uri, parse_page, cache=uri == last)
            self._pages.append(hash(page))
            yield page
            uri = page.previous

    async def _is_settled(self, page: ActivityPage) -> bool:
        """Reread a page, and return whether activities were at most appended."""
        again = await self._reader.read(page.uri, parse_page, cache=True)
        is_same = again.activities[: len(page.activities)] == page.activities
        return is_same and again.previous == page.previous

    async def confirm(self) -> None:
        """Raise `Unavailable` if the collection is empty, or a second reading of it differs."""
        pages = self._pages
        if not self.processed:
            raise Unavailable(self._url, "it is empty, so nothing counts as deleted")
        if len(pages) == 1:
            return
        self._pages = []
        async for _ in self._read_pages():
            pass
        if self._pages != pages:
            raise Unavailable(
                self._url, "it changed during reading, so deletions cannot be detected"
            )

    def _process(
        self, page: ActivityPage, since: Instant | None, entries: list[SeenEntry | MissingEntry]
    ) -> bool:
        """Add a page's states to `entries`. Return True if no older activities are needed."""
        for activity in reversed(page.activities):
            self._update_facts(activity)
            if since is not None and activity.at is not None and activity.at < since:
                return True
            if activity.kind == _REFRESH:
                if self._before.newest is None:
                    return True
                self._only_deletions = True
            entries += self._states(activity)
        return False

    def _update_facts(self, activity: Activity) -> None:
        """Update what the activities show about the collection."""
        if activity.kind == _REFRESH:
            return
        before = self._before.newest
        self._is_undated = self._is_undated or activity.at is None
        if activity.at is not None and activity.at <= self._latest:
            self.newest = max(self.newest, activity.at)
            self.reaches_back |= before is not None and activity.at <= before
        if self.level < 2:
            shown = 2 if activity.kind in _LEVEL_2_TYPES else 1
            self.level = 0 if self._is_undated else max(self.level, shown)

    def _states(self, activity: Activity) -> Iterator[SeenEntry | MissingEntry]:
        seen, missing = None, None
        if activity.kind in ("Create", "Update") or self._is_here("Add", activity.target, activity):
            seen = activity.uri
        elif activity.kind == "Delete" or self._is_here("Remove", activity.origin, activity):
            missing = activity.uri
        elif activity.kind == "Move":
            seen, missing = activity.target, activity.uri
        if (uri := self._new(seen)) is not None and not self._only_deletions:
            yield SeenEntry(Resource(uri, lastmod=activity.at), activity.state)
        if (uri := self._new(missing)) is not None:
            yield MissingEntry(uri)

    def _is_here(self, kind: str, place: str | None, activity: Activity) -> bool:
        return activity.kind == kind and place in (self._id, self._url)

    def _new(self, uri: str | None) -> str | None:
        """Return a URI in usable form, and mark it as processed.

        Return None if it is unusable, or if a newer activity of the resource was processed.
        """
        usable = None if uri is None else usable_uri(uri)
        if usable is None or usable in self.processed:
            return None
        self.processed.add(usable)
        return usable


IIIF = OriginType(
    lambda origin, client, _: IIIFAdapter(without_login(origin.url), client, origin.compare)
)
