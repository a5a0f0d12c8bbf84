"""Sources without push: their Change Lists and archives, and their Resource List.

The URL names a Source, a Capability List or a document of a set, as for `rsnotify follow`. The
adapter discovers and chooses documents in the same way. It does not read dumps, because they
contain content.

- A check reads the Change List from where the last check ended, and the archives if the list
  begins too late. If a list's datetimes contradict each other, all of it is read. A change is
  detected if the hash or length differs; without a hash, also if the datetime differs.
- A deletion is detected as a change in a Change List. Every `compare` seconds, the set is compared
  with the Resource List, to detect changes that no Change List contains or that were backdated.
  Resources that changed after the list's `at` are not compared. A list of several files is reread
  if they change during reading.
- The set is also compared if no list reaches back to the last check, or if the lists end earlier
  than before, as after a restore of the Source. If there is no Resource List, or it is older than
  the missing changes, the gap is reported.
- A resource whose metadata differs between the lists, for example by the kind of hash, is recorded
  as updated once per comparison.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, DocumentError, NotFound, Unavailable
from rsnotify.format.coverage import EARLIEST, Change, ChangeKey, Coverage, Frontier
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Fetch
from rsnotify.sync.baseline import Baseline
from rsnotify.sync.pull import Pull, PullStep, change_documents, resource_documents
from rsnotify_gateway.adapter import (
    KnownEntries,
    MissingEntry,
    OriginBatch,
    OriginCursor,
    OriginTerms,
    OriginType,
    SeenEntry,
    is_due,
)
from rsnotify_gateway.change_detection import required_uri
from rsnotify_gateway.client import OriginClient
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.discovery.discovery import OfferDiscovery
from rsnotify_subscriber.fetching.credentials import without_login
from rsnotify_subscriber.fetching.fetcher import DocumentCache, Fetcher

logger = logging.getLogger("rsnotify.gateway")

#: A list whose `until` is this close to the response's date may still receive earlier changes.
_SETTLING_TIME = timedelta(minutes=1)


class ChangeReading:
    """One reading of the Change Lists, starting at a frontier.

    Attributes:
        frontier: The instant up to which all changes have been read.
        gap_ends: The start of the lists, if none of them reaches back to the frontier.
        ends: The latest instant that a list covers.
    """

    def __init__(self, fetcher: Fetcher, offer: Offer, frontier: Frontier) -> None:
        self._fetcher = fetcher
        self._offer = offer
        self._began_at = frontier.instant
        self.frontier = frontier
        self.gap_ends: Instant | None = None
        self.ends: Instant | None = None

    @property
    def has_gone_back(self) -> bool:
        """Whether all lists end before the initial frontier, as after a restore of the Source."""
        return self.ends is not None and self.ends < self._began_at

    async def read(self) -> AsyncIterator[tuple[str, list[Change]]]:
        """Yield the URI and the new changes of each list.

        Raises:
            RsnotifyError: A list cannot be read, and no other list can replace it.
        """
        pull = Pull(self._offer)
        while True:
            uri = pull.current.uri
            step = await self._step(pull)
            if step.coverage is not None:
                is_last = step.fetch is None
                coverage = _without_logins(step.coverage)
                coverage = _without_present(coverage) if is_last else coverage
                self.ends = max(self.ends or EARLIEST, coverage.until or EARLIEST)
                fresh = self.frontier.learn(coverage)
                # If the datetimes contradict each other, any entry may be new.
                changes = list(coverage.changes) if coverage.contradictory else fresh
                if changes:
                    yield uri, changes
            if step.failure is not None:
                raise step.failure
            if step.fetch is None:
                self.gap_ends = step.gap_ends
                return

    async def _step(self, pull: Pull) -> PullStep:
        uri = pull.current.uri
        try:
            document, sent = await self._fetcher.dated_document(uri)
            return pull.read(document, self.frontier, sent)
        except NotFound as error:
            return pull.abandon(error, self.frontier)
        except DocumentError as error:
            return pull.abandon(error if error.source else error.at(uri), self.frontier)


def _without_logins(coverage: Coverage) -> Coverage:
    """Remove logins from the URIs of a list, because the cursor contains some of these URIs."""
    if not any("@" in change.uri for change in coverage.changes):
        return coverage
    changes = [replace(one, uri=without_login(one.uri)) for one in coverage.changes]
    return replace(coverage, changes=type(coverage.changes)(changes))


def _without_present(coverage: Coverage) -> Coverage:
    """Return the coverage of the last list, ending at its latest change if `until` is about now.

    Some Sources set `until` to the current time in each response, but write changes with a delay.
    """
    until, sent = coverage.until, coverage.sent
    if not coverage.closed or until is None or sent is None or until < sent - _SETTLING_TIME:
        return coverage
    latest = max((change.at for change in coverage.changes), default=coverage.from_)
    return replace(coverage, until=latest, closed=False)


class ListReading:
    """One reading of the Resource List, and of the changes since then.

    Attributes:
        at: The instant that the list describes.
        is_outdated: Whether the list has nothing new, and no Change List continues from it.
        documents: The URI and a hash of each document that was read.
    """

    def __init__(self, fetcher: Fetcher, offer: Offer) -> None:
        self._fetcher = fetcher
        self._offer = offer
        self.is_outdated = False
        self._reset()

    def _reset(self) -> None:
        self.at: Instant | None = None
        self._listed: set[str] = set()
        self.documents: list[tuple[str, int]] = []
        self._changed: set[str] = set()

    def is_missing(self, uri: str, _places: object) -> bool:
        """Return whether a resource is neither in the list nor in the changes since then."""
        return uri not in self._listed

    async def entries(self, through: Instant | None) -> AsyncIterator[tuple[SeenEntry, ...]]:
        """Yield the entries that did not change after `at`.

        Args:
            through: The instant up to which all changes are known.

        Raises:
            RsnotifyError: The list cannot be read completely.
        """
        baseline = Baseline(self._offer, EARLIEST)
        following: Fetch | None = baseline.root
        while following is not None:
            if following is baseline.root:
                self._reset()
            try:
                document, sent = await self._fetcher.dated_document(following.uri)
                found = baseline.read(document, sent)
            except (NotFound, DocumentError) as error:
                baseline.skip(error)
            else:
                self.documents.append((following.uri, hash(document)))
                if self.at is None or baseline.at < self.at:
                    self.at = baseline.at
                    await self._read_changes(baseline.at, through)
                    if self.is_outdated:
                        return
                if found is not None:
                    yield self._seen(following.uri, found.resources)
            following = baseline.next()
        if not baseline.complete:
            reason = "its Resource List is incomplete"
            raise baseline.error or Unavailable(baseline.root.uri, reason)
        self.at = baseline.at  # which an index may lack

    async def _read_changes(self, at: Instant, through: Instant | None) -> None:
        """Find the resources that changed after the list's `at`, and whether it is outdated."""
        frontier = Frontier.at(EARLIEST)
        frontier.advance(at, over=False)
        reading = ChangeReading(self._fetcher, self._offer, frontier)
        async for uri, changes in reading.read():
            self._changed.update(required_uri(uri, change.uri) for change in changes)
        has_gap = reading.gap_ends is not None
        self.is_outdated = has_gap and through is not None and at <= through
        self._listed |= self._changed

    def _seen(self, uri: str, resources: Iterable[Resource]) -> tuple[SeenEntry, ...]:
        found = {}
        for resource in resources:
            usable = required_uri(uri, resource.uri)
            if usable not in self._changed:
                found[usable] = _entry(usable, resource)
        self._listed.update(found)
        return tuple(found.values())


def _latest_entries(uri: str, changes: list[Change]) -> dict[str, SeenEntry | MissingEntry]:
    """Return each resource's state after the changes in a list, by URI."""
    found: dict[str, SeenEntry | MissingEntry] = {}
    for change in sorted(changes, key=lambda change: change.at):
        usable = required_uri(uri, change.uri)
        found.pop(usable, None)
        is_deleted = change.change is ChangeType.DELETED
        found[usable] = MissingEntry(usable) if is_deleted else _entry(usable, change.resource)
    return found


def _entry(uri: str, resource: Resource) -> SeenEntry:
    lastmod = resource.lastmod or resource.datetime
    stated = Resource(
        uri, lastmod=lastmod, hash=resource.hash, length=resource.length, type=resource.type
    )
    at = "" if lastmod is None else format_datetime(lastmod)
    length = "" if resource.length is None else resource.length
    state = " ".join(sorted((resource.hash or "").split())) or f"{at} {length}".strip()
    return SeenEntry(stated, state)


#: Default seconds between comparisons with the Resource List.
_COMPARISON_INTERVAL = 86_400.0
#: Maximum number of times a Resource List of several files is read if they change during reading.
_MAX_ROUNDS = 3
#: The factor by which the next comparison is earlier if the Resource List was outdated.
_SPEEDUP = 24
_CACHED_DOCUMENTS, _CACHED_ENTRIES = 4, 10_000


class SourceCursor(OriginCursor, omit_defaults=True):
    """The progress in reading a Source.

    Args:
        through: The instant up to which all changes are recorded; None before the first check.
        seen: The recorded changes at exactly that instant.
        running: Whether more changes may be dated at that instant.
        compared: When the whole set was last compared, as a Unix timestamp.
        gap: The last interval in which changes may have been missed.
    """

    through: Instant | None = None
    seen: tuple[ChangeKey, ...] = ()
    running: bool = False
    compared: float = 0.0
    gap: tuple[Instant, Instant] | None = None

    @property
    def frontier(self) -> Frontier:
        return Frontier.at(self.through or EARLIEST, self.seen, running=self.running)

    def advanced(self, frontier: Frontier) -> str:
        """Advance the cursor to a frontier, and return it as JSON."""
        self.through, self.running = frontier.instant, frontier.running
        self.seen = tuple(frontier.seen.elements())
        return self.encoded()


class ResourceSyncAdapter:
    """Reads a Source, and compares its Resource List every `compare` seconds."""

    def __init__(self, url: str, client: OriginClient, compare: float | None) -> None:
        self._url = url
        cache = DocumentCache(_CACHED_DOCUMENTS, _CACHED_ENTRIES)
        self._fetcher = Fetcher(client.sessions, Path(), cache=cache)
        self._discovery = OfferDiscovery(DescriptionReader(self._fetcher), url)
        self._compare = compare or _COMPARISON_INTERVAL
        self._offer: Offer | None = None
        self._last = SourceCursor()

    def terms(self) -> OriginTerms:
        deletions = "Deletions are detected as changes in a Change List"
        if self._offer is None or resource_documents(self._offer):
            compared = f"by a comparison every {self._compare:g} seconds."
            deletions += f", or as absence from the Resource List {compared}"
            limits = [
                "Changes that no Change List contains or that were backdated are detected "
                f"{compared}"
            ]
        else:
            deletions += "."
            limits = ["There is no Resource List, so only resources in a Change List are known."]
        if self._last.gap is not None:
            begin, end = map(format_datetime, self._last.gap)
            limits.append(f"Changes from {begin} to {end} may have been missed.")
        return OriginTerms("ResourceSync", None, deletions, tuple(limits))

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Read the changes since the cursor, and compare the whole set if that is due."""
        state = SourceCursor.decoded(cursor)
        offer = await self._current_offer()
        reading = ChangeReading(self._fetcher, offer, state.frontier)
        is_first = state.through is None
        if not is_first:
            async for uri, changes in reading.read():
                entries = _latest_entries(uri, changes)
                yield OriginBatch(tuple(entries.values()), state.advanced(reading.frontier))
        is_required = is_first or reading.gap_ends is not None or reading.has_gone_back
        if is_required or (is_due(state.compared, self._compare) and resource_documents(offer)):
            comparison = _Comparison(self._fetcher, offer, state, reading, self._url)
            async for batch in comparison.batches(known):
                yield batch
            wait = self._compare * (1 if comparison.is_complete else 1 / _SPEEDUP)
            state.compared = time.time() - self._compare + wait
            reading = comparison.reading
        self._last = state
        yield OriginBatch((), state.advanced(reading.frontier))

    async def _current_offer(self) -> Offer:
        """Return the Source's current offer, without its dumps."""
        if self._offer is None:
            offer = await self._discovery.find()
        else:
            offer = await self._discovery.revalidate(self._offer)
        self._offer = offer
        lists = replace(
            offer,
            resource_dump=None,
            resource_dump_archive=None,
            change_dump=None,
            change_dump_archive=None,
        )
        if not change_documents(lists):
            raise ConfigurationError(
                f"{self._url} has no Change List, which this type of origin needs; if it has a "
                'Resource List, use the URL of that with type = "sitemap"'
            )
        return lists


class _Comparison:
    """One comparison with the Resource List and the changes since then.

    Attributes:
        reading: The last reading of the Change Lists.
        is_complete: Whether the Resource List was not outdated, and no gap remained.
    """

    def __init__(
        self, fetcher: Fetcher, offer: Offer, state: SourceCursor, reading: ChangeReading, url: str
    ) -> None:
        self._fetcher = fetcher
        self._offer = offer
        self._state = state
        self._url = url
        self._has_gone_back = reading.has_gone_back
        self.reading = reading
        self.is_complete = True
        #: The instant that the Resource List describes; None if the list is outdated or absent.
        self._at: Instant | None = None

    async def batches(self, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        through, begin = self._state.through, self._state.through or EARLIEST
        if self._has_gone_back:
            assert through is not None
            self._state.gap = (self.reading.ends or EARLIEST, through)
            through, begin = None, EARLIEST
        if resource_documents(self._offer):
            async for batch in self._listed(through, known):
                yield batch
            if self._at is not None:
                begin, self._state.gap = self._at, None
            else:
                self.is_complete = False
                if self.reading.gap_ends is None:
                    return
        async for batch in self._changes_since(begin):
            yield batch

    async def _listed(
        self, through: Instant | None, known: KnownEntries
    ) -> AsyncIterator[OriginBatch]:
        """Yield the entries of the Resource List, and then the resources missing from it.

        If the list has several files, a resource counts as missing only after two equal readings.
        """
        before: list[tuple[str, int]] = []
        for _ in range(_MAX_ROUNDS):
            listed = ListReading(self._fetcher, self._offer)
            async for entries in listed.entries(through):
                yield OriginBatch(entries)
            if listed.is_outdated:
                return
            found = await known.select(listed.is_missing)
            if not found or len(listed.documents) == 1 or listed.documents == before:
                yield OriginBatch(tuple(MissingEntry(uri) for uri, _ in found))
                self._at = listed.at
                return
            before = listed.documents
        raise Unavailable(self._url, "its Resource List keeps changing during reading")

    async def _changes_since(self, begin: Instant) -> AsyncIterator[OriginBatch]:
        known_through = self._state.through
        frontier = Frontier.at(EARLIEST)
        frontier.advance(begin, over=False)
        async for batch in self._reread(frontier, known_through):
            yield batch
        ends = self.reading.gap_ends
        if ends is None:
            return
        if begin > EARLIEST:
            self.is_complete = False
            self._state.gap = (begin, ends)
            logger.warning(
                "%s: no list contains the changes from %s to %s; some may be missed",
                self._url,
                format_datetime(begin),
                format_datetime(ends),
            )
        frontier.advance(ends)
        async for batch in self._reread(frontier, known_through):
            yield batch

    async def _reread(
        self, frontier: Frontier, known_through: Instant | None
    ) -> AsyncIterator[OriginBatch]:
        """Yield the changes after a frontier, but of those already recorded only the latest.

        Otherwise, a resource that changed in several lists would return to its earlier states.
        """
        self.reading = ChangeReading(self._fetcher, self._offer, frontier)
        entries: dict[str, SeenEntry | MissingEntry] = {}
        async for uri, changes in self.reading.read():
            entries |= _latest_entries(uri, changes)
            if known_through is None or self.reading.frontier.instant >= known_through:
                yield OriginBatch(tuple(entries.values()), self._state.advanced(frontier))
                entries.clear()
        if entries:
            yield OriginBatch(tuple(entries.values()), self._state.advanced(frontier))


RESOURCESYNC = OriginType(
    lambda origin, client, _: ResourceSyncAdapter(without_login(origin.url), client, origin.compare)
)
