"""Sources without push: the Change Lists and archives of ResourceSync, and its Resource List.

The URL is that of a Source, a Capability List or a document of a set, as for `rsnotify follow`,
whose discovery and choice of documents are used. Dumps are not read, since they have content.

- A check reads the Change List, and archives if that begins too late, from where the last check
  ended. A change is seen if its hash differs; without a hash, if its datetime or length does.
- A deletion is seen as a change. A Source that only leaves a resource out of its Resource List is
  compared with it from time to time (`compare`). A resource that changed after the `at` of that
  list is not compared, and a list of several files is read again if they change meanwhile.
- The whole set is compared as well if no list reaches back to the last check, or if the lists end
  earlier than they did, as after a Source was restored. If the Resource List is older than the
  missing changes, or there is none, the gap is reported.
- Entries of the Resource List that have other metadata than those of Change Lists, such as another
  kind of hash, are recorded as updated once per comparison.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from rsnotify.errors import (
    ConfigurationError,
    DocumentError,
    InvalidDocument,
    NotFound,
    Unavailable,
)
from rsnotify.format.coverage import EARLIEST, Change
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.frontier import ChangeKey, Frontier
from rsnotify.format.links import resolve
from rsnotify.format.model import Resource
from rsnotify.format.offer import Offer
from rsnotify.format.vocabulary import ChangeType
from rsnotify.sync.actions import Fetch
from rsnotify.sync.baseline import Baseline
from rsnotify.sync.fallback_order import change_documents, resource_documents
from rsnotify.sync.pull import Pull, PullStep
from rsnotify_gateway.adapter import (
    KnownEntries,
    MissingEntry,
    OriginBatch,
    OriginTerms,
    SeenEntry,
)
from rsnotify_gateway.client import OriginClient
from rsnotify_gateway.reconciling import usable_uri
from rsnotify_subscriber.discovery.descriptions import DescriptionReader
from rsnotify_subscriber.discovery.offers import OfferDiscovery
from rsnotify_subscriber.fetching.cache import DocumentCache
from rsnotify_subscriber.fetching.fetcher import Fetcher

_log = logging.getLogger("rsnotify.gateway")
#: Seconds between two comparisons with the Resource List, by default.
_COMPARE = 86_400.0
#: How often a Resource List of several files is read, if they change meanwhile.
_MOST_ROUNDS = 3
#: How much sooner than usual the set is compared again, if the Resource List was too old.
_SPEEDUP = 24
_CACHED_DOCUMENTS, _CACHED_ENTRIES = 4, 10_000


class SourceCursor(Struct, omit_defaults=True):
    """How far a Source was read.

    Args:
        through: The instant up to which all changes are recorded; None before the first check.
        seen: The changes at that very instant.
        running: Whether more changes may be dated with it.
        compared: When the whole set was last compared, in seconds since 1970.
        gap: The last interval of which changes may have been missed.
    """

    through: Instant | None = None
    seen: tuple[ChangeKey, ...] = ()
    running: bool = False
    compared: float = 0.0
    gap: tuple[Instant, Instant] | None = None

    @property
    def frontier(self) -> Frontier:
        return Frontier.at(self.through or EARLIEST, self.seen, running=self.running)

    def encoded(self, frontier: Frontier) -> str:
        """Return the cursor with the progress of a frontier, as a text."""
        self.through, self.running = frontier.instant, frontier.running
        self.seen = tuple(frontier.seen.elements())
        return msgspec.json.encode(self).decode()


_decode = msgspec.json.Decoder(SourceCursor).decode


class ResourceSyncAdapter:
    """Reads a Source.

    Args:
        url: The URL of a site, a Capability List or one of the documents that it lists.
        compare: Seconds between two comparisons with the Resource List.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        url: str,
        client: OriginClient,
        compare: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        cache = DocumentCache(_CACHED_DOCUMENTS, _CACHED_ENTRIES)
        self._fetcher = Fetcher(client.documents, Path(), cache=cache)
        self._discovery = OfferDiscovery(DescriptionReader(self._fetcher), url)
        self._compare = compare or _COMPARE
        self._clock = clock
        self._offer: Offer | None = None
        self._last = SourceCursor()

    def terms(self) -> OriginTerms:
        """Return what the Source shows, by its Capability List in the last check."""
        has_list = self._offer is None or bool(resource_documents(self._offer))
        deletions = "A deletion is seen as a change in a Change List"
        if has_list:
            deletions += (
                ", or as the absence from the Resource List at a comparison, every "
                f"{self._compare:g} seconds"
            )
        limits = []
        if not has_list:
            limits.append(
                "There is no Resource List: what no Change List has mentioned is not known."
            )
        if self._last.gap is not None:
            begin, end = map(format_datetime, self._last.gap)
            limits.append(f"Changes from {begin} to {end} may have been missed.")
        return OriginTerms("ResourceSync", None, deletions + ".", tuple(limits))

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Read the changes since the cursor; if it is time, compare the whole set."""
        state = SourceCursor() if cursor is None else _decode(cursor)
        offer = await self._offered()
        reading = _ChangeReading(self._fetcher, offer, state.frontier)
        is_first = state.through is None
        if not is_first:
            async for batch in reading.batches(state):
                yield batch
        is_due = self._clock() >= state.compared + self._compare
        must = is_first or reading.gap_ends is not None or reading.has_gone_back
        if must or (is_due and resource_documents(offer)):
            comparison = _Comparison(self._fetcher, offer, state, reading, self._url)
            async for batch in comparison.batches(known):
                yield batch
            wait = self._compare * (1 if comparison.is_whole else 1 / _SPEEDUP)
            state.compared = self._clock() - self._compare + wait
            reading = comparison.reading
        self._last = state
        yield OriginBatch((), state.encoded(reading.frontier))

    async def _offered(self) -> Offer:
        """Return what the Source offers now, without its dumps."""
        if self._offer is None:
            offer = await self._discovery.find()
        else:
            offer = await self._discovery.revalidate(self._offer)
        self._offer = offer
        lists = msgspec.structs.replace(
            offer,
            resource_dump=None,
            resource_dump_archive=None,
            change_dump=None,
            change_dump_archive=None,
        )
        if not change_documents(lists):
            raise ConfigurationError(
                f"{self._url} offers no Change List, which this type of origin needs; if it has a "
                'Resource List, name that one with type = "sitemap"'
            )
        return lists


class _ChangeReading:
    """One pull of the lists of changes, from a frontier on.

    Attributes:
        frontier: The instant up to which all changes were read.
        gap_ends: Where the lists begin, if none of them joins the frontier.
        ends: The last instant that a list said anything about.
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
        """Whether all lists end before the frontier, as after the Source was restored."""
        return self.ends is not None and self.ends < self._began_at

    async def batches(self, state: SourceCursor) -> AsyncIterator[OriginBatch]:
        """Read the lists; each batch has the cursor after it."""
        async for uri, changes in self.read():
            yield OriginBatch(_latest(uri, changes), state.encoded(self.frontier))

    async def read(self) -> AsyncIterator[tuple[str, list[Change]]]:
        """Yield the new changes of each list, with its URI.

        Raises:
            RsnotifyError: A list cannot be read, and no other can be read in its place.
        """
        pull = Pull(self._offer)
        while True:
            uri = pull.current.uri
            step = await self._step(pull)
            if step.coverage is not None:
                until = step.coverage.until or EARLIEST
                self.ends = max(self.ends or EARLIEST, until)
                changes = self.frontier.learn(step.coverage)
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
            document, sent = await self._fetcher.sent_document(uri)
            return pull.read(document, self.frontier, sent)
        except NotFound as error:
            return pull.abandon(error, self.frontier)
        except DocumentError as error:
            return pull.abandon(error if error.source else error.at(uri), self.frontier)


class _Comparison:
    """One comparison with the whole set, and the changes since.

    Attributes:
        reading: The last reading of the lists of changes.
        is_whole: Whether nothing is missing after it.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        offer: Offer,
        state: SourceCursor,
        reading: _ChangeReading,
        url: str,
    ) -> None:
        self._fetcher = fetcher
        self._offer = offer
        self._state = state
        self._url = url
        self._has_gone_back = reading.has_gone_back
        self.reading = reading
        self.is_whole = True

    async def batches(self, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        begin = EARLIEST if self._has_gone_back else self.reading.frontier.instant
        if resource_documents(self._offer):
            walk = _ListWalk(self._fetcher, self._offer, self._url)
            async for entries in walk.entries(None if self._has_gone_back else begin):
                yield OriginBatch(entries)
            if walk.is_outdated:
                self.is_whole = False
                if self.reading.gap_ends is None:
                    return
            else:
                found = await known.select(lambda uri, _: uri not in walk.listed)
                yield OriginBatch(tuple(MissingEntry(uri) for uri, _ in found))
                begin, self._state.gap = walk.at, None
        async for batch in self._changes_since(begin):
            yield batch

    async def _changes_since(self, begin: Instant) -> AsyncIterator[OriginBatch]:
        frontier = Frontier.at(EARLIEST)
        frontier.advance(begin, over=False)
        self.reading = _ChangeReading(self._fetcher, self._offer, frontier)
        async for batch in self.reading.batches(self._state):
            yield batch
        ends = self.reading.gap_ends
        if ends is None:
            return
        if begin > EARLIEST:
            self.is_whole = False
            self._state.gap = (begin, ends)
            _log.warning(
                "%s: no list has the changes from %s to %s; some may be missed",
                *(self._url, format_datetime(begin), format_datetime(ends)),
            )
        frontier.advance(ends)
        self.reading = _ChangeReading(self._fetcher, self._offer, frontier)
        async for batch in self.reading.batches(self._state):
            yield batch


class _ListWalk:
    """One reading of the Resource List, and of the changes since.

    Attributes:
        at: The instant that the list describes.
        is_outdated: Whether the list has nothing that is not known, and no changes lead on from it.
        listed: The resources that it lists, and those that changed later.
    """

    def __init__(self, fetcher: Fetcher, offer: Offer, url: str) -> None:
        self._fetcher = fetcher
        self._offer = offer
        self._url = url
        self.at = EARLIEST
        self.is_outdated = False
        self.listed: set[str] = set()
        self._changed: set[str] | None = None
        self._read: list[tuple[str, int]] = []

    async def entries(self, through: Instant | None) -> AsyncIterator[tuple[SeenEntry, ...]]:
        """Yield the entries that did not change after `at`, until two readings agree.

        `through` is the instant up to which all changes are known.
        """
        for _ in range(_MOST_ROUNDS):
            before, self._read = self._read, []
            self._changed, self.listed = None, set()
            async for entries in self._walk(through):
                yield entries
            if self.is_outdated or len(self._read) == 1 or self._read == before:
                return
        raise Unavailable(self._url, "its Resource List changes while it is read")

    async def _walk(self, through: Instant | None) -> AsyncIterator[tuple[SeenEntry, ...]]:
        baseline = Baseline(self._offer, EARLIEST)
        following: Fetch | None = baseline.current
        while following is not None:
            uri = following.uri
            try:
                document, sent = await self._fetcher.sent_document(uri)
                found = baseline.read(document, sent)
            except (NotFound, DocumentError) as error:
                baseline.skip(error)
            else:
                self._read.append((uri, hash(document)))
                if self._changed is None:
                    await self._read_changes(baseline.at, through)
                    if self.is_outdated:
                        return
                if found is not None:
                    yield self._seen(uri, found.resources)
            following = baseline.next()
        if not baseline.complete:
            raise baseline.error or Unavailable(self._url, "its Resource List is not complete")
        self.at = baseline.at

    async def _read_changes(self, at: Instant, through: Instant | None) -> None:
        """Find out what changed after the instant of the list."""
        frontier = Frontier.at(EARLIEST)
        frontier.advance(at, over=False)
        reading = _ChangeReading(self._fetcher, self._offer, frontier)
        self._changed = set()
        async for uri, changes in reading.read():
            self._changed.update(_usable(uri, change.uri) for change in changes)
        has_gap = reading.gap_ends is not None
        self.is_outdated = has_gap and through is not None and at <= through
        self.listed |= self._changed

    def _seen(self, uri: str, resources: Iterable[Resource]) -> tuple[SeenEntry, ...]:
        assert self._changed is not None
        found = {}
        for resource in resources:
            usable = _usable(uri, resource.uri)
            if usable not in self._changed:
                found[usable] = _entry(usable, resource)
        self.listed.update(found)
        return tuple(found.values())


def _latest(uri: str, changes: list[Change]) -> tuple[SeenEntry | MissingEntry, ...]:
    """Return the state of each resource after the changes of a list."""
    found: dict[str, SeenEntry | MissingEntry] = {}
    for change in sorted(changes, key=lambda change: change.at):
        usable = _usable(uri, change.uri)
        found.pop(usable, None)
        is_deleted = change.change is ChangeType.DELETED
        found[usable] = MissingEntry(usable) if is_deleted else _entry(usable, change.resource)
    return tuple(found.values())


def _entry(uri: str, resource: Resource) -> SeenEntry:
    lastmod = resource.lastmod or resource.datetime
    stated = Resource(
        uri, lastmod=lastmod, hash=resource.hash, length=resource.length, type=resource.type
    )
    at = "" if lastmod is None else format_datetime(lastmod)
    length = "" if resource.length is None else resource.length
    state = " ".join(sorted((resource.hash or "").split())) or f"{at} {length}".strip()
    return SeenEntry(stated, state)


def _usable(uri: str, reference: str) -> str:
    usable = usable_uri(resolve(uri, reference))
    if usable is None:
        raise InvalidDocument(f"{reference[:200]!r} is no URI", source=uri)
    return usable
