"""The outbox for SQLAlchemy: a table in the Source's own metadata, in any database.

Requires SQLAlchemy 2: `pip install "rsnotify[sqlalchemy]"`. Tested with PostgreSQL and SQLite.
"""

from __future__ import annotations

import threading

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    delete,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from rsnotify.errors import StorageError
from rsnotify.runtime.reasons import reason_of
from rsnotify_publisher.outbox.forwarder import OutboxLine, RecordLines
from rsnotify_publisher.outbox.outbox import (
    DEFAULT_TABLE,
    LOCK,
    WAKE_FUNCTION,
    WAKE_TRIGGER,
    OutboxRecorder,
    autocommit_error,
    check_table,
)


class SQLAlchemyOutbox(OutboxRecorder[Session | Connection, AsyncSession | AsyncConnection]):
    """Writes changes through a `Session` or `Connection`, or their asyncio counterparts.

    Args:
        metadata: The metadata to which the table is added, so that `create_all` and migrations
            include it.
        table: The name of the table.

    Raises:
        ConfigurationError: The name would need quotes.
    """

    def __init__(self, metadata: MetaData, table: str = DEFAULT_TABLE) -> None:
        # SQLite assigns row numbers only if the type is INTEGER.
        number = BigInteger().with_variant(Integer(), "sqlite")
        self.table = Table(
            check_table(table),
            metadata,
            Column("id", number, primary_key=True),
            Column("entry", Text, nullable=False),
            Column("refused", Text),
        )
        for statement in (WAKE_FUNCTION, WAKE_TRIGGER):
            ddl = DDL(statement.format(table=table))  # type: ignore[no-untyped-call]
            ddl = ddl.execute_if(dialect="postgresql")
            event.listen(self.table, "after_create", ddl)

    def _write(self, connection: Session | Connection, entries: list[str]) -> None:
        if isinstance(connection, Session):
            connection.flush()  # the data must be written first; see `OutboxRecorder`
            connection = connection.connection()
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            raise autocommit_error()
        if entries:
            connection.execute(insert(self.table), [{"entry": entry} for entry in entries])

    async def _awrite(self, connection: AsyncSession | AsyncConnection, entries: list[str]) -> None:
        await connection.run_sync(self._write, entries)


class SQLAlchemyQueue:
    """Reads the changes that a `SQLAlchemyOutbox` has recorded, by polling.

    With PostgreSQL and psycopg, use `PostgreSQLQueue` instead: it is notified of changes.

    Args:
        engine: Connects to the database.
        outbox: The outbox. Its table is created if it is missing.
        poll: Seconds between two polls.
    """

    def __init__(self, engine: Engine, outbox: SQLAlchemyOutbox, *, poll: float = 0.1) -> None:
        self._engine = engine
        self._table = outbox.table
        self._poll = poll
        self._interrupted = threading.Event()
        self._created = False

    def forward(self, limit: int, record: RecordLines) -> int:
        """Record the committed rows, then delete them; see `OutboxQueue.forward`."""
        try:
            if not self._created:
                self._table.create(self._engine, checkfirst=True)
                self._created = True
            with self._engine.begin() as connection:
                return self._forward(connection, limit, record) if self._lock(connection) else 0
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error  # without the statement and its data
            reason = reason_of(cause, " ".join(str(cause).split()))
            raise StorageError(f"the outbox {self._table.name}: {reason}") from error

    def _lock(self, connection: Connection) -> bool:
        if connection.dialect.name != "postgresql":
            return True  # other databases lock the rows, or the whole file
        lock = text(LOCK.format(table=self._table.name))
        return bool(connection.execute(lock).scalar_one())

    def _forward(self, connection: Connection, limit: int, record: RecordLines) -> int:
        table = self._table
        query = (
            select(table.c.id, table.c.entry)
            .where(table.c.refused.is_(None))
            .order_by(table.c.id)
            .limit(limit)
            .with_for_update()
        )
        found = [OutboxLine(row[0], row[1]) for row in connection.execute(query)]
        refused = record(found) if found else {}
        for number, reason in refused.items():
            connection.execute(update(table).where(table.c.id == number).values(refused=reason))
        done = [{"number": line.number} for line in found if line.number not in refused]
        if done:
            connection.execute(delete(table).where(table.c.id == bindparam("number")), done)
        return len(found)

    def wait(self, seconds: float) -> None:
        """Wait until the next poll."""
        self._interrupted.wait(min(seconds, self._poll))

    def interrupt(self) -> None:
        """Make `wait` return immediately until `close` is called."""
        self._interrupted.set()

    def close(self) -> None:
        """Undo `interrupt`.

        The engine stays open, since it belongs to the caller and replaces broken connections.
        """
        self._interrupted.clear()
