"""Sets that may not fit into memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from threading import Lock

from rsnotify.errors import StorageError
from rsnotify.runtime.reasons import reason_of

# An empty database name denotes a temporary file, which is removed even after a crash.
_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE texts (text BLOB PRIMARY KEY) WITHOUT ROWID;
BEGIN;
"""


class TemporarySet:
    """A set of strings in a temporary file, which `close` removes.

    In memory, a million URIs would need 150 MB. The set is thread-safe. All methods raise
    `StorageError` if the file is unusable, for example because the disk is full.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:  # another thread may still use the database
            self._database.close()

    def update(self, texts: Iterable[str]) -> None:
        rows = [(_encoded(text),) for text in texts]
        with self._lock:
            try:
                self._database.executemany("INSERT OR IGNORE INTO texts VALUES (?)", rows)
            except sqlite3.Error as error:
                raise _failed(error) from error

    def __contains__(self, text: str) -> bool:
        return self._execute("SELECT 1 FROM texts WHERE text = ?", _encoded(text))

    def __bool__(self) -> bool:
        return self._execute("SELECT 1 FROM texts")

    def clear(self) -> None:
        self._execute("DELETE FROM texts")

    def _execute(self, sql: str, *parameters: bytes) -> bool:
        """Execute a statement, and return whether it returns a row."""
        with self._lock:
            try:
                return self._database.execute(sql, parameters).fetchone() is not None
            except sqlite3.Error as error:
                raise _failed(error) from error


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a file name may not be valid UTF-8


def _failed(error: sqlite3.Error) -> StorageError:
    return StorageError(f"a temporary file cannot be used: {reason_of(error)}")
