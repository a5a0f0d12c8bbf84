"""The database of the journal: connections, transactions, errors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from filelock import FileLock
from msgspec import Struct

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.digest import SetDigest, SetSum
from rsnotify.runtime.disk import make_durably
from rsnotify.runtime.folder_roles import check_role, later_version
from rsnotify_publisher.journal import schema
from rsnotify_publisher.journal.recorded_changes import RecordedChanges

#: MiB of cache for the connection that writes.
USUAL_MEMORY = 64.0
# Pages in the WAL of a small file before a checkpoint.
_CHECKPOINT = 2_000
_STATE = (
    "SELECT coalesce((SELECT max(at) FROM changes), pruned),"
    " applied, promised, pruned, closed, tracked, sum FROM state"
)


def system_clock() -> int:
    return time.time_ns() // 1000


class JournalState(Struct, frozen=True):
    """Where the journal ends; see the columns of its table.

    `sum` is that of the set after the change `applied`; later changes are in the journal alone.
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
        """Count and digest of the set as of the last change, if they are known."""
        if self.sum is None or self.applied != self.last_change:
            return None
        return SetSum.parse(self.sum).digest()

    @property
    def reached(self) -> int:
        """No later change gets a datetime at or before this one."""
        return max(self.last_change, self.promised)


class JournalConnection:
    """One connection to the file, for one thread at a time; creates the file if it is missing.

    Attributes:
        recorded: The changes that the last transaction recorded.

    Raises:
        StorageError: The file cannot be used.
        ConfigurationError: It belongs to a Source with another base URL.
    """

    def __init__(
        self, path: Path, base_url: str, *, clock: Callable[[], int] = system_clock
    ) -> None:
        self._path = path
        self._clock = clock
        self.recorded: list[RecordedChanges] = []
        self._is_snapshot = False
        check_role(path)
        with self._translated():
            if not path.exists():
                make_durably(path.parent)
            # A recorder of several journals may use another thread for each transaction.
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
        # Two processes that switch a new file to WAL at once would see "locked".
        if self._version() < schema.VERSION:
            with FileLock(self._path.with_suffix(".lock")):
                if self._version() == 0:
                    self._create(base_url)
                elif self._version() < schema.VERSION:
                    with self.transaction():
                        schema.migrate(self._db, self._version())
        if self._version() != schema.VERSION:
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
        """Return the value of a query whose result has one row and column."""
        return self._db.execute(query, values).fetchone()[0]

    def _create(self, base_url: str) -> None:
        now = self._clock()
        self._db.execute(f"PRAGMA page_size={schema.PAGE_SIZE}")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(f"BEGIN;{schema.TABLES}PRAGMA user_version={schema.VERSION};")
        self._db.execute(
            "INSERT INTO state VALUES (?, ?, ?, ?, ?, TRUE, ?)",
            (base_url, now, now, now, now, str(SetSum())),
        )
        self._db.execute("INSERT INTO notices VALUES (?, '')", (now,))
        self._db.execute("COMMIT")

    def expect_writes(self, memory: float = USUAL_MEMORY) -> None:
        """Prepare for many transactions; otherwise a large set makes each change slower.

        The pages of a change are scattered over the file, so a cache of 64 MB pays off. If the file
        is large, the WAL is checkpointed only after up to 128 MB, since a checkpoint spends most of
        its time on seeking; otherwise soon, since until the WAL has that size for the first time,
        each flush also writes its new length.
        """
        self._db.execute(f"PRAGMA cache_size={-round(memory * 1024)}")
        size, pages = self._value("PRAGMA page_size"), self._value("PRAGMA page_count")
        after = min(max(_CHECKPOINT, pages / 2), memory * 2**20 / size * 2)
        self._db.execute(f"PRAGMA wal_autocheckpoint={round(after)}")

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self, *, flush: bool = True) -> Iterator[None]:
        """Commit all writes at the end, or none if an exception is raised.

        Without a flush, a power failure may undo the transaction, but none before it.
        """
        self.recorded = []
        with self._translated():
            if self._db.in_transaction:  # a failed transaction could not be rolled back
                self._db.execute("ROLLBACK")
            if not flush:
                self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            finally:
                if not flush:
                    self._db.execute("PRAGMA synchronous=FULL")

    @contextmanager
    def snapshot(self) -> Iterator[JournalState]:
        """Read the journal, but not the current set, as it was at the start of the context."""
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
            raise StorageError(f"{self._path}: {error}") from error

    def state(self) -> JournalState:
        return JournalState(*self._db.execute(_STATE).fetchone())
