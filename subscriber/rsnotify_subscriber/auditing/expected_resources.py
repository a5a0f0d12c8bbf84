"""The resources that a copy should have according to the Source's current documents.

They are stored in a temporary database, so even a large set needs little memory.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from rsnotify.errors import (
    DocumentError,
    FetchError,
    StorageError,
    counted,
    without_credentials,
)
from rsnotify.format.coverage import EARLIEST, Change, CheckMethod, Coverage, Frontier, is_ahead
from rsnotify.format.datetimes import (
    Instant,
    format_datetime,
    is_undecided,
    postponed,
    time_span,
    to_microseconds,
)
from rsnotify.format.links import resolve
from rsnotify.format.model import Capability, ChangeType, Document, Rel, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.uris import normalize
from rsnotify.runtime.reasons import reason_of
from rsnotify.selection import Selection
from rsnotify.sync.actions import DocumentKind, Fetch
from rsnotify.sync.baseline import Baseline
from rsnotify.sync.closed_lists import ClosedLists, KnownLists
from rsnotify.sync.doubts import BEHIND, OLDER_LIST, describe_undated
from rsnotify.sync.progress import Progress
from rsnotify.sync.pull import Pull, PullStep, change_documents, resource_documents
from rsnotify.sync.reduction import merged, reduce_changes
from rsnotify_subscriber.content.packages import DumpPackages
from rsnotify_subscriber.discovery.set_membership import SetMembership
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.status import SyncActivity
from rsnotify_subscriber.storage.backlog_table import decode_changes, encode_changes
from rsnotify_subscriber.storage.baseline_tables import same_resource
from rsnotify_subscriber.storage.resource_state import deletes, needs_request, select_in

#: Tolerance for intervals, which may be rounded to whole seconds.
_ROUNDING = timedelta(seconds=1)
#: Maximum number of gaps to skip.
_MAX_GAPS = 3
#: Maximum number of resources to name in a doubt.
_MAX_NAMED_RESOURCES = 3
#: Number of resources in one query or write.
_BATCH_SIZE = 2_000

T = TypeVar("T")


class ExpectedResource(NamedTuple):
    """A resource that the copy should have, or that only the server can confirm to exist."""

    #: The latest change, or the entry in the Resource List. If it is a deletion, the documents do
    #: not determine whether the resource exists.
    change: Change
    #: The URI as spelled in the copy.
    name: str
    #: Whether its entry differs from the one in the documents that were read before.
    is_new: bool


_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA cache_size = -8000;
CREATE TABLE resources
    (uri TEXT PRIMARY KEY, is_expected INTEGER, is_undated INTEGER, entry INTEGER, change BLOB)
    WITHOUT ROWID;
CREATE TABLE previous (uri TEXT PRIMARY KEY, entry INTEGER, change BLOB) WITHOUT ROWID;
CREATE TABLE held (uri TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID;
BEGIN;
"""
_PAGE_QUERY = """
SELECT resources.change, coalesce(name, ''), resources.entry IS NOT previous.entry
    FROM resources LEFT JOIN held USING (uri) LEFT JOIN previous USING (uri)
    WHERE is_expected IS NOT NULL AND uri > ? ORDER BY uri LIMIT ?
"""
_UNLISTED_QUERY = """
SELECT previous.change, coalesce(name, ''), TRUE
    FROM previous LEFT JOIN held USING (uri) LEFT JOIN resources USING (uri)
    WHERE is_expected IS NULL AND uri > ? ORDER BY uri LIMIT ?
"""


class ExpectedResources:
    """The followed resources of a Source, in a temporary database.

    Instances are thread-safe. All URIs are normalized.

    Attributes:
        has_spellings: Whether the documents contain a URI that is not normalized.
        contested: For each resource on whose existence the Resource List and the last change before
            it disagree, that change.
        doubts: Why the documents may be incomplete.
        limits: What the documents cannot show, in sentences.
    """

    def __init__(self, path: Path, selection: Selection) -> None:
        self._selection = selection
        self._lock = Lock()
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.executescript(_SCHEMA)
        self.clear()

    def close(self) -> None:
        with self._lock:  # wait for threads that still use it
            self._database.close()

    def clear(self) -> None:
        """Remove everything that was read from the documents, but remember the last entries."""
        self.has_spellings = False
        self.contested: dict[str, Change] = {}
        self.doubts: tuple[str, ...] = ()
        self.limits: tuple[str, ...] = ()
        with self._lock:
            self._database.execute("DELETE FROM previous")
            self._database.execute(
                "INSERT INTO previous SELECT uri, entry, change FROM resources "
                "WHERE is_expected IS NOT NULL"
            )
        self.clear_resources()

    def clear_resources(self) -> None:
        with self._lock:
            self._database.execute("DELETE FROM resources")

    def find(self, uris: Sequence[str]) -> dict[str, Change]:
        """Return the latest stored changes by URI, as far as there are any."""
        query = "SELECT change FROM resources WHERE uri IN"
        with self._lock:
            rows = list(select_in(self._database.execute, query, uris))
        return {change.uri: change for (stored,) in rows for change in decode_changes(stored)}

    def store(self, changes: Collection[Change]) -> None:
        """Store changes, replacing earlier changes of their resources."""
        self.has_spellings |= any(one.uri != one.resource.uri for one in changes)
        rows = list(map(self._row, changes))
        with self._lock:
            self._database.executemany(
                "INSERT OR REPLACE INTO resources VALUES (?, ?, ?, ?, ?)", rows
            )

    def _row(self, change: Change) -> tuple[object, ...]:
        entry, is_expected = change.resource, change.change is not ChangeType.DELETED
        may_exist = is_expected or change.check is CheckMethod.FETCH
        is_followed = may_exist and self._selection.wants(entry)
        is_undated = is_followed and is_expected and not (entry.hash or entry.changed_at)
        described = hash(replace(change, at=EARLIEST))  # each Resource List has another `at`
        stored = encode_changes([change])
        return change.uri, is_expected if is_followed else None, is_undated, described, stored

    def count(self) -> tuple[int, int]:
        """Return the numbers of existing resources, and of those without hash and date."""
        query = "SELECT coalesce(sum(is_expected), 0), coalesce(sum(is_undated), 0) FROM resources"
        with self._lock:
            resources, undated = self._database.execute(query).fetchone()
        return resources, undated

    def page(self, after: str, limit: int) -> list[ExpectedResource]:
        """Return the next followed resources after a URI, sorted by URI."""
        return self._page(_PAGE_QUERY, after, limit)

    def unlisted_page(self, after: str, limit: int) -> list[ExpectedResource]:
        """Return the next resources that only the documents read before contain."""
        return self._page(_UNLISTED_QUERY, after, limit)

    def _page(self, query: str, after: str, limit: int) -> list[ExpectedResource]:
        with self._lock:
            rows = self._database.execute(query, (after, limit)).fetchall()
        return [
            ExpectedResource(change, name or change.resource.uri, bool(is_new))
            for stored, name, is_new in rows
            for change in decode_changes(stored)
        ]

    # The resources of the copy

    def store_held(self, uris: Iterable[str]) -> None:
        """Store the URIs of the resources in the copy, replacing all stored before.

        URIs that are spelled as in the documents are skipped.
        """
        rows = ((normalize(uri), uri) for uri in uris)
        if not self.has_spellings:
            rows = ((identity, uri) for identity, uri in rows if identity != uri)
        with self._lock:
            self._database.execute("DELETE FROM held")
            self._database.executemany("INSERT OR REPLACE INTO held VALUES (?, ?)", rows)


@contextmanager
def expected_resources(path: Path, selection: Selection) -> Iterator[ExpectedResources]:
    """Open a temporary database, and raise its errors as `StorageError`."""
    try:
        with closing(ExpectedResources(path, selection)) as expected:
            yield expected
    except sqlite3.Error as error:
        raise StorageError(f"{path}: {reason_of(error)}") from error


def _batches(things: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(things)
    while part := list(islice(remaining, _BATCH_SIZE)):
        yield part


@dataclass
class ExpectationReader:
    """Reads the expected resources from the Resource List and the Change Lists after its `at`.

    Entries are merged as in the follower. Where the follower would fetch a resource because the
    documents do not determine its latest change, the copy is compared with the server.

    If a Source offers only dumps, the manifests of their packages are read instead. Lists older
    than those that the copy was made from, according to its `progress`, are a doubt. The number of
    received bytes is recorded in `activity`.
    """

    fetcher: Fetcher
    offer: Offer
    progress: Progress | None
    membership: SetMembership
    expected: ExpectedResources
    activity: SyncActivity
    #: Whether documents that end before the last compared Resource List are older than it.
    _is_comparable: bool = field(default=False, init=False)

    async def read(self) -> None:
        """Read all documents that determine the current set of resources."""
        self._packages = DumpPackages(self.fetcher)
        self.expected.clear()
        #: Ignored spellings of URIs, with the spelling that is used instead.
        self._duplicates: dict[str, str] = {}
        #: Resources whose hash in the Resource List differs from that of an earlier change.
        self._differing_hashes: dict[str, str] = {}
        self._received = self.fetcher.received
        try:
            self._at, self._lists_all_until = await self._read_resources()
            # As in the follower, later changes may be dated with the same second.
            frontier = Frontier.at(EARLIEST)
            frontier.advance(self._at, over=False)
            if change_documents(self.offer):
                await self._read_changes(frontier)
        finally:
            await self._packages.close()
        await asyncio.to_thread(self._note_undated)
        self._note_if_outdated(frontier.instant)
        await asyncio.to_thread(self._note_contradictions)

    def _add_doubt(self, reason: str) -> None:
        if reason not in self.expected.doubts:
            self.expected.doubts += (reason,)

    async def _read_document(self, fetch: Fetch) -> tuple[Document, Instant | None]:
        """Read a document and the time when it was sent, or the manifest of a package."""
        try:
            if fetch.package is not None:
                return await self._read_manifest(fetch.uri, fetch.package), None
            document, sent = await self.membership.document(
                fetch, self.offer, holds_resources=self.progress is not None
            )
        finally:
            self.activity.bytes = self.fetcher.received - self._received
        if (reason := _contradiction_in(document, sent)) is not None:
            self._add_doubt(f"{fetch.uri}: {reason}")
        return document, sent

    async def _read_manifest(self, dump: str, package: Resource) -> Document:
        """Read the copy of a manifest next to its package, or if there is none, the package."""
        copy = next((link.href for link in package.links if link.rel == Rel.CONTENTS), None)
        if copy is not None:
            with suppress(FetchError, DocumentError):  # the package also contains the manifest
                return await self.fetcher.document(resolve(dump, copy))
        return await self._packages.open(package)

    def _note_undated(self) -> None:
        resources, count = self.expected.count()
        if count:
            text = f"{describe_undated(count, resources)}; they were compared with the server"
            self.expected.limits += (text,)

    def _note_if_outdated(self, ends: Instant) -> None:
        """Add a doubt if the documents end before those that the copy was made from."""
        progress = self.progress
        if progress is None:
            return
        if progress.seen and ends < progress.confirmed:
            self._add_doubt(BEHIND)
        # If another document replaces the Resource List, the change documents end later.
        known = progress.last_list if self._is_comparable else None
        if known is not None and known.at is not None and ends < known.at:
            self._add_doubt(OLDER_LIST)

    # The set of resources

    async def _read_resources(self) -> tuple[Instant, Instant]:
        """Read the lists of resources. Return their `at`, and until when they list all changes."""
        if not resource_documents(self.offer):
            self._add_doubt("the Source offers no list of its resources")
            return EARLIEST, EARLIEST
        baseline = Baseline(self.offer, EARLIEST)
        following: Fetch | None = baseline.current
        while following is not None:
            if following is baseline.root:
                self._duplicates.clear()
                self.expected.clear_resources()
            await self._read_list(baseline)
            following = baseline.next()
        if baseline.error is not None and not baseline.complete:
            raise baseline.error
        is_list = baseline.root.kind is DocumentKind.RESOURCE_LIST
        is_replaced = self.offer.resource_list is not None and not change_documents(self.offer)
        self._is_comparable = is_list or is_replaced
        for uri, first in islice(self._duplicates.items(), 1):
            more = f" and {len(self._duplicates) - 1} more" if len(self._duplicates) > 1 else ""
            self._add_doubt(f"{without_credentials(uri)}{more}: {same_resource(first)}")
        return baseline.at, baseline.lists_all_until

    async def _read_list(self, baseline: Baseline) -> None:
        uri = baseline.current.uri
        try:
            part = baseline.read(*await self._read_document(baseline.current))
        except FetchError as error:
            baseline.skip(error)
        except DocumentError as error:
            baseline.skip(error.at(uri))
        else:
            if part is not None:
                await asyncio.to_thread(self._add_listed, part.resources, part.at)

    def _add_listed(self, resources: Sequence[Resource], at: Instant) -> None:
        for part in _batches(resources):
            changes = [Change(normalize(one.uri), ChangeType.UPDATED, at, one) for one in part]
            found = self.expected.find([change.uri for change in changes])
            for change in changes:
                first = found.setdefault(change.uri, change).resource.uri
                if first == change.resource.uri:
                    found[change.uri] = change
                else:
                    self._duplicates[change.resource.uri] = first
            self.expected.store(found.values())

    # The changes after the Resource List

    async def _read_changes(self, frontier: Frontier) -> None:
        for _ in range(_MAX_GAPS):
            step = await self._pull(frontier)
            gap = step.gap_ends
            if gap is None:
                return
            since = f"from {format_datetime(frontier.instant)} to"
            since = "before" if frontier.instant == EARLIEST else since
            cure = f"; {step.cure}" if step.cure else ""
            self._add_doubt(f"no document covers the time {since} {format_datetime(gap)}{cure}")
            frontier.advance(gap)

    async def _pull(self, frontier: Frontier) -> PullStep:
        """Read the changes up to the next gap or the end. Return the last step."""
        pull = Pull(self.offer, closed=ClosedLists(KnownLists(self._lists_all_until)))
        following: Fetch | None = pull.current
        while following is not None:
            try:
                document, sent = await self._read_document(following)
                step = pull.read(document, frontier, sent)
            except (FetchError, DocumentError) as error:
                step = pull.abandon(error, frontier)
            if step.coverage is not None:
                await asyncio.to_thread(self._add_changes, step.coverage, frontier)
            if step.failure is not None:
                self._add_doubt(str(step.failure))
            following = step.fetch
            if following is None and step.gap_ends is None and step.failure is None:
                following = pull.check_archive()
        return step

    def _add_changes(self, coverage: Coverage, frontier: Frontier) -> None:
        reduced = reduce_changes(
            coverage.changes, ordered=coverage.ordered, compare=True, from_=coverage.from_
        )
        for part in _batches(reduced.latest.values()):
            found = self.expected.find([change.uri for change in part])
            self.expected.store([self._merged(found.get(one.uri), one) for one in part])
        if coverage.until is not None:
            frontier.advance(coverage.until, coverage.changes, over=coverage.closed)

    def _merged(self, known: Change | None, change: Change) -> Change:
        """Return the latest change of a resource after merging one, as in the follower.

        If the Resource List contradicts an earlier change, its `at` may be wrong. The list takes
        precedence, and the contradiction is noted until a later change resolves it.
        """
        uri = change.uri
        if known is None:  # the Resource List states that it does not exist
            known = Change(uri, ChangeType.DELETED, self._at, Resource(uri))
        entry, latest = known.resource, merged(known, change)
        lastmod = to_microseconds(entry.lastmod) if entry.lastmod else None
        self.expected.contested.pop(uri, None)
        self._differing_hashes.pop(uri, None)
        if latest is known and needs_request(change, lastmod):
            return replace(known, resource=replace(entry, hash=None, length=None, lastmod=None))
        if (
            latest.check is not CheckMethod.FETCH
            or change.check is CheckMethod.FETCH
            or change.resource.changed_at is None
            or is_undecided(change.stated_at, known.stated_at)
            or deletes(change, entry.hash, lastmod)
        ):
            return latest
        if ChangeType.DELETED in (change.change, known.change):
            self.expected.contested[uri] = latest
        else:
            self._differing_hashes[uri] = change.resource.uri
        return known

    def _note_contradictions(self) -> None:
        """Store contested resources that are not listed, and add a doubt for differing hashes."""
        for part in _batches(self.expected.contested.values()):
            found = self.expected.find([change.uri for change in part])
            self.expected.store(
                [one for one in part if found[one.uri].change is ChangeType.DELETED]
            )
        if differing := sorted(self._differing_hashes.values()):
            names = ", ".join(differing[:_MAX_NAMED_RESOURCES])
            unnamed = len(differing) - _MAX_NAMED_RESOURCES
            more = f" and {unnamed} more" if unnamed > 0 else ""
            self._add_doubt(
                f"the Resource List and the Change List have different hashes for {names}{more}"
            )


def _contradiction_in(document: Document, sent: Instant | None) -> str | None:
    """Return why the times in a list cannot be true, or None. `sent` is when it was sent."""
    for name, instant in (("at", document.at), ("until", document.until)):
        if instant is not None and sent is not None and is_ahead(instant, sent):
            return (
                f"its {name}, {format_datetime(instant)}, is later than the response, which was "
                f"sent at {format_datetime(sent)}"
            )
    if document.capability != Capability.CHANGE_LIST or document.index:
        return None
    dated = [(one.uri, one.changed_at) for one in document.resources if one.changed_at is not None]
    outside = [uri for uri, at in dated if _is_outside(at, document)]
    if not outside:
        return None
    entries = counted(len(outside), "entry is", "entries are")
    return f"{entries} outside the list's interval, for example {outside[0]}"


def _is_outside(at: Instant, document: Document) -> bool:
    from_, until = document.from_, document.until
    first, last = time_span(at) if at.fold else (at, at)
    return (from_ is not None and postponed(last, _ROUNDING) < from_) or (
        until is not None and first > postponed(until, _ROUNDING)
    )
