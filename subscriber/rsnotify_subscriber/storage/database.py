"""What a state asks of the database it stands in: little, so that there can be several.

SQL is written once, for all of them: parameters are `?`, tables `{facts}`, `{resources}` and
`{seen}`, of which the last is temporary. Whatever it uses beyond that, all of them understand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

Row = tuple[Any, ...]


class Rows(Protocol):
    """What a statement found."""

    def fetchone(self) -> Row | None:
        """Return the next row, if there is one."""

    def fetchall(self) -> list[Row]:
        """Return the rows that are left."""

    def __iter__(self) -> Iterator[Row]:
        """Return the rows one by one."""


class StateDatabase(Protocol):
    """An open database, for one state at a time.

    One thread writes at a time, and `read` is called in another.
    """

    #: What messages call it.
    name: str
    #: What it raises when it cannot be read or written.
    errors: tuple[type[Exception], ...]
    #: Whether `read` answers so quickly that an event loop may wait for it.
    is_local: bool

    @property
    def connection(self) -> Any:
        """The connection that writes, for handlers whose effect is committed together with T."""

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        """Run a statement on the connection that writes."""

    def executemany(self, sql: str, parameters: Iterable[Sequence[object]]) -> None:
        """Run a statement for each row of parameters."""

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Run a query on the other connection, which sees what was committed."""

    def savepoint(self) -> AbstractContextManager[object]:
        """Undo what is done inside, and nothing else, if an exception passes through."""

    def intend(self, record: bytes, *, durably: bool) -> None:
        """Keep a record, in place of the last, so that it outlives the process.

        Args:
            record: The record.
            durably: Whether it should outlive a power failure too; it is on the disk when the next
                transaction is committed, and nearly always before. If not, nothing waits for it.

        Raises:
            OSError: It cannot be written.
        """

    def settle(self) -> None:
        """Wait until the record is on the disk, where it was to be kept durably.

        Raises:
            OSError: It cannot be written.
        """

    def intent(self) -> bytes | None:
        """Return the record that was last kept, if there is one; it may be damaged."""

    def incoming(self) -> Path:
        """Make an empty folder for temporary content.

        Raises:
            OSError: It cannot be made.
        """

    def close(self) -> None:
        """Let others use the database."""


@runtime_checkable
class StateLocation(Protocol):
    """Where a state is kept."""

    def open(self) -> StateDatabase:
        """Open the database, and make the tables if they are not there.

        Raises:
            ConfigurationError: Another process is using it, or it cannot be used like that.
            StorageError: It cannot be read or written.
        """
