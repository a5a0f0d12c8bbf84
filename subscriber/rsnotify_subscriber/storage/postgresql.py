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
from rsnotify_subscriber.storage.state_database import Row, Rows

# COLLATE "C": URIs are compared byte by byte, which also makes the index quicker.
_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {facts} (name text PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE IF NOT EXISTS {resources} (
    uri text COLLATE "C" PRIMARY KEY, changed_at bigint NOT NULL, change text NOT NULL,
    hash text, length bigint, lastmod bigint, validator text, fetched_at bigint,
    mtime bigint, spelling text COLLATE "C", identity text COLLATE "C");
CREATE INDEX IF NOT EXISTS tombstones ON {resources} (changed_at) WHERE change = 'deleted';
CREATE TEMPORARY TABLE rsnotify_seen (
    identity text COLLATE "C" PRIMARY KEY, spelling text COLLATE "C");
"""
#: The columns that a state of an earlier version lacks, and indexes of them.
_ADDED = {
    "fetched_at": "bigint",
    "mtime": "bigint",
    "spelling": 'text COLLATE "C"',
    "identity": 'text COLLATE "C"',
}
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS lost ON {resources} (uri) WHERE mtime = -1",
    "CREATE INDEX IF NOT EXISTS identities ON {resources} (identity) WHERE identity != ''",
)
# Queried first, since altering a table waits for all transactions that read it.
_HAS_COLUMN = """
SELECT FROM information_schema.columns
    WHERE table_schema = ? AND table_name = 'resources' AND column_name = ?
"""
_INTEND = """
INSERT INTO {facts} SELECT 'intent', ?
    WHERE set_config('synchronous_commit', 'on', true) IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
_LOCK = "SELECT pg_advisory_lock(hashtextextended('rsnotify ' || %s, 0))"
# A process that was just killed holds its lock until the server has noticed.
_PATIENCE = "SET lock_timeout = '1s'"
# The longest identifier of PostgreSQL, in bytes.
_NAME_LENGTH = 63
#: Seconds that connecting may take; meanwhile a thread waits.
_CONNECT_TIMEOUT = 10


class PostgreSQLState:
    """A state in tables of a schema of their own; a `StateLocation`.

    Each followed set of resources needs its own schema.

    One follower at a time uses it, under an advisory lock of the session that commits T. If that
    session ends while the process is suspended, another follower may continue; the first can then
    commit nothing more. So the handler should have `apply_within`: effects of `apply`, outside of
    this database, are not rolled back with the commit. A connection pooler must not share sessions
    between clients (PgBouncer: `pool_mode = session`), or the lock protects nothing.

    Args:
        conninfo: How to connect, in the form of libpq: a URL, or `host=… dbname=…`. Missing
            parameters come from the environment (PGHOST, PGPASSWORD, …).
        schema: The schema; made if it does not exist, and locked while the state is open.
        incoming: The folder for temporary content; by default that of the system.

    Raises:
        ConfigurationError: The name of the schema or `conninfo` is not valid.
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
        return f"the schema {self._schema}"

    def open(self) -> PostgreSQLDatabase:
        """Open a connection that writes, and one that reads."""
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
        # The connection that commits holds it, so that without the lock nothing can be committed.
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
    """Add a timeout for connecting, unless the user gives one."""
    try:
        parameters = conninfo_to_dict(conninfo)
    except psycopg.Error:
        # The message of psycopg repeats a part, which may be the password.
        raise ConfigurationError(
            "the connection string for PostgreSQL is not valid; write host=… dbname=…, or a URL"
        ) from None
    parameters.setdefault("connect_timeout", os.environ.get("PGCONNECT_TIMEOUT", _CONNECT_TIMEOUT))
    return make_conninfo("", **parameters)


class PostgreSQLDatabase:
    """The tables of a state; a `StateDatabase`. Both connections are in autocommit mode."""

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
            "backlog": "pg_temp.rsnotify_backlog",
            "integer": "bigint",
            "bytes": "bytea",
        }
        self._parent = incoming
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            with writer.transaction():
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self.execute(statement)
                for column, kind in _ADDED.items():
                    if self.execute(_HAS_COLUMN, (schema, column)).fetchone() is None:
                        self.execute(f"ALTER TABLE {{resources}} ADD COLUMN {column} {kind}")
                for statement in _INDEXES:
                    self.execute(statement)
        except BaseException:
            reader.close()
            raise

    def _sql(self, text: str) -> bytes:
        return text.format_map(self._tables).replace("?", "%s").encode()

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        return cast(Rows, self.connection.execute(self._sql(sql), parameters or None))

    def executemany(self, sql: str, parameters: Iterable[Sequence[object]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(self._sql(sql), list(parameters))

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        return self._reader.execute(self._sql(sql), parameters or None).fetchall()

    def savepoint(self) -> AbstractContextManager[Any]:
        return self.connection.transaction()

    def store_intent(self, record: bytes) -> None:
        self.execute(_INTEND, (record,))

    def read_intents(self) -> list[bytes]:
        rows = self.execute("SELECT value FROM {facts} WHERE name = 'intent'")
        return [record for (record,) in rows]

    def make_incoming(self) -> Path:
        if self._parent is not None:
            self._parent.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="rsnotify-", dir=self._parent)
        return Path(self._folder.name)

    def close(self) -> None:
        self._reader.close()
        with suppress(psycopg.Error):
            self.connection.rollback()
            self.connection.execute("SELECT pg_advisory_unlock_all()")
        self.connection.close()
        if self._folder is not None:
            self._folder.cleanup()
