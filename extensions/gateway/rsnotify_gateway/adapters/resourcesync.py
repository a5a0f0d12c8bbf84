"""Sources without push: the Change Lists and archives of ResourceSync, and its Resource List.

The URL is that of a Source, a Capability List or a document of a set, as for `rsnotify follow`,
whose discovery and choice of documents are used. Dumps are not read, since they have content.

- A check reads the Change List, and archives if that begins too late, from where the last check
  ended; all of it if its datetimes contradict each other. A change is seen if its hash or length
  differs; without a hash, if its datetime does, too.
- A deletion is seen as a change. A change or deletion that no Change List has, or only with a
  datetime before those that were read, is seen at a comparison with the Resource List, from time to
  time (`compare`). A resource that changed after the `at` of that list is not compared, and a list
  of several files is read again if they change meanwhile.
- The whole set is compared as well if no list reaches back to the last check, or if the lists end
  earlier than they did, as after a Source was restored. If the Resource List is older than the
  missing changes, or there is none, the gap is reported.
- Entries of the Resource List that have other metadata than those of Change Lists, such as another
  kind of hash, are recorded as updated once per comparison.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from msgspec import Struct

from rsnotify.errors import ConfigurationError, Unavailable
from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.frontier import ChangeKey, Frontier
from rsnotify.format.offer import Offer
from rsnotify.sync.fallback_order import change_documents, resource_documents
from rsnotify_gateway.adapter import KnownEntries, MissingEntry, OriginBatch, OriginTerms
from rsnotify_gateway.client import OriginClient
from rsnotify_gateway.source_reading import ChangeReading, ListReading, latest_entries
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
    """

    def __init__(self, url: str, client: OriginClient, compare: float | None = None) -> None:
        self._url = url
        cache = DocumentCache(_CACHED_DOCUMENTS, _CACHED_ENTRIES)
        self._fetcher = Fetcher(client.sessions, Path(), cache=cache)
        self._discovery = OfferDiscovery(DescriptionReader(self._fetcher), url)
        self._compare = compare or _COMPARE
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
        if has_list:
            limits.append(
                "A change that no Change List has, or that one dates before those it had earlier, "
                f"is seen at a comparison, every {self._compare:g} seconds."
            )
        else:
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
        reading = ChangeReading(self._fetcher, offer, state.frontier)
        is_first = state.through is None
        if not is_first:
            async for batch in _batches(reading, state):
                yield batch
        is_due = time.time() >= state.compared + self._compare
        must = is_first or reading.gap_ends is not None or reading.has_gone_back
        if must or (is_due and resource_documents(offer)):
            comparison = _Comparison(self._fetcher, offer, state, reading, self._url)
            async for batch in comparison.batches(known):
                yield batch
            wait = self._compare * (1 if comparison.is_whole else 1 / _SPEEDUP)
            state.compared = time.time() - self._compare + wait
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


async def _batches(reading: ChangeReading, state: SourceCursor) -> AsyncIterator[OriginBatch]:
    """Read the lists of changes; each batch has the cursor after it."""
    async for uri, changes in reading.read():
        yield OriginBatch(latest_entries(uri, changes), state.encoded(reading.frontier))


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
        reading: ChangeReading,
        url: str,
    ) -> None:
        self._fetcher = fetcher
        self._offer = offer
        self._state = state
        self._url = url
        self._has_gone_back = reading.has_gone_back
        self.reading = reading
        self.is_whole = True
        #: The instant that the Resource List describes, if that is of use.
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
                self.is_whole = False
                if self.reading.gap_ends is None:
                    return
        async for batch in self._changes_since(begin):
            yield batch

    async def _listed(
        self, through: Instant | None, known: KnownEntries
    ) -> AsyncIterator[OriginBatch]:
        """Yield what the Resource List has; and what it lacks, once two readings of it agree."""
        before: list[tuple[str, int]] = []
        for _ in range(_MOST_ROUNDS):
            listed = ListReading(self._fetcher, self._offer)
            async for entries in listed.entries(through):
                yield OriginBatch(entries)
            if listed.is_outdated:
                return
            found = await known.select(listed.lacks)
            if not found or len(listed.documents) == 1 or listed.documents == before:
                yield OriginBatch(tuple(MissingEntry(uri) for uri, _ in found))
                self._at = listed.at
                return
            before = listed.documents
        raise Unavailable(self._url, "its Resource List changes while it is read")

    async def _changes_since(self, begin: Instant) -> AsyncIterator[OriginBatch]:
        frontier = Frontier.at(EARLIEST)
        frontier.advance(begin, over=False)
        self.reading = ChangeReading(self._fetcher, self._offer, frontier)
        async for batch in _batches(self.reading, self._state):
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
        self.reading = ChangeReading(self._fetcher, self._offer, frontier)
        async for batch in _batches(self.reading, self._state):
            yield batch
