"""The base class of all outboxes; subclasses write the lines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar, Unpack

from msgspec import json

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify_publisher.changes import Metadata, check_change, describe

#: The table, unless another is named.
TABLE = "rsnotify_outbox"
# Every database accepts names of this length.
_LONGEST_NAME = 50

C = TypeVar("C")
A = TypeVar("A")


class OutboxRecorder(ABC, Generic[C, A]):
    """Writes changes into the table, in a transaction of the caller's.

    Call it after the data was written, within the same transaction. Then two transactions that
    change the same row are forwarded in the order of their commits, since the second waits for
    the first before it calls this.
    """

    @abstractmethod
    def _write(self, connection: C, entries: list[str]) -> None:
        """Write lines in this order."""

    @abstractmethod
    async def _awrite(self, connection: A, entries: list[str]) -> None: ...

    def record(self, connection: C, changes: Iterable[Resource]) -> None:
        """Record changes; they are published once the transaction is committed.

        Args:
            connection: Of the transaction.
            changes: In order, each with `change` set.

        Raises:
            ConfigurationError: A change is unusable, and none is recorded; or each statement
                would be a transaction of its own.
        """
        self._write(connection, encoded(changes))

    def created(self, connection: C, uri: str, **metadata: Unpack[Metadata]) -> None:
        """Record that a resource was created; otherwise as `record`."""
        self.record(connection, [describe(uri, ChangeType.CREATED, metadata)])

    def updated(self, connection: C, uri: str, **metadata: Unpack[Metadata]) -> None:
        """Record that a resource changed; otherwise as `record`."""
        self.record(connection, [describe(uri, ChangeType.UPDATED, metadata)])

    def deleted(self, connection: C, uri: str, **metadata: Unpack[Metadata]) -> None:
        """Record that a resource was deleted; otherwise as `record`."""
        self.record(connection, [describe(uri, ChangeType.DELETED, metadata)])

    async def arecord(self, connection: A, changes: Iterable[Resource]) -> None:
        """Record changes in asyncio; see `record`."""
        await self._awrite(connection, encoded(changes))

    async def acreated(self, connection: A, uri: str, **metadata: Unpack[Metadata]) -> None:
        """Record in asyncio that a resource was created; see `created`."""
        await self.arecord(connection, [describe(uri, ChangeType.CREATED, metadata)])

    async def aupdated(self, connection: A, uri: str, **metadata: Unpack[Metadata]) -> None:
        """Record in asyncio that a resource changed; see `updated`."""
        await self.arecord(connection, [describe(uri, ChangeType.UPDATED, metadata)])

    async def adeleted(self, connection: A, uri: str, **metadata: Unpack[Metadata]) -> None:
        """Record in asyncio that a resource was deleted; see `deleted`."""
        await self.arecord(connection, [describe(uri, ChangeType.DELETED, metadata)])


def encoded(changes: Iterable[Resource]) -> list[str]:
    """Return changes as they are stored in the table: JSON objects with the names of `Resource`."""
    return [json.encode(check_change(change)).decode() for change in changes]


def check_table(name: str) -> str:
    """Return the name of a table, which must need no quotes and leave room for derived names."""
    if not (name.isascii() and name.isidentifier() and name.islower()):
        raise ConfigurationError(f"{name!r} cannot be a table; use lower-case letters, digits, _")
    if len(name) > _LONGEST_NAME:
        raise ConfigurationError(f"{name} is longer than {_LONGEST_NAME} letters")
    return name


def in_no_transaction() -> ConfigurationError:
    return ConfigurationError(
        "a change is recorded in the transaction that makes it, but this connection is in "
        "autocommit mode; begin a transaction around both"
    )
