"""The interface between a state and the database in which it is kept.

SQL is written once, for all databases: parameters are `?`, tables `{facts}`, `{resources}` and
`{seen}`, the last of them temporary. Everything else in it is common to all of them. A local one
has `{contents}`, too.

The `identity` of a resource is the normal form of its URI, which all spellings share; it is ''
where the URI is in that form, and NULL in a row that an earlier version wrote.

The transactions of a state, and the table of facts that they write.

A handler with `apply_within` begins a transaction that the next commit of T ends. All others
begin and end within one call. After a failure none begins any more: a later progress must not be
stored without the changes that were lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from rsnotify.errors import StorageError

Row = tuple[Any, ...]


class Rows(Protocol):
    """The result of a statement."""

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...


class StateDatabase(Protocol):
    """An open database, for one state at a time.

    One thread writes at a time, and `read` is called in another.
    """

    #: The name of the database in messages.
    name: str
    #: The exceptions that it raises when it cannot be read or written.
    errors: tuple[type[Exception], ...]
    #: Whether `read` returns so quickly that an event loop may wait for it.
    is_local: bool

    @property
    def connection(self) -> Any:
        """The connection that writes, for handlers whose effect is committed together with T."""

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        """Run a statement on the connection that writes."""

    def executemany(self, sql: str, parameters: Iterable[Sequence[object]]) -> None: ...

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Run a query on the other connection, which sees only committed changes."""

    def savepoint(self) -> AbstractContextManager[object]:
        """Roll back the changes made inside, and no others, if an exception passes through."""

    def store_intent(self, record: bytes) -> None:
        """Store a record durably. If this fails, the last one is still stored."""

    def read_intents(self) -> list[bytes]:
        """Return the record that was last stored, if there is one, and perhaps the one before it.

        A record that was being written at a crash may be among them, damaged.
        """

    def make_incoming(self) -> Path:
        """Make an empty folder for temporary content."""

    def close(self) -> None: ...


@runtime_checkable
class StateLocation(Protocol):
    """A place where a state can be kept."""

    def open(self) -> StateDatabase:
        """Open the database, and make the tables if they do not exist.

        Raises:
            ConfigurationError: Another process is using it, or it is not set up for this.
            StorageError: It cannot be read or written.
        """


T = TypeVar("T")

_UPSERT = " ON CONFLICT (name) DO UPDATE SET value = excluded.value"


class StateTransactions:
    def __init__(self, database: StateDatabase) -> None:
        self._database = database
        #: Why a transaction failed; empty if none did.
        self._failed = ""
        self._begun = False

    @contextmanager
    def writing(self, *, ends: bool = False) -> Iterator[None]:
        """Write in a transaction, or in that of a handler, which only `ends` commits."""
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
        """Call a handler that writes into the transaction which the next commit ends.

        If it raises, its changes are rolled back, and no others; the exception passes through.
        """
        self._begin()
        with self._database.savepoint():
            apply(self._database.connection)

    def _begin(self) -> None:
        if self._failed:
            raise StorageError(
                f"{self._database.name}: an earlier commit failed, so none is made any more "
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

    @contextmanager
    def storage_errors(self) -> Iterator[None]:
        """Raise errors of the database and of the disk as `StorageError`."""
        name = self._database.name
        try:
            yield
        except OSError as error:
            raise StorageError(f"{error.filename or name}: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise StorageError(f"{name}: {error}") from error
        except self._database.errors as error:
            raise StorageError(f"{name}: {str(error).strip()}") from error

    def read_fact(self, name: str, kind: type[T]) -> T | None:
        with self.storage_errors():
            query = "SELECT value FROM {facts} WHERE name = ?"
            row = self._database.execute(query, (name,)).fetchone()
            return None if row is None else msgspec.json.decode(row[0], type=kind)

    def write_facts(self, **facts: object) -> None:
        """Store facts by one statement, as each takes a while on a remote database."""
        rows = ", ".join(["(?, ?)"] * len(facts))
        values = [one for name in facts for one in (name, msgspec.json.encode(facts[name]))]
        self._database.execute(f"INSERT INTO {{facts}} VALUES {rows}{_UPSERT}", values)

    def delete_progress(self) -> None:
        """Delete T, so that the next run compares everything."""
        self.delete_facts("progress")

    def delete_facts(self, *names: str) -> None:
        query = "DELETE FROM {facts} WHERE name = ?"
        self._database.executemany(query, [(name,) for name in names])
