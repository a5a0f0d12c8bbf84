"""Sets that may be too large for the memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import AbstractContextManager
from threading import Lock
from types import TracebackType
from typing import Self

from rsnotify.errors import StorageError
from rsnotify.runtime.reasons import reason_of

# The empty name stands for a temporary file, which the system removes even after a crash.
_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE texts (text BLOB PRIMARY KEY) WITHOUT ROWID;
BEGIN;
"""


class TemporarySet(AbstractContextManager["TemporarySet"]):
    """A set of texts in a temporary file; it may be used in several threads.

    A million URIs in memory would take 150 MB. All methods raise `StorageError` if the disk is
    full.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:  # a thread may still be using it
            self._database.close()

    def update(self, texts: Iterable[str]) -> None:
        rows = [(_encoded(text),) for text in texts]
        with self._lock:
            try:
                self._database.executemany("INSERT OR IGNORE INTO texts VALUES (?)", rows)
            except sqlite3.Error as error:
                raise _failed(error) from error

    def __contains__(self, text: str) -> bool:
        query = "SELECT 1 FROM texts WHERE text = ?"
        with self._lock:
            try:
                return self._database.execute(query, (_encoded(text),)).fetchone() is not None
            except sqlite3.Error as error:
                raise _failed(error) from error

    def __bool__(self) -> bool:
        with self._lock:
            return self._database.execute("SELECT 1 FROM texts").fetchone() is not None

    def clear(self) -> None:
        with self._lock:
            self._database.execute("DELETE FROM texts")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # the name of a file may be no UTF-8


def _failed(error: sqlite3.Error) -> StorageError:
    return StorageError(f"a temporary file cannot be used: {reason_of(error)}")
