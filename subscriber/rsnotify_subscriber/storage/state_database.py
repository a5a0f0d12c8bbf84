"""The interface of databases for states, and transactions.

All databases execute the same SQL. Parameters are `?`. Statements refer to the tables as `{facts}`,
`{resources}`, `{seen}` and `{backlog}`, to the types as `{integer}` (64 bits) and `{bytes}`. The
tables `seen` and `backlog` are temporary, or `{unlogged}` if a state has no session of its own. A
local database also has the table `{contents}`.

The column `identity` of `resources` has the normal form of the URI, which all spellings share. It
is '' if the URI is in normal form, and NULL in rows from an earlier version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from rsnotify.errors import StorageError
from rsnotify.runtime.reasons import reason_of

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
