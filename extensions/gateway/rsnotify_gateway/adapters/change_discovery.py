"""IIIF Change Discovery 1.0: an ActivityStreams collection whose pages are read backwards.

The object of each activity is a resource. An object's newest activity decides its state (§3.5).

- With datetimes (levels 1 and 2), a check reads the activities since the last check, and some
  earlier ones, because an activity may be listed later than it is dated. Without datetimes (level
  0), it reads all activities, and does not detect a change of a resource that stays listed.
- At level 2, each deletion is detected: `Delete`, `Remove` from this collection, and `Move`. At
  levels 0 and 1, a deletion is detected as an object's absence from the whole collection, if two
  readings of all pages agree. At level 1, the whole is compared from time to time (`compare`).
- Activities older than a `Refresh` are read only for deletions.
- Pages that shift during reading are reread. If the collection does not reach back to the last
  check, or its newest activity is older than before, all activities are read, and at level 2
  the gap is reported.
- Two activities of one object at the same datetime are distinguished by their identifiers, if any.
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
from rsnotify_gateway.client import OriginClient
from rsnotify_gateway.reconciling import usable_uri
from rsnotify_subscriber.fetching.credentials import without_login


class Activity(Struct, frozen=True):
    """An activity in a collection, of a kind such as `Update`.

    `origin` is the collection that the object was removed from, and `at` the `endTime`. If two
    activities of one object can be distinguished, their states differ.
    """

    kind: str
    uri: str | None = None
    target: str | None = None
    origin: str | None = None
    at: Instant | None = None
    state: str = ""


class ActivityPage(Struct, frozen=True):
    """A page of a collection: its activities, oldest first, and the page with older ones."""

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
        DocumentError: The collection is not acceptable.
    """
    found = _parse(data, uri, "OrderedCollection")
    last = _uri(found.last, uri)
    if last is None:
        raise InvalidDocument("it has no last page (Change Discovery §3.1)", source=uri)
    return origin_uri(uri, found.id or uri), last


def parse_page(data: bytes, uri: str) -> ActivityPage:
    """Parse a page. Raise `DocumentError` if it is not acceptable."""
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
        raise InvalidDocument(f"it is no {expected}: {error}", source=uri) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedDocument(f"not well-formed JSON: {error}", source=uri) from None
    if found.type != expected:
        raise WrongDocument(f"it is no {expected}, but a {found.type[:100]}", source=uri)
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
        # Without a datetime, the identifier may denote the position in the list.
        ""
        if at is None
        else f"{item.end_time} {without_login(item.id or '')}".strip().replace("\n", " "),
    )


def _uri(reference: _Reference, base: str) -> str | None:
    text = reference.id if isinstance(reference, _Named) else reference
    return origin_uri(base, text) if text else None


_log = logging.getLogger("rsnotify.gateway")
#: Default seconds between comparisons with the whole collection.
_COMPARE = 7 * 86_400.0
_MOST_BYTES = 50_000_000
_MOST_PAGES = 50_000
#: Number of entries recorded at once.
_BATCH = 1_000
#: Maximum number of times pages are read if they shift.
_MOST_ROUNDS = 5
_OVERLAP = timedelta(minutes=1)
_BEGIN = EARLIEST + _OVERLAP
#: How far an origin's clock may be ahead. Later datetimes show nothing about other activities.
_MOST_AHEAD = timedelta(days=1)
_ACCEPT = "application/ld+json, application/json;q=0.9"
_REFRESH = "Refresh"
#: Activity types that only a collection at level 2 has.
_LEVEL_2 = frozenset({"Create", "Delete", "Move", "Add", "Remove"})

T = TypeVar("T")


class ActivityCursor(OriginCursor, omit_defaults=True):
    """The progress in reading a collection, through its newest activity.

    `level` is the conformance level that the activities show. `compared` is when the whole
    collection was last read, in seconds since 1970. Before `gap`, activities may have been missed.
    """

    newest: Instant | None = None
    level: int = 0
    compared: float = 0.0
    gap: str | None = None


class ChangeDiscoveryAdapter:
    """Reads a collection. At level 1, it reads all of it every `compare` seconds."""

    def __init__(self, url: str, client: OriginClient, compare: float | None) -> None:
        self._url = url
        self._reader = _PageReader(client)
        self._compare = compare or _COMPARE
        self._last = ActivityCursor()

    def terms(self) -> OriginTerms:
        last = self._last
        deletions = {
            0: "A deletion is seen as the absence from the whole collection.",
            1: "A deletion is seen as the absence from the whole collection, at a comparison every "
            f"{self._compare:g} seconds.",
            2: "Each deletion is seen.",
        }
        limits = []
        if last.level == 0:
            limits.append("Activities have no datetimes. A change of a resource is not seen.")
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
        latest = datetime.fromtimestamp(began, UTC) + _MOST_AHEAD
        if before.newest is not None and before.newest > latest:
            before = replace(before, newest=None)
        is_compared = before.level < 2 and is_due(before.compared, self._compare)
        is_whole = before.level == 0 or is_compared
        walk = _Walk(self._url, self._reader, before, latest)
        async for entries in walk.entries(is_whole=is_whole):
            yield OriginBatch(entries)
        gap = before.gap
        if not is_whole and (not walk.has_joined or walk.level == 0):
            _log.warning("%s does not lead back to the last check; all is read", self._url)
            is_whole = True
            async for entries in walk.entries(is_whole=True):
                yield OriginBatch(entries)
            if walk.level == 2:
                gap = format_datetime(max(walk.newest, before.newest or EARLIEST))
        missing: list[tuple[str, frozenset[str]]] = []
        if is_whole and walk.level < 2:
            missing = await known.select(lambda uri, _: uri not in walk.processed)
            if missing:
                await walk.confirm()
        compared = began if is_whole else before.compared
        # The origin's clock may be ahead now, and corrected before the next activity.
        latest = min(walk.newest, datetime.fromtimestamp(began, UTC))
        newest = latest if latest > EARLIEST else None
        self._last = ActivityCursor(newest, walk.level, compared, gap)
        entries = tuple(MissingEntry(uri) for uri, _ in missing)
        yield OriginBatch(entries, self._last.encoded())


class _PageReader:
    """Requests collections and pages, conditionally if an earlier version was kept."""

    def __init__(self, client: OriginClient) -> None:
        self._client = client
        #: The collection and its last page by URI, with the condition for the next request.
        self._kept: dict[str, tuple[tuple[str, str], Any]] = {}

    async def read(self, uri: str, parse: Callable[[bytes, str], T], *, keep: bool) -> T:
        """Return what `parse` returns for a document. Keep it if it is likely to be read again."""
        condition, kept = self._kept.get(uri, (None, None))
        data, answer = await self._client.content(uri, _MOST_BYTES, condition, _ACCEPT)
        if answer is None:
            return cast(T, kept)  # what `parse` returned for the same URI
        found = await asyncio.to_thread(parse, data, uri)
        self._kept.pop(uri, None)
        if keep and answer.condition is not None:
            self._kept[uri] = (answer.condition, found)
            while len(self._kept) > 2:
                del self._kept[next(iter(self._kept))]
        return found


class _Walk:
    """Reads a collection backwards, possibly several times.

    Args:
        before: How far earlier checks have read.
        latest: The latest plausible datetime of an activity.

    Attributes:
        newest: The datetime of the latest activity.
        level: The conformance level that the activities show.
        has_joined: Whether the activities reach back to the last check.
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
        self._begin()

    def _begin(self) -> None:
        self.newest = EARLIEST
        self.level = self._before.level
        self.has_joined = False
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
        for _ in range(_MOST_ROUNDS):
            self._begin()
            newest_page: ActivityPage | None = None
            entries: list[SeenEntry | MissingEntry] = []
            async for page in self._walk():
                newest_page = newest_page or page
                if self._process(page, since, entries):
                    break
                if len(entries) >= _BATCH:
                    yield tuple(entries)
                    entries.clear()
            yield tuple(entries)
            assert newest_page is not None
            if before is not None and self.newest < before:
                self.has_joined = False  # the collection went back to an earlier state
            if len(self._pages) == 1 or await self._is_settled(newest_page):
                return
        raise Unavailable(self._url, "its pages shift while they are read")

    async def _walk(self) -> AsyncIterator[ActivityPage]:
        """Yield the pages, newest first."""
        self._id, last = await self._reader.read(self._url, parse_collection, keep=True)
        uri: str | None = last
        read: set[str] = set()
        while uri is not None:
            if uri in read:
                raise InvalidDocument("its pages lead in a circle", source=uri)
            if len(read) == _MOST_PAGES:
                raise TooLarge(f"it has more than {_MOST_PAGES:,} pages", source=self._url)
            read.add(uri)
            page = await self._reader.read(uri, parse_page, keep=uri == last)
            self._pages.append(hash(page))
            yield page
            uri = page.previous

    async def _is_settled(self, page: ActivityPage) -> bool:
        """Return whether, since a page was read, activities were only added at its end."""
        again = await self._reader.read(page.uri, parse_page, keep=True)
        is_same = again.activities[: len(page.activities)] == page.activities
        return is_same and again.previous == page.previous

    async def confirm(self) -> None:
        """Raise `Unavailable` if the collection is empty, or a second reading of it differs."""
        pages = self._pages
        if not self.processed:
            raise Unavailable(self._url, "it lists nothing, so nothing counts as deleted")
        if len(pages) == 1:
            return
        self._pages = []
        async for _ in self._walk():
            pass
        if self._pages != pages:
            raise Unavailable(
                self._url, "it changes while it is read, so that no deletion could be seen"
            )

    def _process(
        self, page: ActivityPage, since: Instant | None, entries: list[SeenEntry | MissingEntry]
    ) -> bool:
        """Add a page's states to `entries`, and return whether older activities are not needed."""
        for activity in reversed(page.activities):
            self._note(activity)
            if since is not None and activity.at is not None and activity.at < since:
                return True
            if activity.kind == _REFRESH:
                if self._before.newest is None:
                    return True
                self._only_deletions = True
            entries += self._states(activity)
        return False

    def _note(self, activity: Activity) -> None:
        if activity.kind == _REFRESH:
            return
        before = self._before.newest
        self._is_undated = self._is_undated or activity.at is None
        if activity.at is not None and activity.at <= self._latest:
            self.newest = max(self.newest, activity.at)
            self.has_joined = self.has_joined or (before is not None and activity.at <= before)
        if self.level < 2:
            is_complete = activity.kind in _LEVEL_2
            self.level = 0 if self._is_undated else max(self.level, 2 if is_complete else 1)

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

        Return None if it is unusable, or a newer activity has decided the resource's state.
        """
        usable = None if uri is None else usable_uri(uri)
        if usable is None or usable in self.processed:
            return None
        self.processed.add(usable)
        return usable


IIIF = OriginType(
    lambda origin, client, _: ChangeDiscoveryAdapter(
        without_login(origin.url), client, origin.compare
    )
)
