"""Outboxes: tables to which changes are written in the Source's own transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar, Unpack

from msgspec import json

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import ChangeType, Resource
from rsnotify_publisher.changes import Metadata, Record, change_record, check_record

DEFAULT_TABLE = "rsnotify_outbox"
#: Every database accepts names with this many characters.
_MAX_NAME_LENGTH = 50

C = TypeVar("C")
A = TypeVar("A")


class OutboxRecorder(ABC, Generic[C, A]):
    """Writes changes to the table, in the caller's transaction.

    Record a change after the data has been written, in the same transaction. Two transactions that
    change the same row are then forwarded in the order of their commits, since the second one waits
    for the first before it records its change.
    """

    @abstractmethod
    def _write(self, connection: C, entries: list[str]) -> None:
        """Insert rows in the given order."""

    @abstractmethod
    async def _awrite(self, connection: A, entries: list[str]) -> None: ...

    def record(self, connection: C, changes: Iterable[Resource | Record]) -> None:
        """Record changes, to be published after the transaction has been committed.

        Args:
            connection: The connection that runs the transaction.
            changes: The changes in order, each with `change` set. Of their content, only the hash
                and the length are recorded.

        Raises:
            ConfigurationError: A change is unusable, so none is recorded; or the connection is in
                autocommit mode, outside a transaction.
        """
        self._write(connection, _encoded(changes))

    def created(
        self, connection: C, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> None:
        """Record that a resource was created. See `record`.

        Args:
            connection: The connection that runs the transaction.
            uri: The URI of the resource.
            content: The new content of the resource. Only its hash and length are recorded.
            metadata: See `Metadata`.
        """
        self.record(connection, [change_record(uri, ChangeType.CREATED, metadata, content)])

    def updated(
        self, connection: C, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> None:
        """Record that a resource changed. See `created`."""
        self.record(connection, [change_record(uri, ChangeType.UPDATED, metadata, content)])

    def deleted(self, connection: C, uri: str, **metadata: Unpack[Metadata]) -> None:
        """Record that a resource was deleted. See `record`."""
        self.record(connection, [change_record(uri, ChangeType.DELETED, metadata)])

    async def arecord(self, connection: A, changes: Iterable[Resource | Record]) -> None:
        """Record changes in asyncio; see `record`."""
        await self._awrite(connection, _encoded(changes))

    async def acreated(
        self, connection: A, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> None:
        """Record in asyncio that a resource was created; see `created`."""
        await self.arecord(connection, [change_record(uri, ChangeType.CREATED, metadata, content)])

    async def aupdated(
        self, connection: A, uri: str, *, content: bytes | None = None, **metadata: Unpack[Metadata]
    ) -> None:
        """Record in asyncio that a resource changed; see `updated`."""
        await self.arecord(connection, [change_record(uri, ChangeType.UPDATED, metadata, content)])

    async def adeleted(self, connection: A, uri: str, **metadata: Unpack[Metadata]) -> None:
        """Record in asyncio that a resource was deleted; see `deleted`."""
        await self.arecord(connection, [change_record(uri, ChangeType.DELETED, metadata)])


def _encoded(changes: Iterable[Resource | Record]) -> list[str]:
    """Return changes as stored in the table: JSON objects with the field names of `Resource`."""
    return [json.encode(check_record(change).resource).decode() for change in changes]


def check_table(name: str) -> str:
    """Return a table name after checking it.

    It must not need quotes, and must be short, because other names are derived from it.
    """
    if not (name.isascii() and name.isidentifier() and name.islower()):
        raise ConfigurationError(
            f"{name!r} cannot be used as a table name; use only lower-case letters, digits and _"
        )
    if len(name) > _MAX_NAME_LENGTH:
        raise ConfigurationError(f"{name} has more than {_MAX_NAME_LENGTH} characters; shorten it")
    return name


def autocommit_error() -> ConfigurationError:
    return ConfigurationError(
        "this connection is in autocommit mode; begin a transaction, then write the data and "
        "record the change in it"
    )


_TABLE = """CREATE TABLE IF NOT EXISTS {table} (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    entry text NOT NULL,
    refused text
)"""
#: With this function and trigger, every INSERT wakes the forwarder, whatever the client library.
WAKE_FUNCTION = """CREATE OR REPLACE FUNCTION {table}_wake() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN NOTIFY {table}; RETURN NULL; END $$"""
WAKE_TRIGGER = """CREATE OR REPLACE TRIGGER {table}_wake AFTER INSERT ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {table}_wake()"""
#: Tries to acquire the lock that a forwarder holds until its transaction ends.
LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('rsnotify ' || '{table}', 0))"


class Outbox(OutboxRecorder[Any, Any]):
    """Writes changes through a Django connection or a psycopg `Connection` or `AsyncConnection`.

    Args:
        table: The name of the table.

    Raises:
        ConfigurationError: The name would need quotes.
    """

    def __init__(self, table: str = DEFAULT_TABLE) -> None:
        self.table = check_table(table)
        self._insert = f"INSERT INTO {self.table} (entry) VALUES (%s)"

    @property
    def ddl(self) -> str:
        """The statements that create the table, for a migration. Harmless if the table exists.

        The trigger wakes the forwarder. You can omit it if very many transactions commit at the
        same time, since PostgreSQL commits transactions that send notifications one by one. The
        forwarder then finds changes by polling.
        """
        statements = (_TABLE, WAKE_FUNCTION, WAKE_TRIGGER)
        return ";\n".join(each.format(table=self.table) for each in statements) + ";\n"

    def _write(self, connection: Any, entries: list[str]) -> None:
        if _is_autocommitting(connection):
            raise autocommit_error()
        with connection.cursor() as cursor:
            cursor.executemany(self._insert, [(entry,) for entry in entries])

    async def _awrite(self, connection: Any, entries: list[str]) -> None:
        if _is_autocommitting(connection):
            raise autocommit_error()
        async with connection.cursor() as cursor:
            await cursor.executemany(self._insert, [(entry,) for entry in entries])


def _is_autocommitting(connection: Any) -> bool:
    """Return whether each statement would be a separate transaction."""
    if hasattr(connection, "in_atomic_block"):  # a Django connection
        return bool(connection.get_autocommit())
    idle = connection.info.transaction_status.name == "IDLE"
    return bool(connection.autocommit) and idle
