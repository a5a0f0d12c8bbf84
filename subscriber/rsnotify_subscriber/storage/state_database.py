"""The databases for states: their interface, transactions, and SQLite files in folders.

All databases execute the same SQL. Parameters are `?`. Statements refer to the tables as `{facts}`,
`{resources}`, `{seen}` and `{backlog}`, to the types as `{integer}` (64 bits) and `{bytes}`. The
tables `seen` and `backlog` are temporary, or `{unlogged}` if a state has no session of its own. A
local database also has the table `{contents}`.

The column `identity` of `resources` has the normal form of the URI, which all spellings share. It
is '' if the URI is in normal form, and NULL in rows from an earlier version.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec
from filelock import FileLock, Timeout

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import check_role, flush, flush_data, make_durably

Row = tuple[Any, ...]


class Rows(Protocol):
    """The result of a statement."""

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...


class StateDatabase(Protocol):
    """An open database with one state.

    Only one thread at a time writes. `read` is called in another thread.
    """

    #: The name of the database in messages.
    name: str
    #: The exceptions that the database raises when it cannot be read or written.
    errors: tuple[type[Exception], ...]
    #: Whether `read` is fast enough for an event loop.
    is_local: bool

    @property
    def connection(self) -> Any:
        """The connection for writing, for handlers whose effect is committed together with T."""

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        """Run a statement on the connection for writing."""

    def executemany(self, sql: str, parameters: Iterable[Sequence[object]]) -> None: ...

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Run a query on a second connection, which sees only committed changes."""

    def savepoint(self) -> AbstractContextManager[object]:
        """Return a context that rolls back its own changes if it raises."""

    def store_intent(self, record: bytes) -> None:
        """Replace the record of intents durably. If this fails, the previous record remains."""

    def read_intents(self) -> list[bytes]:
        """Return the last record, if any, and perhaps the previous one.

        A crash may have damaged one of them.
        """

    def make_incoming(self) -> Path:
        """Make an empty folder for temporary content, and return its path."""

    def close(self) -> None: ...


@runtime_checkable
class StateLocation(Protocol):
    """A place for a state."""

    def open(self) -> StateDatabase:
        """Open the database, and create missing tables.

        Raises:
            ConfigurationError: Another process uses the database, or it is not set up for a state.
            StorageError: It cannot be read or written.
        """


T = TypeVar("T")

_UPSERT = " ON CONFLICT (name) DO UPDATE SET value = excluded.value"


class StorageErrors:
    """A reentrant context manager, three times as fast as a generator."""

    def __init__(self, database: StateDatabase) -> None:
        self._name = database.name
        self._errors = database.errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise StorageError(f"{error.filename or self._name}: {reason_of(error)}") from error
        if isinstance(error, msgspec.DecodeError):
            raise StorageError(f"{self._name}: {error}") from error
        if isinstance(error, self._errors):
            reason = reason_of(error, str(error).strip())
            raise StorageError(f"{self._name}: {reason}") from error


class StateTransactions:
    def __init__(self, database: StateDatabase) -> None:
        self._database = database
        self._errors = StorageErrors(database)
        #: Why a transaction failed, or an empty string.
        self._failed = ""
        self._begun = False

    @contextmanager
    def writing(self, *, ends: bool = False) -> Iterator[None]:
        """Write in a transaction. If a handler has begun one, commit it only if `ends`."""
        waits = self._begun and not ends
        self._begin()
        try:
            with self.storage_errors():
                yield
                if not waits:
                    self._database.execute("COMMIT")
                    self._begun = False
        except BaseException as error:
            self._failed = str(error).strip() or type(error).__name__
            with suppress(*self._database.errors):
                self._database.execute("ROLLBACK")
            raise

    def apply_within(self, apply: Callable[[Any], None]) -> None:
        """Call a handler in the transaction of the next commit.

        If it raises, roll back its own changes only.
        """
        self._begin()
        with self._database.savepoint():
            apply(self._database.connection)

    def _begin(self) -> None:
        if self._failed:
            raise StorageError(
                f"{self._database.name}: an earlier commit failed, so nothing more is committed "
                f"({self._failed})"
            )
        if not self._begun:
            try:
                with self.storage_errors():
                    self._database.execute("BEGIN")
            except BaseException as error:
                self._failed = str(error).strip() or type(error).__name__
                raise
            self._begun = True

    def storage_errors(self) -> StorageErrors:
        """Return a context that turns errors of the database and the disk into `StorageError`."""
        return self._errors

    def read_fact(self, name: str, kind: type[T]) -> T | None:
        with self.storage_errors():
            query = "SELECT value FROM {facts} WHERE name = ?"
            row = self._database.execute(query, (name,)).fetchone()
            return None if row is None else msgspec.json.decode(row[0], type=kind)

    def write_facts(self, **facts: object) -> None:
        """Store facts in one statement, for the sake of remote databases."""
        rows = ", ".join(["(?, ?)"] * len(facts))
        values = [one for name in facts for one in (name, msgspec.json.encode(facts[name]))]
        self._database.execute(f"INSERT INTO {{facts}} VALUES {rows}{_UPSERT}", values)

    def delete_facts(self, *names: str) -> None:
        query = "DELETE FROM {facts} WHERE name = ?"
        self._database.executemany(query, [(name,) for name in names])


# A state in a folder

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS resources (
    uri TEXT PRIMARY KEY, changed_at INTEGER NOT NULL, change TEXT NOT NULL,
    hash TEXT, length INTEGER, lastmod INTEGER, validator TEXT, fetched_at INTEGER,
    mtime INTEGER, spelling TEXT, identity TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS contents (
    number INTEGER PRIMARY KEY, batch INTEGER NOT NULL, uri TEXT NOT NULL, content BLOB);
CREATE INDEX IF NOT EXISTS tombstones ON resources (changed_at) WHERE change = 'deleted';
"""
# Created after `_ADDED_COLUMNS`.
_INDEXES = """
CREATE INDEX IF NOT EXISTS lost ON resources (uri) WHERE mtime = -1;
CREATE INDEX IF NOT EXISTS identities ON resources (identity) WHERE identity != '';
"""
#: The columns that a state from an earlier version lacks, oldest first.
_ADDED_COLUMNS = {
    "validator": "TEXT",
    "fetched_at": "INTEGER",
    "mtime": "INTEGER",
    "spelling": "TEXT",
    "identity": "TEXT",
}
#: The length of the record in a file of intents. Further bytes are from an earlier, longer record.
_LENGTH = struct.Struct(">Q")
_TABLES = {
    "facts": "facts",
    "resources": "resources",
    "contents": "contents",
    "seen": "temp.seen",
    "backlog": "temp.backlog",
    "unlogged": "",
    "integer": "INTEGER",
    "bytes": "BLOB",
}


@lru_cache(256)
def _with_tables(sql: str) -> str:
    return sql.format_map(_TABLES)


def open_folder(folder: Path) -> SQLiteDatabase:
    """Open the state in a folder, as in `StateLocation.open`. Create the folder if necessary."""
    path = folder / "state.sqlite"
    check_role(path)
    # The state may be closed in another thread.
    lock = FileLock(folder / "lock", timeout=0, thread_local=False)
    try:
        make_durably(folder)
        lock.acquire()
    except Timeout:
        raise ConfigurationError(
            f"{folder} is in use by another follower; stop it first, or choose another folder"
        ) from None
    except OSError as error:
        raise StorageError(f"{error.filename or folder}: {reason_of(error)}") from error
    try:
        return SQLiteDatabase(path, lock)
    except BaseException as error:
        lock.release()
        if isinstance(error, sqlite3.Error):
            raise StorageError(f"{path}: {reason_of(error)}") from error
        raise


class SQLiteDatabase:
    """The SQLite file of a state. Implements `StateDatabase`. `close` unlocks the folder."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    is_local = True

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.name = str(path)
        self._folder = path.parent
        self._lock = lock
        #: The files for the next and the last record of intents.
        self._intents: list[FileIO] = []
        self._reader, self.connection = (
            sqlite3.connect(path, isolation_level=None, check_same_thread=False) for _ in range(2)
        )
        try:
            self._create_tables()
        except BaseException:
            self._reader.close()
            self.connection.close()
            raise

    def _create_tables(self) -> None:
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.executescript(_SCHEMA)
        self._add_missing_columns()
        self.connection.executescript(_INDEXES)
        # Temporary, because a baseline starts over after a restart.
        self.connection.execute(
            "CREATE TEMP TABLE seen (identity TEXT PRIMARY KEY, spelling TEXT) WITHOUT ROWID"
        )

    def _add_missing_columns(self) -> None:
        columns = {row[1] for row in self.connection.execute("PRAGMA table_info(resources)")}
        for name, kind in _ADDED_COLUMNS.items():
            if name not in columns:
                self.connection.execute(f"ALTER TABLE resources ADD COLUMN {name} {kind}")

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        return self.connection.execute(_with_tables(sql), tuple(parameters))

    def executemany(self, sql: str, parameters: Iterable[Sequence[object]]) -> None:
        self.connection.executemany(_with_tables(sql), parameters)

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        return self._reader.execute(_with_tables(sql), tuple(parameters)).fetchall()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self.connection.execute("SAVEPOINT handler")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK TO handler")
            raise
        finally:
            self.connection.execute("RELEASE handler")

    def store_intent(self, record: bytes) -> None:
        """Store a record in its own file, which is cheaper than a commit.

        Two files are used alternately, because a crash or full disk may damage the written one.
        """
        if not self._intents:
            for path in self._intent_paths():
                self._intents.append(open(path, "wb", buffering=0))  # noqa: SIM115
            flush(self._folder)
        file = self._intents[0]
        stored = _LENGTH.pack(len(record)) + record
        file.seek(0)
        if file.write(stored) < len(stored):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
        flush_data(file.fileno())
        self._intents.reverse()

    def read_intents(self) -> list[bytes]:
        records = []
        for path in self._intent_paths():
            with suppress(FileNotFoundError):
                stored = path.read_bytes()
                if len(stored) >= _LENGTH.size:
                    (length,) = _LENGTH.unpack_from(stored)
                    records.append(stored[_LENGTH.size : _LENGTH.size + length])
        return records

    def _intent_paths(self) -> list[Path]:
        return [self._folder / name for name in ("applying", "also-applying")]

    def make_incoming(self) -> Path:
        folder = self._folder / "incoming"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def close(self) -> None:
        for file in self._intents:
            file.close()
        self._reader.close()
        self.connection.close()
        self._lock.release()
