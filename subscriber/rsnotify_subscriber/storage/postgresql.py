"""A state in the aggregator's own PostgreSQL, so that T is committed with the changes it covers.

A single follower opens two connections, one of which holds a lock. The followers of a fleet borrow
connections, and each of their transactions checks a lease.

This module needs psycopg 3: `pip install "rsnotify[postgresql]"`.
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

# COLLATE "C": URIs are compared byte by byte, which also makes the index faster.
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
#: The columns that a state from an earlier version lacks, and the indexes on them.
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
# Queried first, since altering a table waits for all transactions that read it. This avoids the
# information_schema, where the query takes 3 ms of server time with a thousand schemas.
_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0"
_INTEND = """
INSERT INTO {facts} SELECT 'intent', ? FROM ({fence}) AS fence
    WHERE fence.holds AND set_config('synchronous_commit', 'on', true) IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
_LOCK = "SELECT pg_advisory_lock(hashtextextended('rsnotify ' || %s, 0))"
# While this row is locked, the lease cannot change owner. The advisory lock keeps out single
# followers, including followers of earlier versions.
_FENCE = """
SELECT pg_try_advisory_xact_lock_shared(hashtextextended('rsnotify {source}', 0)) AS holds
    FROM {leases} WHERE source = '{source}' AND fence = {number} FOR SHARE
"""
_NO_FENCE = "SELECT true AS holds"
#: The members of fleets, and which member follows each Source, by the schema of its state.
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
# A process that was just killed holds its lock until the server notices.
_PATIENCE = "SET lock_timeout = '1s'"
# The longest identifier in PostgreSQL, in bytes.
_NAME_LENGTH = 63
#: Timeout for connecting, in seconds. A thread is blocked for that long.
_CONNECT_TIMEOUT = 10


class PostgreSQLState:
    """A state in the tables of a separate schema. Implements `StateLocation`.

    Each followed set of resources needs its own schema.

    One follower at a time uses the state, under an advisory lock held by the session that commits
    T. If that session ends while the process is suspended, another follower may continue, and the
    first can no longer commit. For this reason the handler should have `apply_within`: effects of
    `apply`, outside this database, are not rolled back with the commit. A connection pooler must
    not share sessions between clients (PgBouncer: `pool_mode = session`), or the lock protects
    nothing.

    Args:
        conninfo: A libpq connection string: a URL, or `host=… dbname=…`. Missing parameters come
            from the environment (PGHOST, PGPASSWORD, …).
        schema: The schema, which is created if it does not exist, and locked while the state is
            open.
        incoming: The folder for temporary content. By default, the system's temporary folder.

    Raises:
        ConfigurationError: The name of the schema or `conninfo` is not valid.
    """

    def __init__(
        self, conninfo: str = "", *, schema: str = "rsnotify", incoming: Path | None = None
    ) -> None:
        check_schema(schema)
        self._conninfo = _in_time(conninfo)
        self._schema = schema
        self._incoming = incoming

    def __str__(self) -> str:
        return f"the schema {self._schema}"

    def open(self) -> PostgreSQLDatabase:
        """Open a connection for writing and another for reading."""
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
            writer.execute(_PATIENCE)
            writer.execute(_LOCK, (self._schema,))
            writer.execute("RESET lock_timeout")
        except psycopg.errors.LockNotAvailable:
            raise followed_elsewhere(self._schema) from None


def check_schema(schema: str) -> None:
    """Raise `ConfigurationError` if a name cannot be the name of a schema."""
    if not schema.isidentifier() or len(schema.encode()) > _NAME_LENGTH:
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
    """Raise errors of the database as `StorageError`."""
    try:
        yield
    except psycopg.Error as error:
        raise StorageError(f"the state in PostgreSQL: {reason_of(error)}") from error


class LeaseLost(StorageError):
    """Another process follows the Source, so this one can commit nothing more."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        super().__init__(
            f"the schema {schema}: another process follows this Source now, or may soon, "
            "so nothing more is committed here"
        )


def _in_time(conninfo: str) -> str:
    """Add a connection timeout, unless the user has set one."""
    try:
        parameters = conninfo_to_dict(conninfo)
    except psycopg.Error:
        # The message of psycopg repeats part of the string, which may be the password.
        raise ConfigurationError(
            "the connection string for PostgreSQL is not valid; write host=… dbname=…, or a URL"
        ) from None
    parameters.setdefault("connect_timeout", os.environ.get("PGCONNECT_TIMEOUT", _CONNECT_TIMEOUT))
    return make_conninfo("", **parameters)


class StatePool:
    """A pool of connections to one database, shared by the followers of a process.

    `name` is the `application_name` of all connections.
    """

    def __init__(self, conninfo: str, name: str) -> None:
        self._conninfo = make_conninfo(_in_time(conninfo), application_name=name)
        self._lock = Lock()
        #: The connections that nobody uses, and when each was opened.
        self._idle: list[tuple[psycopg.Connection, float]] = []
        self._opened: dict[psycopg.Connection, float] = {}
        self._closed = False

    def take(self) -> psycopg.Connection:
        with self._lock:
            if self._idle:
                connection, self._opened[connection] = self._idle.pop()
                return connection
        # No prepared statements: with so many schemas, the server would keep too many of them.
        connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        with self._lock:
            self._opened[connection] = monotonic()
        return connection

    def give(self, connection: psycopg.Connection) -> None:
        """Return a connection to the pool, or close it if it is broken, old or not needed."""
        broken: list[psycopg.Connection] = []
        with self._lock:
            since = self._opened.pop(connection)
            if connection.closed:
                # The idle connections broke with it.
                broken, self._idle = [one for one, _ in self._idle], []
            elif self._closed or len(self._idle) >= _IDLE or monotonic() - since > _LIFETIME:
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


#: Maximum number of idle connections kept for later.
_IDLE = 16
#: Seconds after which a connection is closed, because its server process keeps a description of
#: each table.
_LIFETIME = 600.0


class Leases(Protocol):
    """The leases of this process."""

    @property
    def is_valid(self) -> bool:
        """Whether the leases were renewed in time."""

    def fence_of(self, source: str) -> int | None:
        """Return the fence number of a lease that is held and valid, or None if there is none."""

    def owner_of(self, source: str) -> str | None:
        """Return the name of the process that holds a lease, or None if it is unknown."""


class LeasedState:
    """A state that one process of a fleet follows under a lease. Implements `StateLocation`.

    The schema of the state is also the Source's name in the leases.
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
            raise StorageError("the state in PostgreSQL: the leases of this process are not valid")
        fence = self._leases.fence_of(self._schema)
        if fence is None:
            raise followed_elsewhere(self._schema, self._leases.owner_of(self._schema))
        with storage_errors():
            leased = _LeasedConnections(self._pool, self._schema, fence, self._leases)
            return PostgreSQLDatabase(leased, self._schema)


class _OwnConnections:
    """The connections of a state that has its own.

    Attributes:
        connection: The connection of the open transaction.
        names: The names and SQL fragments that are inserted into statements.
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
        """Do nothing: a session that has ended has lost its lock and can commit nothing."""

    def begin(self) -> None:
        self.connection.execute("BEGIN")

    def writing(self) -> AbstractContextManager[psycopg.Connection]:
        return nullcontext(self.connection)

    def reading(self) -> AbstractContextManager[psycopg.Connection]:
        return nullcontext(self._reader)

    def close(self) -> None:
        self._reader.close()
        with suppress(psycopg.Error):
            self.connection.rollback()
            self.connection.execute("SELECT pg_advisory_unlock_all()")
        self.connection.close()


class _LeasedConnections:
    """Connections borrowed from a pool. The attributes are those of `_OwnConnections`."""

    def __init__(self, pool: StatePool, schema: str, fence: int, leases: Leases) -> None:
        self._pool = pool
        self._schema = schema
        self._fence = fence
        self._leases = leases
        text = _FENCE.format(leases=LEASES, source=schema, number=fence)
        self._begin = f"BEGIN; {text}".encode()
        # Not temporary, since the next transaction uses another session.
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
        assert self._current is not None, "it is used within a transaction"
        return self._current

    def begin(self) -> None:
        """Begin a transaction, or raise `LeaseLost`."""
        self.check()
        with self.writing() as connection:
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
    def writing(self) -> Iterator[psycopg.Connection]:
        """Return the connection of the open transaction, or one for a single statement."""
        connection = self._current or self._pool.take()
        try:
            yield connection
        finally:
            is_open = connection.info.transaction_status is not TransactionStatus.IDLE
            self._current = connection if is_open and not connection.closed else None
            if self._current is None:
                self._pool.give(connection)

    @contextmanager
    def reading(self) -> Iterator[psycopg.Connection]:
        """Return a connection for a query, even while another thread is writing."""
        connection = self._pool.take()
        try:
            yield connection
        finally:
            self._pool.give(connection)

    def close(self) -> None:
        if self._current is not None:
            with suppress(psycopg.Error), self.writing() as connection:
                connection.rollback()


class PostgreSQLDatabase:
    """The tables of a state. Implements `StateDatabase`. All connections use autocommit mode."""

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
        #: The last intent, until the next commit.
        self._intent: bytes | None = None
        self._parent = incoming
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            self.execute("BEGIN")
            self._prepare()
            self.execute("COMMIT")
        except BaseException:
            connections.close()
            raise

    def _prepare(self) -> None:
        for statement in filter(str.strip, _SCHEMA.split(";")):
            self.execute(statement)
        rows = self.execute(_COLUMNS, (f'"{self._schema}".resources',))
        columns = {column for (column,) in rows}
        for column, kind in _ADDED.items():
            if column not in columns:
                self.execute(f"ALTER TABLE {{resources}} ADD COLUMN {column} {kind}")
        for statement in _INDEXES:
            self.execute(statement)
        self.execute("DELETE FROM {seen}")
        self.execute("DROP TABLE IF EXISTS {backlog}")

    @property
    def connection(self) -> psycopg.Connection:
        return self._connections.connection

    def _sql(self, text: str) -> bytes:
        return text.format_map(self._names).replace("?", "%s").encode()

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        if sql == "BEGIN":
            self._connections.begin()
            return cast(Rows, ())
        with self._connections.writing() as connection:
            rows = cast(Rows, connection.execute(self._sql(sql), parameters or None))
        if sql == "COMMIT":
            self._intent = None
        return rows

    def executemany(self, sql: str, parameters: Iterable[Sequence[object]]) -> None:
        with self._connections.writing() as connection, connection.cursor() as cursor:
            cursor.executemany(self._sql(sql), list(parameters))

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        with self._connections.reading() as connection:
            return connection.execute(self._sql(sql), parameters or None).fetchall()

    def savepoint(self) -> AbstractContextManager[Any]:
        return self.connection.transaction()

    def store_intent(self, record: bytes) -> None:
        with self._connections.writing() as connection:
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
    named = ", ".join(map(without_credentials, uris[:_NAMED]))
    rest = f" and {len(uris) - _NAMED} more" if uris[_NAMED:] else ""
    logger.warning(
        "%s: the lease ended while the handler was applying changes, perhaps after another process "
        "had applied later ones; compare what the handler has of %s%s",
        name,
        named,
        rest,
    )


#: Maximum number of resources named in a warning.
_NAMED = 10
