"""The interface between a state and the database in which it is kept.

SQL is written once, for all databases: parameters are `?`, tables `{facts}`, `{resources}` and
`{seen}`, the last of them temporary. Everything else in it is common to all of them. A local one
has `{contents}`, too.

The `identity` of a resource is the normal form of its URI, which all spellings share; it is ''
where the URI is in that form, and NULL in a row that an earlier version wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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
