"""The resources that a copy should have, according to the Source's current documents.

They are read into a temporary database, so even a large set needs little memory.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import DocumentError, FetchError, StorageError, without_credentials
from rsnotify.format.coverage import Change, Coverage, Frontier, is_ahead
from rsnotify.format.datetimes import Instant, format_datetime, postponed, to_microseconds
from rsnotify.format.hashes import agree
from rsnotify.format.links import resolve
from rsnotify.format.model import Capability, ChangeType, Document, Rel, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.uris import normalize
from rsnotify.runtime.reasons import reason_of
from rsnotify.selection import Selection
from rsnotify.sync.actions import DocumentKind, Fetch
from rsnotify.sync.baseline import Baseline
from rsnotify.sync.change_intake import ReducedChanges, reduce_changes
from rsnotify.sync.closed_lists import ClosedLists, KnownLists
from rsnotify.sync.doubts import BEHIND, OLDER_LIST, describe_undated
from rsnotify.sync.progress import Progress
from rsnotify.sync.pull import Pull, PullStep, change_documents, resource_documents
from rsnotify_subscriber.content.packages import DumpPackages
from rsnotify_subscriber.discovery.set_membership import SetMembership
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.status import SyncActivity
from rsnotify_subscriber.storage.baseline_tables import same_resource
from rsnotify_subscriber.storage.resource_state import deletes, needs_request, select_in

#: An interval may be rounded to whole seconds.
_ROUNDED = timedelta(seconds=1)
_EARLIEST = datetime.min.replace(tzinfo=UTC)
#: Maximum number of gaps to skip, since a Source could have any number of them.
_GAPS = 16
#: Maximum number of resources that one doubt names.
_NAMED = 3
#: Number of resources to read from the database, or to write to it, at once.
_PART = 2_000

T = TypeVar("T")


class Expectation(Struct):
    """The information in the documents about one resource.

    Args:
        entry: The resource's latest entry; None if it no longer exists or is not followed.
        listed: The resource's entry in the Resource List.
        listed_at: The `at` of that part of the Resource List, in microseconds since 1970.
        changed_at: The datetime of the latest change after the Resource List, in the same unit.
        before: The entry of the latest change that is not later than the Resource List.
    """

    entry: Resource | None = None
    listed: Resource | None = None
    listed_at: int | None = None
    changed_at: int | None = None
    before: Resource | None = None


class ExpectedFile(NamedTuple):
    """A resource that the copy should have, with its latest entry."""

    uri: str  # in normal form
    entry: Resource
    name: str  # the URI as spelled in the copy


class _StoredEntry(Struct, array_like=True):
    """An entry with the `fold` of its datetimes, which the encoding does not keep."""

    entry: Resource
    folds: tuple[int, ...] = ()


_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA cache_size = -8000;
CREATE TABLE resources (uri TEXT PRIMARY KEY, entry BLOB, is_undated INTEGER, listed BLOB,
    listed_at INTEGER, changed_at INTEGER, before BLOB) WITHOUT ROWID;
CREATE TABLE held (uri TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID;
BEGIN;
"""
_COLUMNS = "uri, entry, listed, listed_at, changed_at, before"
_CHANGED_BEFORE = f"""
SELECT {_COLUMNS} FROM resources WHERE before IS NOT NULL AND uri > ? ORDER BY uri LIMIT ?
"""
_PAGE = """
SELECT uri, entry, coalesce(name, '') FROM resources LEFT JOIN held USING (uri)
    WHERE entry IS NOT NULL AND uri > ? ORDER BY uri LIMIT ?
"""


class ExpectedResources:
    """The followed resources of a Source, in a temporary database.

    Instances may be used from several threads. All URIs are in normal form.

    Attributes:
        has_spellings: Whether the documents contain a URI that is not in normal form.
        contested: The last entry of each resource that exists according to the Resource List but
            not according to the Change Lists, or the reverse.
        respelled: The last entry of each resource that the Change Lists have in several spellings,
            deleted in one and not in another. Its server decides whether it exists.
        ambiguous: The resources whose latest change cannot be determined from the documents.
        doubts: The reasons why the documents may be incomplete.
        limits: The limits of what the documents can show, in sentences.
    """

    def __init__(self, path: Path) -> None:
        self._lock = Lock()
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.executescript(_SCHEMA)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_StoredEntry).decode
        self._forget()

    def _forget(self) -> None:
        self.has_spellings = False
        self.contested: dict[str, Resource] = {}
        self.respelled: dict[str, Resource] = {}
        self.ambiguous: set[str] = set()
        self.doubts: tuple[str, ...] = ()
        self.limits: tuple[str, ...] = ()

    def close(self) -> None:
        with self._lock:  # a thread may still be using it
            self._database.close()

    def clear(self) -> None:
        """Remove everything that was read."""
        self._forget()
        self.clear_resources()

    def clear_resources(self) -> None:
        with self._lock:
            self._database.execute("DELETE FROM resources")

    def find(self, uris: Sequence[str]) -> dict[str, Expectation]:
        """Return the stored expectations by URI. URIs without one are left out."""
        query = f"SELECT {_COLUMNS} FROM resources WHERE uri IN"
        with self._lock:
            rows = list(select_in(self._database.execute, query, uris))
        return dict(map(self._expectation, rows))

    def store(self, found: Mapping[str, Expectation]) -> None:
        rows = [self._row(uri, one) for uri, one in found.items()]
        with self._lock:
            self._database.executemany(
                "INSERT OR REPLACE INTO resources VALUES (?, ?, ?, ?, ?, ?, ?)", rows
            )

    def _row(self, uri: str, one: Expectation) -> tuple[object, ...]:
        entry = one.entry
        is_undated = entry is not None and entry.hash is None and entry.changed_at is None
        listed = None if one.listed is entry else self._stored(one.listed)
        before = self._stored(one.before)
        return uri, self._stored(entry), is_undated, listed, one.listed_at, one.changed_at, before

    def _expectation(self, row: tuple[Any, ...]) -> tuple[str, Expectation]:
        uri, entry, listed, listed_at, changed_at, before = row
        latest = self._entry(entry)
        first = latest if listed is None and listed_at is not None else self._entry(listed)
        return uri, Expectation(latest, first, listed_at, changed_at, self._entry(before))

    def _stored(self, entry: Resource | None) -> bytes | None:
        if entry is None:
            return None
        dates = (entry.lastmod, entry.datetime, *(link.modified for link in entry.links))
        folds = tuple(0 if date is None else date.fold for date in dates)
        return self._encode(_StoredEntry(entry, folds if any(folds) else ()))

    def _entry(self, stored: bytes | None) -> Resource | None:
        if stored is None:
            return None
        decoded = self._decode(stored)
        entry = decoded.entry
        if not decoded.folds:
            return entry
        first, second, *others = decoded.folds
        links = (
            replace(link, modified=_folded(link.modified, fold))
            for link, fold in zip(entry.links, others, strict=True)
        )
        return replace(
            entry,
            lastmod=_folded(entry.lastmod, first),
            datetime=_folded(entry.datetime, second),
            links=tuple(links),
        )

    def count(self) -> tuple[int, int]:
        """Return the number of existing resources, and of those without a hash and a date."""
        query = "SELECT count(entry), coalesce(sum(is_undated), 0) FROM resources"
        with self._lock:
            resources, undated_ones = self._database.execute(query).fetchone()
        return resources, undated_ones

    def changed_before(self) -> Iterator[tuple[str, Expectation]]:
        """Yield the resources with a change that is not later than the Resource List."""
        after = ""
        while rows := self._rows(_CHANGED_BEFORE, after, _PART):
            after = rows[-1][0]
            yield from map(self._expectation, rows)

    def page(self, after: str, limit: int) -> list[ExpectedFile]:
        """Return the next existing resources after a URI, in the order of their URIs."""
        return [
            ExpectedFile(uri, entry, name or entry.uri)
            for uri, stored, name in self._rows(_PAGE, after, limit)
            if (entry := self._entry(stored)) is not None
        ]

    def _rows(self, query: str, after: str, limit: int) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._database.execute(query, (after, limit)).fetchall()

    # The resources of the copy

    def hold(self, uris: Iterable[str]) -> None:
        """Store the URIs of the resources in the copy, replacing those stored before.

        URIs that cannot differ from those in the documents are skipped.
        """
        rows = ((normalize(uri), uri) for uri in uris)
        if not self.has_spellings:
            rows = ((identity, uri) for identity, uri in rows if identity != uri)
        with self._lock:
            self._database.execute("DELETE FROM held")
            self._database.executemany("INSERT OR REPLACE INTO held VALUES (?, ?)", rows)

    def held_names(self, uris: Sequence[str]) -> dict[str, str]:
        """Return the URIs as spelled in the copy, for those resources that it has."""
        query = "SELECT uri, name FROM held WHERE uri IN"
        with self._lock:
            return dict(select_in(self._database.execute, query, uris))


@contextmanager
def expected_resources(path: Path) -> Iterator[ExpectedResources]:
    """Open a temporary database for the context, and raise its errors as `StorageError`."""
    try:
        with closing(ExpectedResources(path)) as expected:
            yield expected
    except sqlite3.Error as error:
        raise StorageError(f"{path}: {reason_of(error)}") from error


def _folded(date: Instant | None, fold: int) -> Instant | None:
    return date if date is None else date.replace(fold=fold)


def _in_parts(things: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(things)
    while part := list(islice(remaining, _PART)):
        yield part


@dataclass
class ExpectationReader:
    """Reads the expected resources from the Resource List and the Change Lists after its `at`.

    If a Source has only dumps, the manifests of their packages take the place of these lists. If
    lists are older than those from which the copy was made, according to its `progress`, this is
    noted as a doubt. The number of bytes received is recorded in `activity`.
    """

    fetcher: Fetcher
    offer: Offer
    selection: Selection
    progress: Progress | None
    membership: SetMembership
    expected: ExpectedResources
    activity: SyncActivity
    #: Whether documents that end before the last compared Resource List are older than it.
    _is_comparable: bool = field(default=False, init=False)

    async def read(self) -> None:
        """Read all documents that determine the present set of resources."""
        self._packages = DumpPackages(self.fetcher)
        self.expected.clear()
        #: Maps each spelling of a URI that is left out to the spelling of the entry that counts.
        self._twofold: dict[str, str] = {}
        self._received = self.fetcher.received
        try:
            self._at = await self._read_resources()
            frontier = Frontier.at(self._at)
            if change_documents(self.offer):
                await self._read_changes(frontier)
        finally:
            await self._packages.close()
        await asyncio.to_thread(self._note_undated)
        self._check_age(frontier.instant)
        await asyncio.to_thread(self._compare_lists)

    def _doubt(self, reason: str) -> None:
        if reason not in self.expected.doubts:
            self.expected.doubts += (reason,)

    async def _document(self, fetch: Fetch) -> tuple[Document, Instant | None]:
        try:
            return await self._requested(fetch)
        finally:
            self.activity.bytes = self.fetcher.received - self._received

    async def _requested(self, fetch: Fetch) -> tuple[Document, Instant | None]:
        """Read a document, or the manifest of a package, and the time when it was sent.

        A copy of the manifest next to the package is enough. The time is by the Source's clock.
        """
        package = fetch.package
        if package is None:
            document, sent = await self.membership.document(
                fetch, self.offer, holds_resources=self.progress is not None
            )
            if (reason := _contradiction_in(document, sent)) is not None:
                self._doubt(f"{fetch.uri}: {reason}")
            return document, sent
        copy = next((link.href for link in package.links if link.rel == Rel.CONTENTS), None)
        if copy is not None:
            with suppress(FetchError, DocumentError):  # the package also contains the manifest
                return await self.fetcher.document(resolve(fetch.uri, copy)), None
        return await self._packages.open(package), None

    def _note_undated(self) -> None:
        resources, count = self.expected.count()
        if count:
            text = f"{describe_undated(count, resources)}; they were compared with the server"
            self.expected.limits += (text,)

    def _check_age(self, ends: Instant) -> None:
        """Note a doubt if the documents end before the documents that the copy was made from."""
        progress = self.progress
        if progress is None:
            return
        if progress.seen and ends < progress.confirmed:
            self._doubt(BEHIND)
        # If another document replaces the Resource List, the change documents reach beyond it.
        known = progress.last_list if self._is_comparable else None
        if known is not None and known.at is not None and ends < known.at:
            self._doubt(OLDER_LIST)

    # The set of resources

    async def _read_resources(self) -> Instant:
        if not resource_documents(self.offer):
            self._doubt("the Source offers no list of its resources")
            return _EARLIEST
        baseline = Baseline(self.offer, _EARLIEST)
        following: Fetch | None = baseline.current
        while following is not None:
            if following is baseline.root:
                self._twofold.clear()
                self.expected.clear_resources()
            await self._read_list(baseline)
            following = baseline.next()
        if baseline.error is not None and not baseline.complete:
            raise baseline.error
        is_list = baseline.root.kind is DocumentKind.RESOURCE_LIST
        is_replaced = self.offer.resource_list is not None and not change_documents(self.offer)
        self._is_comparable = is_list or is_replaced
        for uri, first in islice(self._twofold.items(), 1):
            more = f" and {len(self._twofold) - 1} more" if len(self._twofold) > 1 else ""
            self._doubt(f"{without_credentials(uri)}{more}: {same_resource(first)}")
        return baseline.at

    async def _read_list(self, baseline: Baseline) -> None:
        uri = baseline.current.uri
        try:
            part = baseline.read(*await self._document(baseline.current))
        except FetchError as error:
            baseline.skip(error)
        except DocumentError as error:
            baseline.skip(error.at(uri))
        else:
            if part is not None:
                await asyncio.to_thread(self._list, part.resources, to_microseconds(part.at))

    def _list(self, resources: Sequence[Resource], at: int) -> None:
        for part in _in_parts(resources):
            keys = [normalize(resource.uri) for resource in part]
            self.expected.has_spellings |= keys != [resource.uri for resource in part]
            found = self.expected.find(keys)
            for key, resource in zip(keys, part, strict=True):
                before = found.get(key)
                if before is None or before.listed is None or before.listed.uri == resource.uri:
                    found[key] = Expectation(self._followed(resource), resource, at)
                else:
                    self._twofold[resource.uri] = before.listed.uri
            self.expected.store(found)

    def _followed(self, resource: Resource) -> Resource | None:
        return resource if self.selection.wants(resource) else None

    # The changes after the Resource List

    async def _read_changes(self, frontier: Frontier) -> None:
        for _ in range(_GAPS):
            step = await self._pull(frontier)
            gap = step.gap_ends
            if gap is None:
                return
            since = f"from {format_datetime(frontier.instant)} to"
            since = "before" if frontier.instant == _EARLIEST else since
            cure = f"; {step.cure}" if step.cure else ""
            self._doubt(f"no document covers the time {since} {format_datetime(gap)}{cure}")
            frontier.advance(gap)

    async def _pull(self, frontier: Frontier) -> PullStep:
        """Read the changes up to a gap, if there is one. Return the last step."""
        pull = Pull(self.offer, closed=ClosedLists(KnownLists(frontier.instant)))
        following: Fetch | None = pull.current
        while following is not None:
            try:
                document, sent = await self._document(following)
                step = pull.read(document, frontier, sent)
            except (FetchError, DocumentError) as error:
                step = pull.abandon(error, frontier)
            if step.coverage is not None:
                await asyncio.to_thread(self._add, step.coverage, frontier)
            if step.failure is not None:
                self._doubt(str(step.failure))
            following = step.fetch
        return step

    def _add(self, coverage: Coverage, frontier: Frontier) -> None:
        reduced = reduce_changes(coverage.changes, ordered=coverage.ordered)
        for part in _in_parts(reduced.latest.values()):
            found = self.expected.find([change.uri for change in part])
            for change in part:
                known = found.setdefault(change.uri, Expectation())
                self._add_change(change, known, reduced)
            self.expected.store(found)
        if coverage.until is not None:
            frontier.advance(coverage.until, coverage.changes, over=coverage.closed)

    def _add_change(self, change: Change, known: Expectation, reduced: ReducedChanges) -> None:
        is_ambiguous = change.uri in reduced.ambiguous
        self.expected.has_spellings |= change.uri != change.resource.uri
        at = to_microseconds(change.at)
        if self._is_listed_later(change, known):
            self._ignore_content(change, known)
            if not is_ambiguous and known.changed_at is None:
                known.before = change.resource
        elif known.changed_at is None or at >= known.changed_at:
            # Documents may overlap: one may contain earlier changes that another lacks.
            known.changed_at, known.before = at, None
            is_deleted = change.change is ChangeType.DELETED
            known.entry = None if is_deleted else self._followed(change.resource)
            self._note_doubtful(change, reduced)

    def _note_doubtful(self, change: Change, reduced: ReducedChanges) -> None:
        """Mark the resource of an added change as respelled or ambiguous, if it is."""
        uri, expected = change.uri, self.expected
        expected.respelled.pop(uri, None)
        expected.ambiguous.discard(uri)
        if uri in reduced.respelled:
            expected.respelled[uri] = change.resource
        elif uri in reduced.ambiguous:
            expected.ambiguous.add(uri)

    def _ignore_content(self, change: Change, known: Expectation) -> None:
        """Ignore the listed content of a resource if a change may refer to a later version."""
        entry = known.entry
        if entry is None:
            return
        lastmod = to_microseconds(entry.lastmod) if entry.lastmod else None
        if needs_request(change, lastmod):
            known.entry = self._followed(replace(entry, hash=None, length=None, lastmod=None))

    def _is_listed_later(self, change: Change, known: Expectation) -> bool:
        """Return whether the Resource List describes the resource as it was after a change."""
        listed = known.listed
        if listed is None or known.listed_at is None:
            return change.at < self._at
        lastmod = to_microseconds(listed.lastmod) if listed.lastmod else None
        is_later = known.listed_at > to_microseconds(change.at)
        return is_later and not deletes(change, listed.hash, lastmod)

    def _compare_lists(self) -> None:
        """Compare the Resource List with the changes before it, because its `at` may be wrong."""
        differing = []
        for uri, known in self.expected.changed_before():
            before, listed = known.before, known.listed
            if before is None:
                continue
            is_there = before.change is not ChangeType.DELETED
            if is_there != (listed is not None):
                if self.selection.wants(before) or known.entry is not None:
                    self.expected.contested[uri] = before
            elif listed is not None and agree(before.hash, listed.hash or "") is False:
                differing.append(before.uri)
        if differing:
            more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            self._doubt(
                "the Resource List and the Change List have different hashes for "
                + ", ".join(differing[:_NAMED])
                + more
            )


def _contradiction_in(document: Document, sent: Instant | None) -> str | None:
    """Return, in a clause, why the times in a list cannot be true; None if they can.

    `sent` is when the list was sent, if known.
    """
    for name, instant in (("at", document.at), ("until", document.until)):
        if instant is not None and sent is not None and is_ahead(instant, sent):
            return (
                f"its {name}, {format_datetime(instant)}, is later than the answer with it, "
                f"of {format_datetime(sent)}"
            )
    if document.capability != Capability.CHANGE_LIST or document.index:
        return None
    outside = [
        resource.uri
        for resource in document.resources
        if (at := resource.changed_at) is not None
        and (
            (document.from_ is not None and postponed(at, _ROUNDED) < document.from_)
            or (document.until is not None and at > postponed(document.until, _ROUNDED))
        )
    ]
    if not outside:
        return None
    return f"{len(outside)} entries, as that of {outside[0]}, lie outside of its interval"
