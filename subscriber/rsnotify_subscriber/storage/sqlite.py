"""A state in a folder, in an SQLite file."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import FileIO
from pathlib import Path

from filelock import FileLock, Timeout

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import check_role, flush, flush_data, make_durably
from rsnotify_subscriber.storage.state_database import Row, Rows

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
