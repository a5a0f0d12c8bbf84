"""A state in the aggregator's own PostgreSQL, so that T is committed with what it covers.

It needs psycopg 3: `pip install "rsnotify[postgresql]"`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify_subscriber.storage.database import Row, Rows

# COLLATE "C": URIs are compared byte by byte, which also makes the index quicker.
_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {facts} (name text PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE IF NOT EXISTS {resources} (
    uri text COLLATE "C" PRIMARY KEY, changed_at bigint NOT NULL, change text NOT NULL,
    hash text, length bigint, lastmod bigint, validator text, fetched_at bigint);
CREATE INDEX IF NOT EXISTS tombstones ON {resources} (changed_at) WHERE change = 'deleted';
CREATE TEMPORARY TABLE rsnotify_seen (uri text COLLATE "C" PRIMARY KEY);
"""
# Asked before, since to alter a table waits for everybody who is reading it.
_HAS_FETCHED_AT = """
SELECT FROM information_schema.columns
    WHERE table_schema = ? AND table_name = 'resources' AND column_name = 'fetched_at'
"""
_INTEND = """
INSERT INTO {facts} SELECT 'intent', ?
    WHERE set_config('synchronous_commit', ?, true) IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
_LOCK = "SELECT pg_advisory_lock(hashtextextended('rsnotify ' || %s, 0))"
# What was killed this moment holds its lock until the server has noticed.
_PATIENCE = "SET lock_timeout = '1s'"
# A schema is quoted in statements; these are the names that need no more than that.
_NAME_LENGTH = 63
#: Seconds that the server may take to let one in; meanwhile a thread waits.
_ENTRY = 10


class PostgreSQLState:
    """Where a state is kept: tables in a schema of their own.

    Each followed set of resources needs a schema to itself.

    One follower at a time uses it, under an advisory lock of the session that commits T. If that
    session ends while the process is suspended, another follower may go on; the first can then
    commit nothing more. So give `apply_within` to the handler: effects of `apply`, outside of this
    database, are not undone with the commit. A connection pooler must not share sessions between
    clients (PgBouncer: `pool_mode = session`), or the lock protects nothing.

    Args:
        conninfo: How to connect, as libpq has it: a URL, or `host=… dbname=…`. What it leaves
            out comes from the environment (PGHOST, PGPASSWORD, …).
        schema: The schema; made if it is not there, and locked while the state is open.
        incoming: The folder in which temporary content is kept; the system's if left out.

    Raises:
        ConfigurationError: The schema can be none, or it cannot be understood how to connect.
    """

    def __init__(
        self, conninfo: str = "", *, schema: str = "rsnotify", incoming: Path | None = None
    ) -> None:
        if not schema.isidentifier() or len(schema.encode()) > _NAME_LENGTH:
            raise ConfigurationError(
                f"{schema!r} cannot be the schema of a state; use letters, digits and _"
            )
        self._conninfo = _in_time(conninfo)
        self._schema = schema
        self._incoming = incoming

    def __str__(self) -> str:
        """Return what messages call it."""
        return f"the schema {self._schema}"

    def open(self) -> PostgreSQLDatabase:
        """Connect, lock the schema and make the tables, as `Place.open`."""
        try:
            writer = psycopg.connect(self._conninfo, autocommit=True)
            try:
                self._lock(writer)
                reader = psycopg.connect(self._conninfo, autocommit=True)
                return PostgreSQLDatabase(writer, reader, self._schema, self._incoming)
            except BaseException:
                writer.close()
                raise
        except psycopg.Error as error:
            reason = " ".join(str(error).split())  # it may be of several lines
            raise StorageError(f"the state in PostgreSQL: {reason}") from error

    def _lock(self, writer: psycopg.Connection) -> None:
        # It is held by the connection that commits: who has lost the lock cannot commit either.
        try:
            writer.execute(_PATIENCE)
            writer.execute(_LOCK, (self._schema,))
            writer.execute("RESET lock_timeout")
        except psycopg.errors.LockNotAvailable:
            raise ConfigurationError(
                f"the schema {self._schema} is in use by another follower; "
                "stop it first, or choose another schema"
            ) from None


def _in_time(conninfo: str) -> str:
    """Give up after a while where nobody answers, unless the user says when."""
    try:
        parameters = conninfo_to_dict(conninfo)
    except psycopg.Error:
        # What is said of it repeats a part, which may be the password.
        raise ConfigurationError(
            "it cannot be understood how to connect to PostgreSQL; write host=… dbname=…, or a URL"
        ) from None
    parameters.setdefault("connect_timeout", os.environ.get("PGCONNECT_TIMEOUT", _ENTRY))
    return make_conninfo("", **parameters)


class PostgreSQLDatabase:
    """The tables of a state; a `Database`.

    Args:
        writer: The connection that holds the lock; in autocommit mode, as is the other.
        reader: The connection for `read`.
        schema: Where the tables are.
        incoming: Where the folder for temporary content is made.
    """

    errors: tuple[type[Exception], ...] = (psycopg.Error,)
    is_local = False

    def __init__(
        self,
        writer: psycopg.Connection,
        reader: psycopg.Connection,
        schema: str,
        incoming: Path | None,
    ) -> None:
        self.name = f"the state in PostgreSQL, schema {schema}"
        self.connection = writer
        self._reader = reader
        self._tables = {
            "schema": f'"{schema}"',
            "facts": f'"{schema}".facts',
            "resources": f'"{schema}".resources',
            "seen": "pg_temp.rsnotify_seen",
        }
        self._parent = incoming
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            with writer.transaction():
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self.execute(statement)
                if self.execute(_HAS_FETCHED_AT, (schema,)).fetchone() is None:
                    self.execute("ALTER TABLE {resources} ADD COLUMN fetched_at bigint")
        except BaseException:
            reader.close()
            raise

    def _sql(self, text: str) -> bytes:
        return text.format_map(self._tables).replace("?", "%s").encode()

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        """Run a statement on the connection that writes."""
        return cast(Rows, self.connection.execute(self._sql(sql), parameters or None))

    def executemany(self, sql: str, parameters: Iterable[Sequence[object]]) -> None:
        """Run a statement for each row of parameters, all on their way at once."""
        with self.connection.cursor() as cursor:
            cursor.executemany(self._sql(sql), list(parameters))

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Run a query on the other connection."""
        return self._reader.execute(self._sql(sql), parameters or None).fetchall()

    def savepoint(self) -> AbstractContextManager[Any]:
        """Undo what is done inside if an exception passes through."""
        return self.connection.transaction()

    def intend(self, record: bytes, *, durably: bool) -> None:
        """Keep a record; unless it is to be durable, without waiting for the server's disk."""
        self.execute(_INTEND, (record, "on" if durably else "off"))

    def settle(self) -> None:
        """Do nothing: a record that is to be durable was committed so."""

    def intent(self) -> bytes | None:
        """Return the record that was last kept, if there is one."""
        row = self.execute("SELECT value FROM {facts} WHERE name = 'intent'").fetchone()
        return None if row is None else row[0]

    def incoming(self) -> Path:
        """Make a folder for temporary content, which `close` removes."""
        if self._parent is not None:
            self._parent.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="rsnotify-", dir=self._parent)
        return Path(self._folder.name)

    def close(self) -> None:
        """Close the connections, which frees the lock."""
        self._reader.close()
        with suppress(psycopg.Error):
            self.connection.rollback()
            self.connection.execute("SELECT pg_advisory_unlock_all()")
        self.connection.close()
        if self._folder is not None:
            self._folder.cleanup()
