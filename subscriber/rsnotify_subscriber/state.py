"""What a Destination keeps: its progress, and how it holds each resource.

It stands in a database (storing/): in a SQLite file of its own, or in one of the aggregator's.
T is committed in one transaction with what it covers; with the effect of the handler too, where
that can be in the same database.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify.format.model import Link, Resource
from rsnotify.format.offer import Offer
from rsnotify.format.vocabulary import ChangeType, Rel
from rsnotify.selection.representations import described
from rsnotify.selection.selection import Selection
from rsnotify.sync.actions import Progress
from rsnotify.sync.fallback_order import resource_documents
from rsnotify_subscriber.descriptions import Memory
from rsnotify_subscriber.held import Held
from rsnotify_subscriber.lookups import look_up, look_up_equivalent
from rsnotify_subscriber.settling import Unsettled
from rsnotify_subscriber.storing.database import Place
from rsnotify_subscriber.storing.sqlite import SQLiteFolder, read_fact
from rsnotify_subscriber.summing import EXTENT, sum_after, sum_up, usable
from rsnotify_subscriber.unfinished import decode_intent, encode_intent

T = TypeVar("T")
NO_DOUBTS: Mapping[str, str] = {}
#: How many doubts are kept with the names of the resources.
_DOUBTS = 100

_UPSERT = """
INSERT INTO {resources} VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uri) DO UPDATE SET
    changed_at = excluded.changed_at, change = excluded.change, hash = excluded.hash,
    length = excluded.length, lastmod = excluded.lastmod, validator = excluded.validator,
    fetched_at = excluded.fetched_at
"""
_KEEP = "INSERT INTO {facts} VALUES "
_KEEP_EVEN = " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_CHANGED_AFTER = "SELECT uri, changed_at, change, hash FROM {resources} WHERE changed_at > ?"
_UNLISTED = """
SELECT uri FROM {resources} AS resources WHERE change != 'deleted' AND changed_at <= ?
    AND NOT EXISTS (SELECT 1 FROM {seen} AS seen WHERE seen.uri = resources.uri) ORDER BY uri
"""
_UNKNOWN = "SELECT uri FROM {resources} WHERE hash IS NULL AND change != 'deleted' ORDER BY uri"
_HELD = """
SELECT uri FROM {resources} WHERE change != 'deleted' AND hash IS NOT NULL AND uri > ?
    ORDER BY uri LIMIT ?
"""
_LOSE = """
UPDATE {resources} SET changed_at = 0, hash = NULL, length = NULL, lastmod = NULL,
    validator = NULL, fetched_at = NULL WHERE uri = ?
"""
#: How many URIs are read by one query.
_PART = 500


class Identity(Struct, frozen=True):
    """Which Source and set of resources a state is about, fixed at the first run.

    Args:
        url: What the user named.
        base: The URI that the root of a mirror stands for.
        offer: What the Source was last seen to offer.
        selection: What of it is followed.
        prefer: Media types of which alternates are held (core §14.3).
        place: Where a handler holds the resources, if it says so.
        memory: The documents that said what is offered, to be requested with a condition.
    """

    url: str
    base: str
    offer: Offer
    selection: Selection = Selection()
    prefer: tuple[str, ...] = ()
    place: str = ""
    memory: Memory = Memory()


def has_moved(before: Offer, now: Offer) -> bool:
    """Return whether a set is described elsewhere, so that its resources may have new URIs.

    Without a list of all resources they cannot be compared, and T is kept to see gaps by.
    """
    return now.capability_list not in (None, before.capability_list) and bool(
        resource_documents(now)
    )


def incomparable(identity: Identity) -> str:
    """Return why what is held is not the Source's whole set, in a sentence; empty if it is."""
    if identity.selection != Selection():
        return "only a selection of the set is followed"
    return "alternates are held in place of resources" if identity.prefer else ""


class State:
    """The state of one Destination.

    Args:
        place: Where it is kept: a folder, which is made if it is not there, or another place.
            Nobody else can use it until `close`.

    Raises:
        ConfigurationError: Another process is using the place.
        StorageError: The state cannot be read or written.
    """

    def __init__(self, place: Path | Place) -> None:
        self._failed = False
        self._pruned = 0
        self._begun = False
        self._unsettled = Unsettled()
        self._database = (SQLiteFolder(place) if isinstance(place, Path) else place).open()
        try:
            self._begin()
        except BaseException:
            self._database.close()
            raise

    def _begin(self) -> None:
        identity = self.identity()
        self._prefer = identity.prefer if identity is not None else ()
        kept = self._fact("sum", str)
        #: Why resources may not be what the Source announced, by URI, though they were applied.
        self.doubts: Mapping[str, str] = self._fact("doubts", dict[str, str]) or {}
        with self._storage():
            count, latest = self._database.read(EXTENT)[0]
            self._latest: int = latest or 0
            #: The sum over what is held, as of the last commit.
            self.sum = usable(kept, count) or sum_up(self._database.execute)
        self._doubt_unfinished()

    def _doubt_unfinished(self) -> None:
        """Record what was about to be applied when the process died as held, content unknown.

        Then whatever the Source tells of it is applied: a version, or that it is gone.
        """
        committed = self._fact("batch", int) or 0
        with self._storage():
            kept = self._database.intent()
        intent = decode_intent(kept)
        self._batch = self._kept_batch = committed
        unfinished = intent.unfinished(committed)
        if unfinished:
            self._batch = max(committed, intent.batch) + 1
            unknown = [Held(uri, 0, ChangeType.UPDATED.value) for uri in unfinished]
            self._transact(lambda: self._write(unknown, None))

    def intend(self, uris: Sequence[str], refused: Collection[str]) -> None:
        """Keep which resources are about to be applied, until the next commit.

        It outlives the process, so that the next one knows of what was applied and not committed.
        That of a single change does not outlive a power failure, as a flush takes longer than all
        else that is done for it: the lists repeat such a change from T on.

        Args:
            uris: The resources.
            refused: Those that a handler failed to apply before, and which may be applied in part.
        """
        self._batch += 1
        with self._storage():
            record = encode_intent(self._batch, uris, refused)
            self._database.intend(record, durably=len(uris) > 1)

    def unknown(self) -> list[str]:
        """Return the resources of which a crash left it unknown what is there."""
        if not self.sum.unhashed:
            return []
        with self._storage():
            rows = self._database.read(_UNKNOWN)
        return [uri for (uri,) in rows]

    @property
    def resources(self) -> int:
        """How many resources are held, as of the last commit."""
        return self.sum.count

    @property
    def latest(self) -> Instant:
        """The datetime of the latest change that is held, be it later than T."""
        return from_microseconds(self._latest)

    def close(self) -> None:
        """Close the state, so that others may use it."""
        self._database.close()

    @property
    def name(self) -> str:
        """Where the state is, for messages."""
        return self._database.name

    def uris_held(self) -> Iterator[str]:
        """Return the resources whose content is known to be held."""
        after = ""
        while True:
            with self._storage():
                rows = self._database.execute(_HELD, (after, _PART)).fetchall()
            yield from (uri for (uri,) in rows)
            if len(rows) < _PART:
                return
            after = rows[-1][0]

    def incoming(self) -> Path:
        """Make the folder of temporary content, without what an earlier run left there."""
        with self._storage():
            return self._database.incoming()

    @property
    def is_local(self) -> bool:
        """Whether an event loop may wait for `find`."""
        return self._database.is_local

    def find(self, uri: str) -> Held | None:
        """Return how a resource is held as of the last commit, as `find_all`."""
        return self.find_all([uri]).get(uri)

    def find_all(self, uris: Sequence[str]) -> dict[str, Held]:
        """Return how resources are held as of the last commit, by the URIs that were asked for.

        A resource that is held under another spelling of its URI (RFC 3986 §6.2.2) is found too.
        """
        with self._storage():
            return look_up_equivalent(self._database.read, uris)

    def progress(self) -> Progress | None:
        """Return the progress that was last committed."""
        return self._fact("progress", Progress)

    def changed_after(self, instant: Instant) -> list[Change]:
        """Return the changes held that are later than an instant.

        What a crash left unknown is returned as well, as deleted long ago: no list confirms that,
        and it need not be there.
        Each names a type and a collection that are selected, as only what is selected is recorded.
        """
        identity = self.identity()
        selection = identity.selection if identity is not None else Selection()
        type = next(iter(selection.types), None)
        links = tuple(Link(rel=Rel.COLLECTION, href=one) for one in selection.collections[:1])
        moment = to_microseconds(instant)
        rows = [(uri, 0, ChangeType.DELETED, None) for uri in self.unknown()]
        if self._latest > moment:
            with self._storage():
                rows += self._database.read(_CHANGED_AFTER, (moment,))
        changes = []
        for uri, changed_at, change, hash in rows:
            at, kind = from_microseconds(changed_at), ChangeType(change)
            resource = Resource(uri, change=kind, hash=hash, type=type, links=links)
            changes.append(Change(uri, kind, at, resource))
        return changes

    def compared(self) -> Instant | None:
        """Return when the copy was last compared with the whole set, by the clock here."""
        return self._fact("compared", Instant)

    def keep_compared(self, at: Instant) -> None:
        """Store when the copy was compared with the whole set."""
        self._transact(lambda: self._keep(compared=at))

    def identity(self) -> Identity | None:
        """Return which Source this state is about, if it is about any yet."""
        return self._fact("identity", Identity)

    def keep_identity(self, identity: Identity) -> None:
        """Store which Source this state is about.

        With another selection, or where the set has moved, everything is due to be compared.
        """
        before = self.identity()
        self._prefer = identity.prefer
        self._transact(lambda: self._write_identity(before, identity))

    def _write_identity(self, before: Identity | None, identity: Identity) -> None:
        self._keep(identity=identity)
        if before is not None and (
            before.selection != identity.selection or has_moved(before.offer, identity.offer)
        ):
            self._database.execute("DELETE FROM {facts} WHERE name = 'progress'")
        if before is not None and before.prefer != identity.prefer:
            self._database.execute("DELETE FROM {facts} WHERE name = 'progress'")
            # They are those of another URI.
            query = "UPDATE {resources} SET lastmod = NULL, validator = NULL, fetched_at = NULL"
            self._database.execute(query)

    def distrust(self) -> None:
        """Let everything come anew, as if what is held were not what the Source has."""

        def forget() -> None:
            self._database.execute("DELETE FROM {facts} WHERE name = 'progress'")
            self._database.execute(
                "UPDATE {resources} SET changed_at = 0, hash = NULL, length = NULL, lastmod = NULL,"
                " validator = NULL, fetched_at = NULL"
            )
            self._sum_up()

        self._transact(forget)

    def forget(self, uris: Sequence[str]) -> None:
        """Mark resources whose content is lost to be fetched, and everything to be compared."""

        def lose() -> None:
            self._database.execute("DELETE FROM {facts} WHERE name = 'progress'")
            self._database.executemany(_LOSE, [(uri,) for uri in uris])
            self._sum_up()

        self._transact(lose)

    def _fact(self, name: str, kind: type[T]) -> T | None:
        with self._storage():
            query = "SELECT value FROM {facts} WHERE name = ?"
            row = self._database.execute(query, (name,)).fetchone()
            return None if row is None else msgspec.json.decode(row[0], type=kind)

    def _keep(self, **facts: object) -> None:
        """Keep facts; all by one statement, as each takes a while where the database is away."""
        rows = ", ".join(["(?, ?)"] * len(facts))
        values = [one for name in facts for one in (name, msgspec.json.encode(facts[name]))]
        self._database.execute(f"{_KEEP}{rows}{_KEEP_EVEN}", values)

    def commit(
        self,
        held: Sequence[Held],
        progress: Progress | None,
        doubts: Mapping[str, str] = NO_DOUBTS,
    ) -> None:
        """Make applied changes and the progress over them durable, together.

        What a handler did by `apply_within` since the last commit becomes durable with them.

        Args:
            held: How resources are held from now on.
            progress: The progress; None if it did not move.
            doubts: Why some of them may not be what the Source announced, by URI.
        """
        self._transact(lambda: self._write(held, progress, doubts), ends=True)

    def save(self, progress: Progress) -> None:
        """Keep a progress that moved without a change being applied.

        Where a handler's effect waits for its commit, it becomes durable together with that.
        """
        self._transact(lambda: self._write((), progress))

    def apply_within(self, apply: Callable[[Any], None]) -> None:
        """Let a handler write into the transaction that the next `commit` ends.

        Args:
            apply: Is called with the connection. If it raises, what it did is undone, and
                nothing else; the error passes through.

        Raises:
            StorageError: The database cannot be used any more.
        """
        self._start()
        with self._database.savepoint():
            apply(self._database.connection)

    def _write(
        self,
        held: Sequence[Held],
        progress: Progress | None,
        doubts: Mapping[str, str] = NO_DOUBTS,
    ) -> None:
        facts: dict[str, object] = {}
        if self.doubts or doubts:
            settled = {one.uri for one in held}
            left = {uri: why for uri, why in self.doubts.items() if uri not in settled}
            facts["doubts"] = self.doubts = _bounded({**left, **doubts})
        total = self.sum
        if held:
            before = look_up(self._database.execute, [one.uri for one in held])
            total = sum_after(total, before, held)
            self._database.executemany(_UPSERT, map(msgspec.structs.astuple, held))
            facts["sum"] = str(total)
            self._unsettled.note(held)
            self._latest = max(self._latest, *(one.changed_at for one in held))
        if progress is not None:
            facts["progress"] = progress
        if self._batch != self._kept_batch:
            self._database.settle()
            facts["batch"] = self._kept_batch = self._batch
        if facts:
            self._keep(**facts)
        if progress is not None:
            self._prune(to_microseconds(progress.confirmed))
        self.sum = total

    def _prune(self, confirmed: int) -> None:
        """Drop tombstones of deletions that no document can contradict any more."""
        if confirmed > self._pruned:
            query = "DELETE FROM {resources} WHERE change = 'deleted' AND changed_at < ?"
            self._database.execute(query, (confirmed,))
            self._pruned = confirmed

    def undate(self, after: Instant, entirely: bool = False) -> None:
        """Forget when resources changed that are held as changed later than an instant.

        Args:
            after: The instant.
            entirely: Whether to forget the progress as well.
        """
        moment = to_microseconds(after)

        def forget() -> None:
            if entirely:
                self._database.execute("DELETE FROM {facts} WHERE name = 'progress'")
            query = "UPDATE {resources} SET changed_at = 0 WHERE changed_at > ?"
            self._database.execute(query, (moment,))
            (_, latest), *_ = self._database.execute(EXTENT)
            self._latest = latest or 0
            self._pruned = 0

        if entirely or self._latest > moment:
            self._transact(forget)

    def begin_baseline(self) -> None:
        """Forget which resources were seen in an earlier baseline, and sum up anew."""

        def begin() -> None:
            self._database.execute("DELETE FROM {seen}")
            if "" in self.doubts:
                self.doubts = {uri: why for uri, why in self.doubts.items() if uri}
                self._keep(doubts=self.doubts)
            # All is looked at anyway, and a sum that went wrong would stay so.
            self._sum_up()

        self._transact(begin)

    def compare(self, resources: Iterable[Resource], at: Instant) -> list[Resource]:
        """Note resources as seen, and return those not held as a Resource List has them.

        Args:
            resources: Its entries.
            at: The instant it speaks of; what changed later here is left alone.
        """
        differing: list[Resource] = []
        moment = to_microseconds(at)

        def look() -> None:
            all_held = look_up_equivalent(self._database.execute, [one.uri for one in entries])
            seen.update(one.uri for one in all_held.values())  # as it is spelled here
            for resource in entries:
                held = all_held.get(resource.uri)
                entry = described(resource, self._prefer)
                if held is None or (held.changed_at <= moment and self._differs(held, entry)):
                    differing.append(resource)
            query = "INSERT INTO {seen} VALUES (?) ON CONFLICT (uri) DO NOTHING"
            self._database.executemany(query, [(uri,) for uri in seen])

        entries = list(resources)
        seen = {one.uri for one in entries}
        self._transact(look)
        return differing

    def _differs(self, held: Held, entry: Resource) -> bool:
        if not held.is_as_listed(entry):
            return True
        if entry.hash is not None or not held.is_unsettled:
            return False
        return self._unsettled.is_due(held.uri)

    def _sum_up(self) -> None:
        self.sum = sum_up(self._database.execute)
        self._keep(sum=str(self.sum))

    def sweep(self, at: Instant) -> list[str]:
        """Return the resources held that no list of this baseline had.

        Args:
            at: The instant the lists speak of; what changed later here is left alone.
        """
        with self._storage():
            rows = self._database.execute(_UNLISTED, (to_microseconds(at),)).fetchall()
        return [uri for (uri,) in rows]

    def _transact(self, work: Callable[[], object], *, ends: bool = False) -> None:
        """Do some work in a transaction, or in the one that a handler has begun.

        Args:
            work: Reads and writes.
            ends: Whether what the handler did becomes durable with it.
        """
        waits = self._begun and not ends
        self._start()
        try:
            with self._storage():
                work()
                if not waits:
                    self._database.execute("COMMIT")
                    self._begun = False
        except BaseException:
            self._failed = True
            with suppress(*self._database.errors):
                self._database.execute("ROLLBACK")
            raise

    def _start(self) -> None:
        """Begin a transaction, unless one is open."""
        if self._failed:
            # A later progress must not be kept without the changes that were lost here.
            raise StorageError(
                f"{self._database.name}: an earlier commit failed, so none is made any more"
            )
        if not self._begun:
            try:
                with self._storage():
                    self._database.execute("BEGIN")
            except BaseException:
                self._failed = True
                raise
            self._begun = True

    @contextmanager
    def _storage(self) -> Iterator[None]:
        name = self._database.name
        try:
            yield
        except OSError as error:
            raise StorageError(f"{error.filename or name}: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise StorageError(f"{name}: {error}") from error
        except self._database.errors as error:
            raise StorageError(f"{name}: {str(error).strip()}") from error


@asynccontextmanager
async def opened(place: Path | Place, worker: Executor) -> AsyncIterator[State]:
    """Open a state, and close it at the end, where that does not hold up an event loop.

    Args:
        place: As for `State`.
        worker: What does so; it does one thing after another.

    Raises:
        ConfigurationError: As for `State`.
        StorageError: As for `State`.
    """
    loop = asyncio.get_running_loop()
    opening = loop.run_in_executor(worker, State, place)
    try:
        state = await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(Exception):  # that it failed is of no interest any more
            (await opening).close()  # a thread goes on, and what it opens is to be closed
        raise
    try:
        yield state
    finally:
        await asyncio.shield(loop.run_in_executor(worker, state.close))


def _bounded(doubts: dict[str, str]) -> dict[str, str]:
    """Return no more than some doubts; that there are others, only a comparison settles."""
    if len(doubts) <= _DOUBTS:
        return doubts
    return {
        **dict(islice(doubts.items(), _DOUBTS - 1)),
        "": "other resources may be out of date too",
    }


def read_identity(folder: Path) -> Identity | None:
    """Read which Source a state is about, without locking or changing it.

    Raises:
        StorageError: There is a state, but it cannot be read.
    """
    value = read_fact(folder, "identity")
    try:
        return None if value is None else msgspec.json.decode(value, type=Identity)
    except msgspec.DecodeError as error:
        raise StorageError(f"{folder}: {error}") from error
