"""The state of a Destination: T, and the version of each resource in the copy.

The state is in an SQLite file or in the application's database. One transaction commits T, the
changes that it covers, the sum over the copy (docs/audit.md), and the handler's effects if they are
in the same database. `recovery` describes what happens after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import msgspec
from msgspec import Struct

from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify.format.hashes import SetSum, agree
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from rsnotify.format.uris import normalize
from rsnotify.runtime.counters import Durations
from rsnotify.selection import Selection
from rsnotify.sync.closed_lists import KnownLists
from rsnotify.sync.progress import ComparedList, MissingResource, Progress
from rsnotify.sync.pull import change_documents
from rsnotify_subscriber.handlers import HeldResource
from rsnotify_subscriber.storage.backlog_table import BacklogTable
from rsnotify_subscriber.storage.baseline_tables import BaselineTables, EntryCounts, same_resource
from rsnotify_subscriber.storage.identity import Identity, KnownLinks, has_moved
from rsnotify_subscriber.storage.recovery import ContentLog, IntentLog, UnflushedContent
from rsnotify_subscriber.storage.resource_state import (
    LOST,
    EquivalentLookup,
    Query,
    ResourceState,
    add_missing_identities,
    identity_of,
    look_up,
    pages,
)
from rsnotify_subscriber.storage.state_database import (
    StateDatabase,
    StateLocation,
    StateTransactions,
    open_folder,
)

#: The number of resources in the copy, the datetime (µs) of their latest change, and the number of
#: rows whose URI is not in normal form, and whose identity is unknown.
EXTENT = """
SELECT count(CASE WHEN change != 'deleted' THEN 1 END), max(changed_at),
    count(CASE WHEN identity != '' THEN 1 END), count(CASE WHEN identity IS NULL THEN 1 END)
    FROM {resources}
"""
_HASHES = """
SELECT uri, hash, coalesce(spelling, uri) FROM {resources}
    WHERE change != 'deleted' AND uri > ? ORDER BY uri LIMIT ?
"""


def sum_of_copy(query: Query) -> SetSum:
    total = SetSum()
    for rows in pages(query, _HASHES):
        total.add((spelling, hash) for _, hash, spelling in rows)
    return total


def valid_sum(stored: str | None, count: int) -> SetSum | None:
    """Return the stored sum, or None if it does not cover exactly `count` resources.

    An rsnotify version without sums may have changed the state.
    """
    try:
        total = SetSum.parse(stored or "0 0 0")
    except ValueError:
        return None
    return total if total.count == count else None


def sum_after(
    total: SetSum, before: Mapping[str, ResourceState], after: Iterable[ResourceState]
) -> SetSum:
    """Return the sum after changes. `after` may have several states of a resource."""
    changed = total.copy()
    changed.remove((state.source_uri, state.hash) for state in before.values() if state.exists)
    last = {state.uri: state for state in after}
    changed.add((state.source_uri, state.hash) for state in last.values() if state.exists)
    return changed


class ContentDoubt(NamedTuple):
    """Why content may be older than announced, and the least date of the announced version."""

    reason: str
    since: Instant


NO_DOUBTS: Mapping[str, ContentDoubt] = {}
NO_LENGTHS: Mapping[str, int | None] = {}
#: Maximum number of doubts to store.
_MAX_DOUBTS = 100

_UPSERT = """
INSERT INTO {resources} AS held
    (uri, changed_at, change, hash, length, lastmod, validator, fetched_at, mtime, spelling,
    identity) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uri) DO UPDATE SET
    changed_at = excluded.changed_at, change = excluded.change, hash = excluded.hash,
    length = excluded.length, lastmod = excluded.lastmod, validator = excluded.validator,
    fetched_at = excluded.fetched_at, mtime = coalesce(excluded.mtime, held.mtime),
    spelling = excluded.spelling
"""
_CHANGED_AFTER = """
SELECT coalesce(spelling, uri), changed_at, change, hash FROM {resources} WHERE changed_at > ?
"""
_UNKNOWN = "SELECT uri FROM {resources} WHERE hash IS NULL AND change != 'deleted' ORDER BY uri"
_INVALIDATE = """
UPDATE {resources} SET changed_at = 0, hash = NULL, length = NULL, lastmod = NULL,
    validator = NULL, fetched_at = NULL, mtime = NULL
"""
# Excludes resources that were changed since their files were compared. -2, the mtime of no file,
# stands for NULL.
_AS_COMPARED = "WHERE uri = ? AND hash = ? AND coalesce(mtime, -2) = coalesce(?, -2)"
_LOSE = "UPDATE {resources} SET mtime = -1 WHERE hash IS NOT NULL AND change != 'deleted'"
#: Sets a length that no file has, because a lost resource whose file matches counts as found.
_LOSE_WRONG = """
UPDATE {resources} SET mtime = -1, length = -1
    WHERE hash IS NOT NULL AND change != 'deleted' AND uri = ?
"""
_LOST = """
SELECT uri, changed_at, hash, length, coalesce(spelling, uri) FROM {resources}
    WHERE mtime = -1 AND change != 'deleted' AND hash IS NOT NULL AND uri > ? ORDER BY uri LIMIT ?
"""
_COUNT_LOST = """
SELECT count(*) FROM {resources} WHERE mtime = -1 AND change != 'deleted' AND hash IS NOT NULL
"""
_HELD_FILES = """
SELECT uri, hash, length, mtime FROM {resources} WHERE change != 'deleted' AND uri > ?
    ORDER BY uri LIMIT ?
"""


class HeldFile(Struct, frozen=True, gc=False):
    """A resource in the copy, and what the state knows about its file."""

    uri: str
    hash: str | None
    length: int | None
    mtime: int | None


class DestinationState:
    """The state of one Destination. The constructor opens it, as in `StateLocation.open`.

    Attributes:
        sum: The sum over the copy, as of the last commit.
        lost: The number of lost resources that are not refetched yet.
        counts: The counts of the entries in the last compared Resource List.
    """

    def __init__(self, location: Path | StateLocation) -> None:
        self._pruned = 0
        #: The missing resources and closed lists, as last stored.
        self._missing: tuple[MissingResource, ...] | None = None
        self._closed: KnownLists | None = None
        self.commit_times = Durations()
        self.database: StateDatabase = (
            open_folder(location) if isinstance(location, Path) else location.open()
        )
        self.transactions = StateTransactions(self.database)
        try:
            self._load()
        except BaseException:
            self.database.close()
            raise

    def _load(self) -> None:
        identity = self.identity()
        prefer = identity.prefer if identity is not None else ()
        self._lookup = EquivalentLookup()
        self.baseline = BaselineTables(
            self.database, self.transactions, self._lookup, self._respell, prefer
        )
        self.backlog = BacklogTable(self.database, self.transactions)
        stored = self.transactions.read_fact("sum", str)
        self._doubts = self.transactions.read_fact("doubts", dict[str, str]) or {}
        #: The least dates of the announced versions of resources with doubts.
        self._since = self.transactions.read_fact("doubts_since", dict[str, Instant]) or {}
        self.counts = self.transactions.read_fact("entries", EntryCounts) or EntryCounts()
        committed = self.transactions.read_fact("batch", int) or 0
        with self.transactions.storage_errors():
            count, latest, spelled, unidentified = self.database.read(EXTENT)[0]
            self._latest: int = latest or 0
            self._lookup.has_spellings = bool(spelled)
            self.sum = valid_sum(stored, count) or sum_of_copy(self.database.execute)
            self._count_lost()
            self._intents = IntentLog(self.database, committed)
            self.contents = ContentLog(self.database, committed)
        if unidentified:
            with self.transactions.writing():
                if add_missing_identities(self.database):
                    self._delete_progress()
                self._lookup.has_spellings = bool(self.database.execute(EXTENT).fetchall()[0][2])
        if unfinished := self._intents.unfinished:
            with self.transactions.writing():
                self._write(_unknown(unfinished), None)

    def store_intent(self, uris: Sequence[str], refused: Collection[str]) -> None:
        """Store durably which resources a handler is about to change, until the next commit.

        After a crash, these are the changes that may be applied but are not committed. `refused`
        are resources whose changes the handler failed to apply, perhaps only in part.
        """
        with self.transactions.storage_errors():
            self._intents.store(uris, refused)

    def applying(self) -> list[str]:
        """Return the URIs of resources whose changes may be applied but are not committed."""
        return sorted(self._intents.applying)

    @property
    def commits(self) -> int:
        """A number that changes whenever changes are applied. Readable in any thread."""
        return self._intents.progress

    def unknown_uris(self) -> list[str]:
        """Return the URIs of resources whose content is unknown because of a crash."""
        if not self.sum.unhashed:
            return []
        with self.transactions.storage_errors():
            rows = self.database.read(_UNKNOWN)
        return [uri for (uri,) in rows]

    @property
    def doubts(self) -> Mapping[str, str]:
        """Why resources may differ from the Source's documents, by URI."""
        if not self.baseline.duplicates:
            return self._doubts
        spelled = {uri: same_resource(first) for uri, first in self.baseline.duplicates.items()}
        return {**self._doubts, **spelled}

    @property
    def resources(self) -> int:
        return self.sum.count

    @property
    def latest(self) -> Instant:
        """The datetime of the latest change in the copy, which may be later than T."""
        return from_microseconds(self._latest)

    def close(self) -> None:
        self.database.close()

    def held_uris(self) -> Iterator[str]:
        with self.transactions.storage_errors():
            for rows in pages(self.database.execute, _HELD_FILES, 1_000):
                yield from (uri for uri, hash, *_ in rows if hash is not None)

    def make_incoming(self) -> Path:
        """Create the folder for temporary content, and remove the files of an earlier run."""
        with self.transactions.storage_errors():
            return self.database.make_incoming()

    def find(self, uri: str) -> ResourceState | None:
        return self.find_all([uri]).get(uri)

    def find_all(self, uris: Sequence[str]) -> dict[str, ResourceState]:
        """Return the states of resources as of the last commit, keyed by the given URIs.

        Any spelling of a URI finds its resource.
        """
        with self.transactions.storage_errors():
            found = self._lookup.find(self.database.read, uris)
        if self.lost:
            found = {
                uri: state.without_content() if state.is_lost else state
                for uri, state in found.items()
            }
        return found

    def progress(self) -> Progress | None:
        progress = self.transactions.read_fact("progress", Progress)
        if progress is None:
            return None
        missing = self.transactions.read_fact("missing", tuple[MissingResource, ...]) or ()
        self._closed = self.transactions.read_fact("closed", KnownLists) or KnownLists()
        return msgspec.structs.replace(progress, missing=missing, closed=self._closed)

    def _delete_progress(self) -> None:
        """Delete T, so that everything is compared. Remember the instant of the last list."""
        progress, identity = self.transactions.read_fact("progress", Progress), self.identity()
        if progress is None:
            return
        at = progress.last_list.at if progress.last_list is not None else None
        if at is None and identity is not None and not change_documents(identity.offer):
            at = progress.confirmed  # the date of a dump
        if at is not None:
            self.transactions.write_facts(last_list=ComparedList(at=at))
        self.transactions.delete_facts("progress")

    def last_list(self) -> ComparedList | None:
        """Return the last compared list of all resources, if T has been deleted since."""
        return self.transactions.read_fact("last_list", ComparedList)

    def changed_after(self, instant: Instant) -> list[Change]:
        """Return the changes in the copy that are later than an instant.

        Resources whose content is unknown after a crash are included as old deletions, which need
        no confirmation by a list. Each change has a selected type and collection, because only
        selected changes are recorded.
        """
        type, links = self._selected_properties()
        moment = to_microseconds(instant)
        rows = [(uri, 0, ChangeType.DELETED, None) for uri in self.unknown_uris()]
        if self._latest > moment:
            with self.transactions.storage_errors():
                rows += self.database.read(_CHANGED_AFTER, (moment,))
        changes = []
        for uri, changed_at, change, hash in rows:
            at, kind = from_microseconds(changed_at), ChangeType(change)
            resource = Resource(uri, change=kind, hash=hash, type=type, links=links)
            changes.append(Change(normalize(uri), kind, at, resource, pushed=True))
        return changes

    def _selected_properties(self) -> tuple[str | None, tuple[Link, ...]]:
        identity = self.identity()
        selection = identity.selection if identity is not None else Selection()
        links = tuple(Link(rel=Rel.COLLECTION, href=uri) for uri in selection.collections[:1])
        return next(iter(selection.types), None), links

    # Files, and resources that the copy has lost

    def held_files(self, after: str, limit: int) -> list[HeldFile]:
        """Return a page of resources in the order of their URIs. Callable in any thread."""
        with self.transactions.storage_errors():
            return [HeldFile(*row) for row in self.database.read(_HELD_FILES, (after, limit))]

    def held(self) -> dict[str, HeldResource]:
        """Return the resources that the copy should hold, including uncommitted changes."""
        held = dict.fromkeys(self.applying(), HeldResource(None, None))
        with self.transactions.storage_errors():
            for rows in pages(self.database.read, _HELD_FILES):
                held |= {uri: HeldResource(hash, length) for uri, hash, length, _ in rows}
        return held

    def record_files(
        self, touched: Iterable[tuple[HeldFile, int]], lost: Iterable[HeldFile]
    ) -> int:
        """Store new modification times and lost files, except for resources changed since.

        Returns:
            The increase in the number of lost resources.
        """
        before = self.lost
        rows = [(mtime, file.uri, file.hash, file.mtime) for file, mtime in touched]
        rows += [(LOST, file.uri, file.hash, file.mtime) for file in lost]
        with self.transactions.writing():
            query = f"UPDATE {{resources}} SET mtime = ? {_AS_COMPARED}"
            self.database.executemany(query, rows)
            self._count_lost()
        return self.lost - before

    def lose(self, uris: Iterable[str] | None = None) -> int:
        """Durably mark the given resources, or all, as lost. Return the total number of these."""
        with self.transactions.writing():
            if uris is None:
                self.database.execute(_LOSE)
            else:
                held = self._lookup.find(self.database.execute, list(uris))
                stored = [(state.uri,) for state in held.values()]
                self.database.executemany(f"{_LOSE} AND uri = ?", stored)
            self._count_lost()
        return self.lost

    def require_entry(self, uri: str) -> None:
        """Have the next comparison apply the entry of a resource, however old its list is.

        If the copy has the resource, it is marked as lost.
        """
        with self.transactions.writing():
            self.database.execute("UPDATE {resources} SET changed_at = 0 WHERE uri = ?", (uri,))
            self.database.execute(_LOSE_WRONG, (uri,))
            self._count_lost()

    def lost_changes(self, after: str, limit: int) -> dict[str, Change]:
        """Return a page of changes that refetch lost resources, keyed by stored URI, in order.

        Each entry has the hash of the lost content, and a selected type and collection.
        """
        type, links = self._selected_properties()
        with self.transactions.storage_errors():
            rows = self.database.execute(_LOST, (after, limit)).fetchall()
        changes = {}
        for uri, changed_at, hash, length, spelling in rows:
            resource = Resource(spelling, hash=hash, length=length, type=type, links=links)
            changes[uri] = _refetch(resource, changed_at)
        return changes

    def doubted_changes(self) -> list[Change]:
        """Return changes that refetch resources whose content may be older than announced.

        Each entry has the least date of the announced version, and a selected type and collection.
        """
        if not self._since:
            return []
        type, links = self._selected_properties()
        changes = []
        for uri, state in self.find_all(list(self._since)).items():
            if state.exists and state.hash is not None:
                since = self._since[uri]
                resource = Resource(state.source_uri, lastmod=since, type=type, links=links)
                changes.append(_refetch(resource, state.changed_at))
        return changes

    def _count_lost(self) -> None:
        ((count,),) = self.database.execute(_COUNT_LOST).fetchall()
        self.lost: int = count

    def compared(self) -> Instant | None:
        """Return when the copy was last compared with the whole set, by the local clock."""
        return self.transactions.read_fact("compared", Instant)

    def store_compared(self, at: Instant) -> None:
        with self.transactions.writing():
            self.transactions.write_facts(compared=at)

    def links(self) -> KnownLinks | None:
        """Return the accepted links in the Source's documents, if any are stored."""
        return self.transactions.read_fact("links", KnownLinks)

    def store_links(self, links: KnownLinks) -> None:
        with self.transactions.writing():
            self.transactions.write_facts(links=links)

    def identity(self) -> Identity | None:
        return self.transactions.read_fact("identity", Identity)

    def store_identity(self, identity: Identity) -> None:
        """Store the identity. A new set, selection or `prefer` forces a full comparison."""
        before = self.identity()
        self.baseline.prefer = identity.prefer
        with self.transactions.writing():
            self.transactions.write_facts(identity=identity)
            if before is None:
                return
            is_reselected = before.selection != identity.selection
            if is_reselected or has_moved(before.offer, identity.offer):
                self._delete_progress()
            if is_reselected:
                self._lose_unselected(identity.selection)
            if before.prefer != identity.prefer:
                self._delete_progress()
                # The stored values belong to another URI.
                query = "UPDATE {resources} SET lastmod = NULL, validator = NULL, fetched_at = NULL"
                self.database.execute(query)

    def _lose_unselected(self, selection: Selection) -> None:
        """Mark resources with unselected URIs as lost, so that they are removed."""
        if selection.changes and ChangeType.DELETED not in selection.changes:
            return
        by_uri = Selection(selection.only, selection.excluded)
        uris = [(uri,) for uri in self.held_uris() if not by_uri.wants(Resource(uri))]
        self.database.executemany(_LOSE_WRONG, uris)
        self._count_lost()

    @property
    def is_restored(self) -> bool:
        """Whether the state was restored from a backup, so that the copy may have later changes."""
        return self.transactions.read_fact("restored", bool) is True

    def invalidate(self) -> None:
        """Mark all resources as unknown, and force a full comparison."""
        with self.transactions.writing():
            self._delete_progress()
            self.transactions.write_facts(restored=False)
            self.database.execute(_INVALIDATE)
            self._recompute_sum()

    def compare_restored(self) -> None:
        """Force a full comparison, because the copy may have later changes than a restored state.

        T is kept, because the lists after it show which resources were deleted.
        """
        with self.transactions.writing():
            self.transactions.delete_facts("restored", "compared")
            self._recompute_sum()

    def forget(self, uris: Sequence[str]) -> None:
        """Mark resources as unknown, even deleted ones, and force a full comparison."""
        with self.transactions.writing():
            self._delete_progress()
            self._write(_unknown(uris), None)

    def commit(
        self,
        states: Sequence[ResourceState],
        progress: Progress | None,
        doubts: Mapping[str, ContentDoubt] = NO_DOUBTS,
        unflushed: Sequence[UnflushedContent] | None = None,
        dated: Mapping[str, int | None] = NO_LENGTHS,
    ) -> None:
        """Commit applied changes, and the progress that covers them.

        This also commits the effects of `apply_within` since the last commit.

        Args:
            states: The new states of the resources.
            progress: The progress, or None if it has not advanced.
            doubts: Why resources may differ from the Source's announcements, by URI.
            unflushed: The content that a `DeferredHandler` has not flushed, or None if it has
                flushed everything.
            dated: The announced lengths of resources that were fetched for entries of a Resource
                List without a hash. If their content has changed, so should their date.
        """
        began = perf_counter()
        with self.transactions.writing(ends=True):
            self._write(states, progress, doubts, unflushed, dated)
        self.commit_times.add(perf_counter() - began)

    def delete_flushed(self) -> None:
        """Delete stored contents that were flushed since the last commit."""
        if self.contents.has_flushed:
            with self.transactions.writing():
                self.contents.delete_flushed()

    def save_progress(self, progress: Progress) -> None:
        """Store progress that advanced without applying any change.

        If a handler has begun a transaction, the progress is committed with it.
        """
        with self.transactions.writing():
            self._write((), progress)

    def _write(
        self,
        states: Sequence[ResourceState],
        progress: Progress | None,
        doubts: Mapping[str, ContentDoubt] = NO_DOUBTS,
        unflushed: Sequence[UnflushedContent] | None = (),
        dated: Mapping[str, int | None] = NO_LENGTHS,
    ) -> None:
        facts: dict[str, object] = {}
        if self._doubts or doubts:
            settled = {state.uri for state in states}
            left = {uri: why for uri, why in self._doubts.items() if uri not in settled}
            reasons = {uri: doubt.reason for uri, doubt in doubts.items()}
            facts["doubts"] = self._doubts = _bounded({**left, **reasons})
            since = self._since | {uri: doubt.since for uri, doubt in doubts.items()}
            self._since = {uri: at for uri, at in since.items() if uri in self._doubts}
            facts["doubts_since"] = self._since
        total = self._write_states(states, facts, dated) if states else self.sum
        if progress is not None:
            # Both are large and rarely change.
            facts["progress"] = msgspec.structs.replace(progress, missing=(), closed=KnownLists())
            if progress.closed != self._closed:
                facts["closed"] = self._closed = progress.closed
            if progress.missing is not self._missing:
                facts["missing"] = self._missing = progress.missing
        if (batch := self._intents.begin_commit()) is not None:
            facts["batch"] = batch
        self.contents.write(self._intents.batch, unflushed)
        if facts:
            self.transactions.write_facts(**facts)
        if progress is not None:
            self._prune(to_microseconds(progress.deletions_since))
        self.sum = total

    def _write_states(
        self,
        states: Sequence[ResourceState],
        facts: dict[str, object],
        dated: Mapping[str, int | None],
    ) -> SetSum:
        """Write states, add the resulting facts, and return the new sum."""
        before = look_up(self.database.execute, [state.uri for state in states])
        total = sum_after(self.sum, before, states)
        rows = [(*msgspec.structs.astuple(one), identity_of(one.uri)) for one in states]
        self._lookup.has_spellings |= any(row[-1] for row in rows)
        self.database.executemany(_UPSERT, rows)
        facts["sum"] = str(total)
        if self.baseline.unsettled or any(one.is_unsettled() for one in states):
            self.baseline.record_unsettled(states)
        if dated and self.baseline.trusts_dates:
            known = [one for one in states if one.uri in dated and one.uri in before]
            if any(_differs(before[one.uri], one, dated[one.uri]) for one in known):
                facts["dates_kept"] = self.baseline.trusts_dates = False
        self._latest = max(self._latest, *(state.changed_at for state in states))
        if self.lost:
            after = {state.uri: state for state in states}
            self.lost -= sum(
                state.is_lost and not after[state.uri].keeps_lost for state in before.values()
            )
        return total

    def _prune(self, since: int) -> None:
        """Delete the states of earlier deletions, which no document can contradict now."""
        if since > self._pruned:
            query = "DELETE FROM {resources} WHERE change = 'deleted' AND changed_at < ?"
            self.database.execute(query, (since,))
            self._pruned = since

    def forget_datetimes(self, after: Instant, entirely: bool = False) -> None:
        """Forget the datetimes of changes later than an instant and, if `entirely`, T."""
        moment = to_microseconds(after)
        if not entirely and self._latest <= moment:
            return
        with self.transactions.writing():
            if entirely:
                self.transactions.delete_facts("progress", "last_list")
            query = "UPDATE {resources} SET changed_at = 0 WHERE changed_at > ?"
            self.database.execute(query, (moment,))
            ((_, latest, *_),) = self.database.execute(EXTENT)
            self._latest = latest or 0
            self._pruned = 0

    def begin_baseline(self) -> None:
        """Forget what an earlier baseline saw, and recompute the sum."""
        with self.transactions.writing():
            self.baseline.begin()
            if "" in self._doubts:
                self._doubts = {uri: why for uri, why in self._doubts.items() if uri}
                self.transactions.write_facts(doubts=self._doubts)
            # A baseline reads everything anyway, and must correct a wrong sum.
            self._recompute_sum()

    def _respell(self, states: Sequence[ResourceState]) -> None:
        """Store a list's spellings of URIs. Must be called in a transaction."""
        before = look_up(self.database.execute, [state.uri for state in states])
        self.sum = sum_after(self.sum, before, states)
        rows = [(state.spelling, state.uri) for state in states]
        self.database.executemany("UPDATE {resources} SET spelling = ? WHERE uri = ?", rows)
        self.transactions.write_facts(sum=str(self.sum))

    def end_baseline(self) -> None:
        """Store the counts of a complete baseline."""
        if self.counts != self.baseline.counts:
            self.counts = self.baseline.counts
            with self.transactions.writing():
                self.transactions.write_facts(entries=self.counts)

    def _recompute_sum(self) -> None:
        self.sum = sum_of_copy(self.database.execute)
        self._count_lost()
        self.transactions.write_facts(sum=str(self.sum))


def _unknown(uris: Iterable[str]) -> list[ResourceState]:
    """Return states for which any announced change is applied, even a deletion."""
    return [ResourceState(uri, 0, ChangeType.UPDATED.value) for uri in uris]


def _differs(before: ResourceState, now: ResourceState, length: int | None) -> bool:
    """Return whether content has changed although its `lastmod` and announced length have not.

    Changes within the unit of time of `lastmod` do not count.
    """
    if before.lastmod is None or before.lastmod != now.lastmod or not before.exists:
        return False
    if length not in (None, before.length) or before.is_unsettled() or not before.fetched_at:
        return False
    return agree(before.hash, now.hash) is False


def _refetch(resource: Resource, changed_at: int) -> Change:
    """Return a change that fetches the current version of a resource."""
    key, at = normalize(resource.uri), from_microseconds(changed_at)
    return Change(key, ChangeType.UPDATED, at, resource, check=CheckMethod.FETCH)


def _bounded(doubts: dict[str, str]) -> dict[str, str]:
    """Limit the number of doubts. One for all dropped doubts remains until a full comparison."""
    if len(doubts) <= _MAX_DOUBTS:
        return doubts
    rest = {"": "other resources may be out of date too"}
    return dict(islice(doubts.items(), _MAX_DOUBTS - 1)) | rest


@asynccontextmanager
async def open_state(
    location: Path | StateLocation, worker: Executor
) -> AsyncIterator[DestinationState]:
    """Open a state in a worker that runs one call at a time. Close it at the end."""
    loop = asyncio.get_running_loop()
    opening = loop.run_in_executor(worker, DestinationState, location)
    try:
        state = await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(Exception):  # a failure no longer matters
            (await opening).close()  # the thread still opens the state
        raise
    try:
        yield state
    finally:
        await asyncio.shield(loop.run_in_executor(worker, state.close))
