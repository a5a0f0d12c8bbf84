"""A state in the application's PostgreSQL, so that T is committed with the changes that it covers.

A single follower opens two connections, one of which holds a lock. The followers of a fleet borrow
connections from a pool, and each of their transactions checks a lease.

This module requires psycopg 3: `pip install "rsnotify[postgresql]"`.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Protocol, cast

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from rsnotify.errors import ConfigurationError, StorageError, without_credentials
from rsnotify.runtime.reasons import reason_of
from rsnotify_subscriber.storage.recovery import HandlerIntent
from rsnotify_subscriber.storage.state_database import Row, Rows

logger = logging.getLogger("rsnotify.subscriber")

# COLLATE "C" compares URIs byte by byte, and makes the index faster.
_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {facts} (name text PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE IF NOT EXISTS {resources} (
    uri text COLLATE "C" PRIMARY KEY, changed_at bigint NOT NULL, change text NOT NULL,
    hash text, length bigint, lastmod bigint, validator text, fetched_at bigint,
    mtime bigint, spelling text COLLATE "C", identity text COLLATE "C");
CREATE INDEX IF NOT EXISTS tombstones ON {resources} (changed_at) WHERE change = 'deleted';
CREATE {temporary} TABLE IF NOT EXISTS {seen} (
    identity text COLLATE "C" PRIMARY KEY, spelling text COLLATE "C");
"""
#: The columns that a state from an earlier version lacks.
_ADDED_COLUMNS = {
    "fetched_at": "bigint",
    "mtime": "bigint",
    "spelling": 'text COLLATE "C"',
    "identity": 'text COLLATE "C"',
}
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS lost ON {resources} (uri) WHERE mtime = -1",
    "CREATE INDEX IF NOT EXISTS identities ON {resources} (identity) WHERE identity != ''",
)
# Queried first, because altering a table waits for all transactions that read it. The same query of
# the information_schema takes 3 ms of server time with a thousand schemas.
_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0"
_INTEND = """
INSERT INTO {facts} SELECT 'intent', ? FROM ({fence}) AS fence
    WHERE fence.holds AND set_config('synchronous_commit', 'on', true) IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
_LOCK = "SELECT pg_advisory_lock(hashtextextended('rsnotify ' || %s, 0))"
# The row lock keeps the lease from changing its owner. The advisory lock excludes single followers,
# also those of earlier versions.
_FENCE = """
SELECT pg_try_advisory_xact_lock_shared(hashtextextended('rsnotify {source}', 0)) AS holds
    FROM {leases} WHERE source = '{source}' AND fence = {number} FOR SHARE
"""
_NO_FENCE = "SELECT true AS holds"
#: The tables of the members of fleets, and of the leases by which they follow Sources.
MEMBERS, LEASES = "rsnotify_fleet.members", "rsnotify_fleet.leases"
# Another role may have created the tables.
_HAS_LEASES = """
SELECT bool_and(has_schema_privilege(s.oid, 'USAGE') AND has_table_privilege(t.oid, 'SELECT'))
    FROM pg_class AS t JOIN pg_namespace AS s ON s.oid = t.relnamespace
    WHERE s.nspname = 'rsnotify_fleet' AND t.relname IN ('members', 'leases')
"""
_LEASED = f"""
SELECT name FROM {LEASES} JOIN {MEMBERS} ON owner = id
    WHERE source = %s AND expires > clock_timestamp()
"""
# A killed process holds its lock until the server notices.
_SET_LOCK_TIMEOUT = "SET lock_timeout = '1s'"
#: Maximum number of bytes of an identifier in PostgreSQL.
_MAX_IDENTIFIER_BYTES = 63
#: Default timeout in seconds for connecting, which blocks a thread.
_CONNECT_TIMEOUT = 10


class PostgreSQLState:
    """A state in the tables of its own schema. Implements `StateLocation`.

    Each followed set of resources needs its own schema.

    Only one follower at a time can use the state: the session that commits T holds an advisory
    lock. If this session ends while the process is suspended, another follower may continue, and
    the first can no longer commit. So the handler should have `apply_within`, because effects of
    `apply` outside this database are not rolled back. A connection pooler must not share sessions
    between clients (PgBouncer: `pool_mode = session`), or the lock protects nothing.

    Args:
        conninfo: A libpq connection string: a URL, or `host=… dbname=…`. Missing parameters are
            taken from the environment (PGHOST, PGPASSWORD, …).
        schema: The schema. It is created if it does not exist.
        incoming: The folder for temporary content. By default, the system's temporary folder.

    Raises:
        ConfigurationError: The name of the schema or `conninfo` is not valid.
    """

    def __init__(
        self, conninfo: str = "", *, schema: str = "rsnotify", incoming: Path | None = None
    ) -> None:
        check_schema(schema)
        self._conninfo = _with_timeout(conninfo)
        self._schema = schema
        self._incoming = incoming

    def __str__(self) -> str:
        return f"the schema {self._schema}"

    def open(self) -> PostgreSQLDatabase:
        """Open one connection for writing, and another for reading."""
        with storage_errors():
            writer = psycopg.connect(self._conninfo, autocommit=True)
            try:
                self._lock(writer)
                own = _OwnConnections(
                    writer, psycopg.connect(self._conninfo, autocommit=True), self._schema
                )
            except BaseException:
                writer.close()
                raise
            return PostgreSQLDatabase(own, self._schema, self._incoming)

    def _lock(self, writer: psycopg.Connection) -> None:
        if writer.execute(_HAS_LEASES).fetchone() == (True,):
            for (owner,) in writer.execute(_LEASED.encode(), (self._schema,)):
                raise followed_elsewhere(self._schema, owner)
        # The connection that commits holds the lock, so nothing can be committed without it.
        try:
            writer.execute(_SET_LOCK_TIMEOUT)
            writer.execute(_LOCK, (self._schema,))
            writer.execute("RESET lock_timeout")
        except psycopg.errors.LockNotAvailable:
            raise followed_elsewhere(self._schema) from None


def check_schema(schema: str) -> None:
    """Raise `ConfigurationError` if a name cannot be that of a state's schema."""
    if not schema.isidentifier() or len(schema.encode()) > _MAX_IDENTIFIER_BYTES:
        raise ConfigurationError(
            f"{schema!r} cannot be the schema of a state; use letters, digits and _"
        )


def followed_elsewhere(schema: str, owner: str | None = None) -> ConfigurationError:
    by = f" ({owner})" if owner else ""
    return ConfigurationError(
        f"the schema {schema} is in use by another follower{by}; "
        "stop it first, or choose another schema"
    )


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn errors of the database into `StorageError`."""
    try:
        yield
    except psycopg.Error as error:
        raise StorageError(f"the state in PostgreSQL: {reason_of(error)}") from error


class LeaseLost(StorageError):
    """Raised when this process cannot commit, because another may follow the Source."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        super().__init__(
            f"the schema {schema}: this process has lost its lease, and another may follow the "
            "Source, so nothing more is committed here"
        )


def _with_timeout(conninfo: str) -> str:
    """Add a connection timeout unless the user has set one."""
    try:
        parameters = conninfo_to_dict(conninfo)
    except psycopg.Error:
        # The message of psycopg quotes part of the string, possibly the password.
        raise ConfigurationError(
            "the connection string for PostgreSQL is not valid; write host=… dbname=…, or a URL"
        ) from None
    parameters.setdefault("connect_timeout", os.environ.get("PGCONNECT_TIMEOUT", _CONNECT_TIMEOUT))
    return make_conninfo("", **parameters)


class StatePool:
    """Connections to one database, which the followers of a process share.

    `name` is their `application_name`.
    """

    def __init__(self, conninfo: str, name: str) -> None:
        self._conninfo = make_conninfo(_with_timeout(conninfo), application_name=name)
        self._lock = Lock()
        #: The idle connections, and when each was opened.
        self._idle: list[tuple[psycopg.Connection, float]] = []
        self._opened: dict[psycopg.Connection, float] = {}
        self._closed = False

    def take(self) -> psycopg.Connection:
        with self._lock:
            if self._idle:
                connection, self._opened[connection] = self._idle.pop()
                return connection
        # No prepared statements, because a session would keep them for many schemas.
        connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        with self._lock:
            self._opened[connection] = monotonic()
        return connection

    def give(self, connection: psycopg.Connection) -> None:
        """Return a connection to the pool, or close it if it is broken, old or superfluous."""
        broken: list[psycopg.Connection] = []
        with self._lock:
            since = self._opened.pop(connection)
            if connection.closed:
                # The idle connections have probably broken, too.
                broken, self._idle = [one for one, _ in self._idle], []
            elif (
                self._closed
                or len(self._idle) >= _MAX_IDLE
                or monotonic() - since > _MAX_CONNECTION_AGE
            ):
                broken = [connection]
            else:
                self._idle.append((connection, since))
        for each in broken:
            each.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()


#: Maximum number of idle connections in a pool.
_MAX_IDLE = 16
#: Seconds after which a connection is closed, because its server process caches each table's
#: description.
_MAX_CONNECTION_AGE = 600.0


class Leases(Protocol):
    """The leases of this process."""

    @property
    def is_valid(self) -> bool:
        """Whether the leases were renewed in time."""

    def fence_of(self, source: str) -> int | None:
        """Return the fence number of a valid lease of this process, or None if it has none."""

    def owner_of(self, source: str) -> str | None:
        """Return the name of the process that holds a lease, or None if it is unknown."""


class LeasedState:
    """A state that a process of a fleet uses under a lease. Implements `StateLocation`.

    In the leases, the state's schema identifies the Source.
    """

    def __init__(self, pool: StatePool, schema: str, leases: Leases) -> None:
        check_schema(schema)
        self._pool = pool
        self._schema = schema
        self._leases = leases

    def __str__(self) -> str:
        return f"the schema {self._schema}"

    def open(self) -> PostgreSQLDatabase:
        if not self._leases.is_valid:
            raise StorageError("the state in PostgreSQL: the leases of this process have expired")
        fence = self._leases.fence_of(self._schema)
        if fence is None:
            raise followed_elsewhere(self._schema, self._leases.owner_of(self._schema))
        with storage_errors():
            leased = _LeasedConnections(self._pool, self._schema, fence, self._leases)
            return PostgreSQLDatabase(leased, self._schema)


class _OwnConnections:
    """The connections of a single follower.

    Attributes:
        connection: The connection of the open transaction.
        names: Names and SQL fragments to insert into statements.
    """

    def __init__(self, writer: psycopg.Connection, reader: psycopg.Connection, schema: str) -> None:
        self.connection = writer
        self._reader = reader
        self.names = {
            "seen": "pg_temp.rsnotify_seen",
            "backlog": "pg_temp.rsnotify_backlog",
            "temporary": "TEMPORARY",
            "unlogged": "",
            "fence": _NO_FENCE,
        }

    def check(self) -> None:
        """Do nothing: if the session has ended, it cannot commit anyway."""

    def begin(self) -> None:
        self.connection.execute("BEGIN")

    def write_connection(self) -> AbstractContextManager[psycopg.Connection]:
        return nullcontext(self.connection)

    def read_connection(self) -> AbstractContextManager[psycopg.Connection]:
        return nullcontext(self._reader)

    def close(self) -> None:
        self._reader.close()
        with suppress(psycopg.Error):
            self.connection.rollback()
            self.connection.execute("SELECT pg_advisory_unlock_all()")
        self.connection.close()


class _LeasedConnections:
    """Connections borrowed from a pool. They have the same interface as `_OwnConnections`."""

    def __init__(self, pool: StatePool, schema: str, fence: int, leases: Leases) -> None:
        self._pool = pool
        self._schema = schema
        self._fence = fence
        self._leases = leases
        text = _FENCE.format(leases=LEASES, source=schema, number=fence)
        self._begin = f"BEGIN; {text}".encode()
        # Not temporary, because the next transaction uses another session.
        self.names = {
            "seen": f'"{schema}".seen',
            "backlog": f'"{schema}".backlog',
            "temporary": "UNLOGGED",
            "unlogged": "UNLOGGED",
            "fence": text,
        }
        self._current: psycopg.Connection | None = None

    @property
    def connection(self) -> psycopg.Connection:
        assert self._current is not None, "used only in a transaction"
        return self._current

    def begin(self) -> None:
        """Begin a transaction, or raise `LeaseLost`."""
        self.check()
        with self.write_connection() as connection:
            cursor = connection.execute(self._begin)
            cursor.nextset()
            if cursor.fetchone() != (True,):
                connection.execute("ROLLBACK")
                raise LeaseLost(self._schema)

    def check(self) -> None:
        """Raise `LeaseLost` if this process knows that it may no longer write."""
        if self._leases.fence_of(self._schema) != self._fence:
            raise LeaseLost(self._schema)

    @contextmanager
    def write_connection(self) -> Iterator[psycopg.Connection]:
        """Yield the connection of the open transaction, or one for a single statement."""
        connection = self._current or self._pool.take()
        try:
            yield connection
        finally:
            is_open = connection.info.transaction_status is not TransactionStatus.IDLE
            self._current = connection if is_open and not connection.closed else None
            if self._current is None:
                self._pool.give(connection)

    @contextmanager
    def read_connection(self) -> Iterator[psycopg.Connection]:
        """Yield a connection for a query, even while another thread is writing."""
        connection = self._pool.take()
        try:
            yield connection
        finally:
            self._pool.give(connection)

    def close(self) -> None:
        if self._current is not None:
            with suppress(psycopg.Error), self.write_connection() as connection:
                connection.rollback()


class PostgreSQLDatabase:
    """The tables of a state. Implements `StateDatabase`. All connections are in autocommit mode."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)
    is_local = False

    def __init__(
        self,
        connections: _OwnConnections | _LeasedConnections,
        schema: str,
        incoming: Path | None = None,
    ) -> None:
        self.name = f"the state in PostgreSQL, schema {schema}"
        self._connections = connections
        self._schema = schema
        self._names = {
            "schema": f'"{schema}"',
            "facts": f'"{schema}".facts',
            "resources": f'"{schema}".resources',
            "integer": "bigint",
            "bytes": "bytea",
            **connections.names,
        }
        #: The last record of intents, until the next commit.
        self._intent: bytes | None = None
        self._parent = incoming
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            self.execute("BEGIN")
            self._create_tables()
            self.execute("COMMIT")
        except BaseException:
            connections.close()
            raise

    def _create_tables(self) -> None:
        for statement in filter(str.strip, _SCHEMA.split(";")):
            self.execute(statement)
        self._add_missing_columns()
        for statement in _INDEXES:
            self.execute(statement)
        self.execute("DELETE FROM {seen}")
        self.execute("DROP TABLE IF EXISTS {backlog}")

    def _add_missing_columns(self) -> None:
        rows = self.execute(_COLUMNS, (f'"{self._schema}".resources',))
        columns = {column for (column,) in rows}
        for column, kind in _ADDED_COLUMNS.items():
            if column not in columns:
                self.execute(f"ALTER TABLE {{resources}} ADD COLUMN {column} {kind}")

    @property
    def connection(self) -> psycopg.Connection:
        return self._connections.connection

    def _sql(self, text: str) -> bytes:
        return text.format_map(self._names).replace("?", "%s").encode()

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        if sql == "BEGIN":
            self._connections.begin()
            return cast(Rows, ())
        with self._connections.write_connection() as connection:
            rows = cast(Rows, connection.execute(self._sql(sql), parameters or None))
        if sql == "COMMIT":
            self._intent = None
        return rows

    def executemany(self, sql: str, parameters: Iterable[Sequence[object]]) -> None:
        with self._connections.write_connection() as connection, connection.cursor() as cursor:
            cursor.executemany(self._sql(sql), list(parameters))

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        with self._connections.read_connection() as connection:
            return connection.execute(self._sql(sql), parameters or None).fetchall()

    def savepoint(self) -> AbstractContextManager[Any]:
        return self.connection.transaction()

    def store_intent(self, record: bytes) -> None:
        with self._connections.write_connection() as connection:
            self._connections.check()
            if connection.execute(self._sql(_INTEND), (record,)).rowcount != 1:
                raise LeaseLost(self._schema)
        self._intent = record

    def read_intents(self) -> list[bytes]:
        rows = self.execute("SELECT value FROM {facts} WHERE name = 'intent'")
        return [record for (record,) in rows]

    def make_incoming(self) -> Path:
        if self._parent is not None:
            self._parent.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="rsnotify-", dir=self._parent)
        return Path(self._folder.name)

    def close(self) -> None:
        self._connections.close()
        if self._intent is not None:
            try:
                self._connections.check()
            except LeaseLost:
                intent = msgspec.json.decode(self._intent, type=HandlerIntent)
                _warn_of_late_effects(self.name, intent.uris)
        if self._folder is not None:
            self._folder.cleanup()


def _warn_of_late_effects(name: str, uris: Sequence[str]) -> None:
    named = ", ".join(map(without_credentials, uris[:_MAX_NAMED_URIS]))
    rest = f" and {len(uris) - _MAX_NAMED_URIS} more" if uris[_MAX_NAMED_URIS:] else ""
    logger.warning(
        "%s: the lease ended while the handler was applying changes, perhaps after another process "
        "had applied later ones; check the content that the handler has for %s%s",
        name,
        named,
        rest,
    )


#: Maximum number of resources to name in a warning.
_MAX_NAMED_URIS = 10
