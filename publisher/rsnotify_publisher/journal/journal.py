"""The journal: the Source's changes in order, made durable before they are published.

The journal is one SQLite file in WAL mode with `synchronous=FULL`, which any number of processes
may use. Every datetime is assigned inside a write transaction. SQLite allows only one write
transaction at a time, so datetimes increase strictly across threads, processes and clock jumps.
Instants in this module are microseconds since 1970.

A change is *closed* once it is in a closed Change List. It is *pruned* once it is closed and every
hub has it, or once its list has been dropped from the archive. The journal begins at `pruned`, and
the open Change List begins where the last closed one ends.

A transaction that records changes does not update the current set, because in a large set each
change would read and write a separate page. Changes are applied later, many per transaction, and at
the latest before they are pruned. These transactions need no flush: if a power failure undoes them,
the journal still has the changes. Methods that read the set first apply all changes recorded so
far.

The journal also lists the finished documents. A finished document is never rewritten. It is
offered, live or in an archive, until the retention policy drops it. Its files then remain for a
while (`Options.linger`), for clients that have just read their URLs.

Finally, the journal stores notices of the Source's own documents. A notice is inserted in the same
transaction that marks its document as written, so a crash loses neither. Like changes, notices have
strictly increasing datetimes, but in a separate sequence. Only the newest `MAX_NOTICES` notices are
kept. A hub that was unreachable for longer has a gap, and Destinations then read the documents
themselves.
"""

from __future__ import annotations

import sqlite3
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice, repeat
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from filelock import FileLock
from msgspec import Struct, json
from msgspec.structs import astuple, replace

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify.format.hashes import SetDigest, SetSum
from rsnotify.format.model import INLINE_LIMIT, Capability, ChangeType, Resource
from rsnotify.format.uris import normalize
from rsnotify.runtime.counters import Durations
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import check_role, later_version, make_durably
from rsnotify_publisher.changes import Record, as_listed
from rsnotify_publisher.journal.schema import PAGE_SIZE, TABLES, VERSION, migrate


class RecordedChanges(Struct, frozen=True):
    """Consecutive changes from a journal, after `begin` and through `end` (µs).

    `begin` is the datetime of the change before them. `contents` has small contents of the changed
    resources, keyed by URI; None means that the content is not available.
    """

    begin: int
    end: int
    changes: Sequence[Resource]
    contents: Mapping[str, bytes | None] = {}

    def joined(self, later: RecordedChanges) -> RecordedChanges:
        """Return these changes and the later ones, which must directly follow them."""
        changes = [*self.changes, *later.changes]
        return RecordedChanges(self.begin, later.end, changes, {**self.contents, **later.contents})

    def first(self, count: int) -> RecordedChanges:
        """Return the first `count` changes, at least 1."""
        changes = self.changes[:count]
        return RecordedChanges(self.begin, _at(changes[-1]), changes, self.contents)

    def after(self, through: int) -> RecordedChanges:
        """Return the changes after `through`, which must be before `end`."""
        count = bisect_right(self.changes, through, key=_at)
        if count == 0:
            return self
        begin = _at(self.changes[count - 1])
        return RecordedChanges(begin, self.end, self.changes[count:], self.contents)

    def through(self, end: int) -> RecordedChanges:
        """Return the changes through `end`, which must be the datetime of one of them."""
        return self.first(bisect_right(self.changes, end, key=_at))


def consecutive(begin: int, changes: Sequence[Resource]) -> RecordedChanges | None:
    """Return the changes that directly follow `begin`, or None if there are none."""
    return RecordedChanges(begin, _at(changes[-1]), changes) if changes else None


def _at(change: Resource) -> int:
    assert change.datetime is not None
    return to_microseconds(change.datetime)


#: Cache of the connection that writes, in MiB.
DEFAULT_CACHE_SIZE = 64.0
#: Number of WAL pages after which a small file is checkpointed.
_CHECKPOINT_PAGES = 2_000
_STATE = (
    "SELECT coalesce((SELECT max(at) FROM changes), pruned),"
    " applied, promised, pruned, closed, tracked, sum FROM state"
)
#: Maximum number of notices that are kept.
MAX_NOTICES = 1_000
#: Number of resources read at once. Between pages the reader holds no transaction, so no writer
#: waits for it and the WAL stays short.
_PAGE_SIZE = 1_000
#: Maximum number of changes applied in one transaction, while other writers wait.
_APPLY_BATCH = 500
#: Maximum number of changes pruned in one transaction.
_PRUNE_BATCH = 10_000
_FIND_ONE = "SELECT uri, entry FROM resources WHERE uri = ?"
_FIND = "SELECT uri, entry FROM resources WHERE uri IN (SELECT value FROM json_each(?))"
_FIND_SPELLINGS = (
    "SELECT normal, uri FROM spellings WHERE normal IN (SELECT value FROM json_each(?))"
)
_PUT = (
    "INSERT INTO resources VALUES (?1, ?2, ?3, ?4)"
    " ON CONFLICT (uri) DO UPDATE SET at = ?2, entry = ?3, validator = ?4"
)

_encode = json.Encoder().encode
_decode = json.Decoder(Resource).decode

#: A resource after a change: URI, datetime of the change (µs), entry, validator.
Row = tuple[str, int, bytes, str | None]


class _Summary(Struct, gc=False):
    """The fields of an entry that are needed to apply it. The others are not decoded."""

    change: str | None = None
    hash: str | None = None


_summary_of = json.Decoder(_Summary).decode


class FinishedDocument(Struct, frozen=True):
    """A document that will not be rewritten, with its parts or packages.

    Args:
        kind: The document's capability.
        begin: The document's `from` or `at` (µs).
        end: The document's `until` or `completed` (µs).
        entries: The number of changes or resources in the document.
        size: The total size of all files in bytes.
        files: The names of the files, relative to the base URL. The first is the document itself.
        archived: Whether the document is in the archive of its kind, rather than live.
    """

    kind: str
    begin: int
    end: int
    entries: int
    size: int
    files: tuple[str, ...]
    archived: bool = False


def system_clock() -> int:
    return time.time_ns() // 1000


class JournalState(Struct, frozen=True):
    """The state of the journal; see the columns of the table `state` in `schema`.

    `sum` covers the set as of the change `applied`. Later changes have not been applied to the set
    yet.
    """

    last_change: int
    applied: int
    promised: int
    pruned: int
    closed: int
    tracked: int
    sum: str | None

    @property
    def digest(self) -> SetDigest | None:
        """The count and digest of the set as of the last change, if they are known."""
        if self.sum is None or self.applied != self.last_change:
            return None
        return SetSum.parse(self.sum).digest()

    @property
    def reached(self) -> int:
        """The end of the journal: every later change will have a datetime after this one."""
        return max(self.last_change, self.promised)


class Journal:
    """One connection to the journal, for one thread at a time. Creates the file if it is missing.

    Methods documented as "requires a transaction" must be called inside `transaction()`. The writes
    of several methods then become durable together.

    Attributes:
        recorded: The changes that the last transaction recorded.
        commits: The number of transactions and the time spent on their commits, including the
            flush.

    Raises:
        StorageError: The file cannot be used.
        ConfigurationError: The file belongs to a Source with another base URL.
    """

    def __init__(
        self, path: Path, base_url: str, *, clock: Callable[[], int] = system_clock
    ) -> None:
        self._path = path
        self._clock = clock
        self.recorded: list[RecordedChanges] = []
        self.commits = Durations()
        self._is_snapshot = False
        with self._translated():
            if not path.exists():
                check_role(path)
                make_durably(path.parent)
            # A `Recorder` may commit each transaction in a different thread.
            self._db = sqlite3.connect(
                path, isolation_level=None, timeout=30, check_same_thread=False
            )
            try:
                self._prepare(base_url)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, base_url: str) -> None:
        self._db.execute("PRAGMA synchronous=FULL")
        # If two processes switched a new file to WAL at the same time, one would get "locked".
        if (version := self._version()) < VERSION:
            with FileLock(self._path.with_suffix(".lock")):
                if self._version() == 0:
                    self._create(base_url)
                elif self._version() < VERSION:
                    with self.transaction():
                        migrate(self._db, self._version())
                version = self._version()
        if version != VERSION:
            raise later_version(self._path)
        known = self._value("SELECT base_url FROM state")
        if known != base_url:
            raise ConfigurationError(
                f"{self._path} belongs to the Source {known}, not {base_url}; "
                "use that base URL, or another folder for the state"
            )

    def _version(self) -> int:
        return int(self._value("PRAGMA user_version"))

    def _value(self, query: str, *values: object) -> Any:
        """Return the result of a query that yields one row with one column."""
        return self._db.execute(query, values).fetchone()[0]

    def _create(self, base_url: str) -> None:
        now = self._clock()
        self._db.execute(f"PRAGMA page_size={PAGE_SIZE}")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(f"BEGIN;{TABLES}PRAGMA user_version={VERSION};")
        self._db.execute(
            "INSERT INTO state VALUES (?, ?, ?, ?, ?, TRUE, ?)",
            (base_url, now, now, now, now, str(SetSum())),
        )
        self._db.execute("INSERT INTO notices VALUES (?, '')", (now,))
        self._db.execute("COMMIT")

    def tune_for_writes(self, cache_size: float = DEFAULT_CACHE_SIZE) -> None:
        """Tune the connection for many transactions. Otherwise a large set slows down each change.

        The pages that a change touches are scattered over the file, so a cache of 64 MiB pays off.
        In a large file, the WAL is checkpointed only after up to 128 MiB, since a checkpoint spends
        most of its time seeking. In a small file it is checkpointed sooner: each flush also writes
        the WAL's new length until the WAL has reached its full size once.
        """
        self._db.execute(f"PRAGMA cache_size={-round(cache_size * 1024)}")
        size, pages = self._value("PRAGMA page_size"), self._value("PRAGMA page_count")
        after = min(max(_CHECKPOINT_PAGES, pages / 2), cache_size * 2**20 / size * 2)
        self._db.execute(f"PRAGMA wal_autocheckpoint={round(after)}")

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self, *, flush: bool = True) -> Iterator[None]:
        """Commit all writes when the context ends, or none if an exception is raised.

        Without `flush`, a power failure may undo this transaction, but not earlier ones.
        """
        self.recorded = []
        with self._translated():
            if self._db.in_transaction:  # an earlier transaction could not be rolled back
                self._db.execute("ROLLBACK")
            if not flush:
                self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                began = perf_counter()
                self._db.execute("COMMIT")
                self.commits.add(perf_counter() - began)
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            finally:
                if not flush:
                    self._db.execute("PRAGMA synchronous=FULL")

    @contextmanager
    def snapshot(self) -> Iterator[JournalState]:
        """Read the journal as it was when the context began, except for the current set."""
        with self._translated():
            self._db.execute("BEGIN")
            self._is_snapshot = True
            try:
                yield self.state()
            finally:
                self._is_snapshot = False
                self._db.execute("ROLLBACK")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"{self._path}: {reason_of(error)}") from error

    def state(self) -> JournalState:
        return JournalState(*self._db.execute(_STATE).fetchone())

    # Changes, and the hubs that receive them

    def record(self, records: Iterable[Record], earliest: Iterable[int] = ()) -> list[Resource]:
        """Insert changes, and return them with their datetimes. Requires a transaction.

        A change gets the clock's time, or its instant in `earliest` if that is later.
        """
        state = self.state()
        at = state.reached
        now = self._clock()
        rows = []
        recorded = []
        contents = {}
        for record, least in zip(records, chain(earliest, repeat(0)), strict=False):
            at = max(now, at + 1, least)
            resource, content = record.resource, record.content
            rows.append(as_row(record, at))
            recorded.append(replace(resource, datetime=from_microseconds(at)))
            if content is not None and len(content) <= INLINE_LIMIT:
                contents[resource.uri] = content
        if recorded:
            self._db.executemany(
                "INSERT INTO changes (uri, at, entry, validator) VALUES (?, ?, ?, ?)", rows
            )
            self.recorded.append(RecordedChanges(state.last_change, at, recorded, contents))
        return recorded

    def load(self, records: Iterable[Record]) -> int:
        """Insert existing resources as the baseline, and return their number.

        The journal must be empty. It then begins at this instant, so no reader can continue from an
        earlier state. Requires a transaction.
        """
        if not self.is_empty():
            raise ConfigurationError(
                f"{self._path} is not empty, so no baseline can be loaded; record changes instead"
            )
        at = max(self._clock(), self.state().reached + 1)
        total = SetSum()
        self.apply((as_row(record, at) for record in records), total)
        query = "UPDATE state SET applied = ?1, promised = ?1, pruned = ?1, closed = ?1"
        self._db.execute(f"{query}, sum = ?2", (at, str(total)))
        return total.count

    def set_tracked(self, tracked: bool) -> None:
        """Keep the current set here, or leave it to the Source. Requires a transaction."""
        if tracked and not self.state().tracked:
            raise ConfigurationError(
                f"{self._path} does not contain the set, because the Source had the callback "
                "`resources`; pass that again, or use another folder for the state"
            )
        if not tracked:
            self._db.execute("DELETE FROM resources")
            self._db.execute("DELETE FROM spellings")
            self._db.execute("UPDATE state SET tracked = FALSE, sum = NULL")

    def is_empty(self) -> bool:
        query = "SELECT EXISTS (SELECT 1 FROM changes) OR EXISTS (SELECT 1 FROM resources)"
        return not (self.has_closed_lists() or self._value(query))

    def has_closed_lists(self) -> bool:
        """Return whether there is a closed Change List.

        If not, the journal begins where it was created or where its baseline was loaded.
        """
        return bool(self._value("SELECT EXISTS (SELECT 1 FROM volumes WHERE kind = 'changelist')"))

    def promise(self) -> JournalState:
        """Promise that every later change will have a datetime after now. Requires a transaction.

        Return the state, whose `reached` is the promised instant.
        """
        self._db.execute("UPDATE state SET promised = max(promised, ?)", (self._clock(),))
        return self.state()

    def position(self, reader: str) -> str | None:
        """Return the position that a reader of another log has stored, or None if there is none."""
        query = "SELECT position FROM positions WHERE reader = ?"
        row = self._db.execute(query, (reader,)).fetchone()
        return None if row is None else str(row[0])

    def set_position(self, reader: str, position: str) -> None:
        """Store a reader's position in another log. Requires a transaction."""
        self._db.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (reader, position))

    def data_version(self) -> int:
        """Return a number that differs after another connection has written."""
        return int(self._value("PRAGMA data_version"))

    def write_version(self) -> tuple[int, int]:
        """Return a value that differs after any connection, including this one, has written."""
        with self._translated():
            return self.data_version(), self._db.total_changes

    def changes(self, after: int, limit: int = -1) -> list[Resource]:
        """Return the changes later than `after`, oldest first; all if `limit` is negative."""
        query = "SELECT uri, at, entry FROM changes WHERE at > ? ORDER BY at LIMIT ?"
        rows = self._db.execute(query, (after, limit))
        return [
            replace(_decode(entry), uri=uri, datetime=from_microseconds(at))
            for uri, at, entry in rows
        ]

    def count_changes(self, after: int, limit: int = -1) -> int:
        """Count the changes later than `after`, up to `limit` unless it is negative."""
        query = "SELECT count(*) FROM (SELECT 1 FROM changes WHERE at > ? LIMIT ?)"
        return int(self._value(query, after, limit))

    def last_change_at(self, instant: int) -> int:
        """Return the datetime of the last change up to an instant, or the journal's beginning."""
        at: int | None = self._value("SELECT max(at) FROM changes WHERE at <= ?", instant)
        return self.state().pruned if at is None else at

    def close_list(self, document: FinishedDocument) -> None:
        """Insert a closed Change List, so that the open one begins at its end.

        Requires a transaction.
        """
        self.put(document)
        self._db.execute("UPDATE state SET closed = ?", (document.end,))

    def add_hub(self, hub: str) -> None:
        """Add a hub. A new hub receives only later changes and notices. Requires a transaction."""
        row = (hub, self.state().last_change)
        self._db.execute("INSERT OR IGNORE INTO cursors VALUES (?, ?)", row)
        self._db.execute("INSERT OR IGNORE INTO told SELECT ?, max(at) FROM notices", (hub,))

    def cursor(self, hub: str) -> int:
        """Return the instant through which a hub has every change."""
        return int(self._value("SELECT through FROM cursors WHERE hub = ?", hub))

    def notice_cursor(self, hub: str) -> int:
        """Return the instant through which a hub has every notice."""
        return int(self._value("SELECT through FROM told WHERE hub = ?", hub))

    def move_cursors(self, changes: Mapping[str, int], notices: Mapping[str, int]) -> None:
        """Store the hubs' cursors in changes and in notices. Requires a transaction."""
        for table, cursors in (("cursors", changes), ("told", notices)):
            query = f"UPDATE {table} SET through = ?2 WHERE hub = ?1"
            self._db.executemany(query, cursors.items())

    def prunable(self, hubs: Iterable[str]) -> int | None:
        """Return the datetime of the last change that may be pruned now, or None.

        Changes that a hub lacks are kept as long as a Change List in the archive contains them.
        """
        closed = self.state().closed
        query = "SELECT coalesce(min(begins), ?) FROM volumes WHERE kind = ?"
        offered = self._value(query, closed, Capability.CHANGE_LIST)
        through = max(offered, min([closed, *map(self.cursor, hubs)]))
        query = "SELECT max(at) FROM (SELECT at FROM changes WHERE at <= ? ORDER BY at LIMIT ?)"
        at: int | None = self._value(query, through, _PRUNE_BATCH)
        return at

    def prune(self, through: int) -> None:
        """Delete the changes through an instant from `prunable`. Requires a transaction."""
        while self.apply_changes(through):  # they cannot be applied once they are deleted
            pass
        self._db.execute("DELETE FROM changes WHERE at <= ?", (through,))
        self._db.execute("UPDATE state SET pruned = ?", (through,))

    # The current set

    def apply_changes(self, through: int | None = None) -> bool:
        """Apply the next changes to the set, and return whether more are left to apply.

        With `through` (µs), apply only the changes up to that instant. Requires a transaction.
        """
        state = self.state()
        through = state.last_change if through is None else min(through, state.last_change)
        if state.sum is None or state.applied >= through:
            return False
        query = "SELECT uri, at, entry, validator FROM changes WHERE at > ? ORDER BY at LIMIT ?"
        rows = self._db.execute(query, (state.applied, _APPLY_BATCH)).fetchall()
        total = SetSum.parse(state.sum)
        self.apply(rows, total)
        applied = rows[-1][1]
        self._db.execute("UPDATE state SET applied = ?, sum = ?", (applied, str(total)))
        return bool(applied < through)

    def bring_up_to_date(self) -> None:
        """Apply all changes recorded so far to the set, inside or outside a transaction."""
        if self._is_snapshot:
            raise RuntimeError("the current set cannot be read in a snapshot; read it outside")
        if self._db.in_transaction:
            while self.apply_changes():
                pass
            return
        state = self.state()
        more = state.sum is not None and state.applied < state.last_change
        while more:
            with self.transaction(flush=False):
                more = self.apply_changes(state.last_change)

    def apply(self, rows: Iterable[Row], total: SetSum) -> None:
        """Apply changes to the set in order, and update its sum.

        A change also replaces a resource whose URI is an equivalent spelling.
        """
        remaining = iter(rows)
        while page := {normalize(row[0]): row for row in islice(remaining, _PAGE_SIZE)}:
            uris = self._update_spellings(page)
            # For a single change, this query takes a quarter of the time.
            query = (_FIND_ONE, uris) if len(uris) == 1 else (_FIND, [_encode(uris)])
            before = self._db.execute(*query).fetchall()
            total.remove((uri, _summary_of(entry).hash) for uri, entry in before)
            changed = [(row, _summary_of(row[2])) for row in page.values()]
            changed = [one for one in changed if one[1].change != ChangeType.DELETED]
            total.add((row[0], each.hash) for row, each in changed)
            after = {row[0]: row for row, _ in changed}
            gone = [(uri,) for uri, _ in before if uri not in after]
            self._db.executemany("DELETE FROM resources WHERE uri = ?", gone)
            self._db.executemany(_PUT, after.values())

    def _update_spellings(self, page: Mapping[str, Row]) -> list[str]:
        """Store the new spellings, and return all URIs that the changed resources had or have.

        `page` maps the normal forms of the URIs to the changes.
        """
        uris = [row[0] for row in page.values()]
        spelled = [(normal, row[0]) for normal, row in page.items() if normal != row[0]]
        if not spelled and not self._value("SELECT EXISTS (SELECT 1 FROM spellings)"):
            return uris
        known = self._db.execute(_FIND_SPELLINGS, (_encode([*page]),)).fetchall()
        self._db.executemany(
            "DELETE FROM spellings WHERE normal = ?", [(normal,) for normal, _ in known]
        )
        kept = (
            (normal, uri)
            for normal, uri in spelled
            if _summary_of(page[normal][2]).change != ChangeType.DELETED
        )
        self._db.executemany("INSERT INTO spellings VALUES (?, ?)", kept)
        return list({*uris, *(one for one, _ in spelled), *(uri for _, uri in known)})

    def revalidate(self, uri: str, validator: str) -> None:
        """Store a new validator for a resource that did not change. Requires a transaction."""
        self.bring_up_to_date()
        self._db.execute("UPDATE resources SET validator = ? WHERE uri = ?", (validator, uri))

    def resources(self) -> Iterator[Resource]:
        """Yield the resources of the current set as a Resource List lists them, sorted by URI."""
        for uri, at, entry in self._set("uri, at, entry"):
            yield as_listed(_resource(uri, entry), from_microseconds(at))

    def _set(self, columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield columns of the current set, sorted by URI, which must be the first column.

        The set is read in pages, so that no writer ever waits. It may change between pages.
        """
        self.bring_up_to_date()
        after = ""
        query = f"SELECT {columns} FROM resources WHERE uri > ? ORDER BY uri LIMIT ?"
        while rows := self._db.execute(query, (after, _PAGE_SIZE)).fetchall():
            yield from rows
            after = rows[-1][0]

    def count(self) -> int:
        self.bring_up_to_date()
        return int(self._value("SELECT count(*) FROM resources"))

    def resource(self, uri: str) -> tuple[Resource, str | None] | None:
        """Return a resource and its validator, or None if it is not in the current set."""
        self.bring_up_to_date()
        query = "SELECT entry, validator FROM resources WHERE uri = ?"
        row = self._db.execute(query, (uri,)).fetchone()
        return None if row is None else (_resource(uri, row[0]), row[1])

    def select(
        self, accepts: Callable[[str, str | None], bool]
    ) -> Iterator[tuple[str, str | None]]:
        """Yield the URIs and validators for which `accepts` returns True, sorted by URI."""
        return ((uri, known) for uri, known in self._set("uri, validator") if accepts(uri, known))

    def validators(self, prefix: str = "") -> dict[str, str | None]:
        """Return the validators of all resources whose URI begins with `prefix`, keyed by URI."""
        self.bring_up_to_date()
        # U+10FFFF sorts after every character that a URI can contain.
        query = "SELECT uri, validator FROM resources WHERE uri >= ? AND uri < ?"
        return dict(self._db.execute(query, (prefix, prefix + "\U0010ffff")))

    # Finished documents, and files to be deleted

    def finished(self, kind: str, *, archived: bool | None = None) -> list[FinishedDocument]:
        """Return the finished documents of a kind, oldest first.

        They are live or archived ones; if `archived` is None, both.
        """
        rows = self._db.execute(
            "SELECT begins, ends, entries, size, files, archived FROM volumes"
            " WHERE kind = ?1 AND (?2 IS NULL OR archived = ?2) ORDER BY begins",
            (kind, archived),
        )
        return [
            FinishedDocument(kind, begin, end, entries, size, tuple(json.decode(files)), bool(old))
            for begin, end, entries, size, files, old in rows
        ]

    def put(self, document: FinishedDocument) -> None:
        """Insert a document after all its files have been written."""
        *described, files, archived = astuple(document)
        self._db.execute(
            "INSERT OR REPLACE INTO volumes (kind, begins, ends, entries, size, files, archived)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*described, json.encode(files).decode(), archived),
        )
        self.keep(document.files)  # a file left over from a crash may have been discarded

    def archive(self, documents: Iterable[FinishedDocument]) -> None:
        for document in documents:
            query = "UPDATE volumes SET archived = TRUE WHERE kind = ? AND begins = ?"
            self._db.execute(query, (document.kind, document.begin))

    def drop(self, documents: Iterable[FinishedDocument]) -> None:
        for document in documents:
            query = "DELETE FROM volumes WHERE kind = ? AND begins = ?"
            self._db.execute(query, (document.kind, document.begin))
            self.discard(document.files)

    def discard(self, files: Iterable[str]) -> None:
        """Mark files to be deleted later, since no document refers to them."""
        rows = [(name, self._clock()) for name in files]
        self._db.executemany("INSERT OR IGNORE INTO discarded VALUES (?, ?)", rows)

    def reclaim(self, stem: str) -> None:
        """Unmark discarded files whose names begin with `stem`, since they will be rewritten."""
        query = "DELETE FROM discarded WHERE substr(file, 1, length(?1)) = ?1"
        self._db.execute(query, (stem,))

    def discarded(self, before: int) -> list[str]:
        query = "SELECT file FROM discarded WHERE at < ? ORDER BY at"
        return [name for (name,) in self._db.execute(query, (before,))]

    def keep(self, files: Iterable[str]) -> None:
        """Unmark discarded files that have been deleted, or that belong to a document again."""
        rows = [(name,) for name in files]
        self._db.executemany("DELETE FROM discarded WHERE file = ?", rows)

    def files(self) -> set[str]:
        """Return the names of all files that belong to a document or were discarded."""
        known = {name for (name,) in self._db.execute("SELECT file FROM discarded")}
        for (files,) in self._db.execute("SELECT files FROM volumes"):
            known.update(json.decode(files))
        return known

    # Notices of documents

    def add_notices(self, documents: Iterable[Resource]) -> None:
        """Insert a notice for each written document. Each must have `change` and `capability`."""
        at = max(self.state().reached, self.last_notice())
        for document in documents:
            at = max(self._clock(), at + 1)
            self._db.execute("INSERT INTO notices VALUES (?, ?)", (at, _encode(document)))
        kept = "SELECT at FROM notices ORDER BY at DESC LIMIT 1 OFFSET ?"
        self._db.execute(f"DELETE FROM notices WHERE at < ({kept})", (MAX_NOTICES,))

    def add_version_notice(self, document: Resource, version: str) -> None:
        """Insert a notice of a document, unless its last notice had the same version.

        `document` must not have `change` set.
        """
        query = "SELECT version FROM versions WHERE document = ?"
        known = self._db.execute(query, (document.uri,)).fetchone()
        if known == (version,):
            return
        change = ChangeType.CREATED if known is None else ChangeType.UPDATED
        self.add_notices([replace(document, change=change)])
        self._db.execute("INSERT OR REPLACE INTO versions VALUES (?, ?)", (document.uri, version))

    def notices(self, after: int, limit: int = -1) -> list[Resource]:
        """Return the notices later than `after`, oldest first; all if `limit` is negative."""
        query = "SELECT at, entry FROM notices WHERE at > ? ORDER BY at LIMIT ?"
        rows = self._db.execute(query, (max(after, self.first_notice()), limit))
        return [replace(_decode(entry), datetime=from_microseconds(at)) for at, entry in rows]

    def first_notice(self) -> int:
        """Return the instant after which the notices begin."""
        return int(self._value("SELECT min(at) FROM notices"))

    def last_notice(self) -> int:
        """Return the datetime of the last notice, or `first_notice` if there is none."""
        return int(self._value("SELECT max(at) FROM notices"))

    def last_notice_at(self, instant: int) -> int:
        """Return the datetime of the last notice up to an instant; `first_notice` if none."""
        at: int | None = self._value("SELECT max(at) FROM notices WHERE at <= ?", instant)
        return self.first_notice() if at is None else at


def as_row(record: Record, at: int) -> Row:
    """Return a change or a resource as a row of the database.

    The entry omits the URI to stay short, because each change writes a whole page of entries.
    """
    resource = record.resource
    return (resource.uri, at, _encode(replace(resource, uri="")), record.validator)


def _resource(uri: str, entry: bytes) -> Resource:
    return replace(_decode(entry), uri=uri)
