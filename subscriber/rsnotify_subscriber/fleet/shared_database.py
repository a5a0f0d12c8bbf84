"""The leases and connections for the Sources whose states are in one database.

The leases of all these Sources are renewed together. A process that cannot renew them follows none
of the Sources, and reports them as failing. Every process reports the Sources that no process
follows.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from secrets import token_hex
from socket import gethostname
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from rsnotify.errors import RsnotifyError, counted
from rsnotify.runtime.extensions import missing_package
from rsnotify_subscriber.fleet.configuration import DEFAULT_SCHEMA, FollowedSource
from rsnotify_subscriber.fleet.fleet import FollowedSourceStatus, Phase
from rsnotify_subscriber.fleet.leases import (
    LEASE_DURATION,
    RENEWAL_VALIDITY,
    FleetShare,
    Lease,
    Members,
)
from rsnotify_subscriber.status import Status
from rsnotify_subscriber.storage.postgresql import LEASES, MEMBERS, storage_errors
from rsnotify_subscriber.storage.state_database import StateLocation

logger = logging.getLogger("rsnotify.subscriber.fleet")

_NUMBER = "nextval('rsnotify_fleet.numbers')"
_EXPIRES = f"clock_timestamp() + make_interval(secs => {LEASE_DURATION})"
# Leases do not end that late, unless the clock was set back after the renewal.
_IS_OVER = f"""(expires < clock_timestamp()
    OR expires > clock_timestamp() + make_interval(secs => {2 * LEASE_DURATION}))"""
_TABLES = f"""
SELECT pg_advisory_xact_lock(hashtextextended('rsnotify_fleet', 0));
CREATE SCHEMA IF NOT EXISTS rsnotify_fleet;
CREATE SEQUENCE IF NOT EXISTS rsnotify_fleet.numbers;
CREATE TABLE IF NOT EXISTS {MEMBERS} (
    id bigint PRIMARY KEY, name text NOT NULL, session text NOT NULL, shares boolean NOT NULL,
    expires timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS {LEASES} (
    source text COLLATE "C" PRIMARY KEY, owner bigint NOT NULL, fence bigint NOT NULL,
    wanted_by bigint, changed bigint NOT NULL);
"""
_RENEW = f"UPDATE {MEMBERS} SET expires = {_EXPIRES}, shares = %s WHERE id = %s"
_JOIN = f"INSERT INTO {MEMBERS} VALUES ({_NUMBER}, %s, %s, %s, {_EXPIRES}) RETURNING id"
_VIEW = f"SELECT id, name, shares, {_IS_OVER} FROM {MEMBERS}"
# Each change of a row increases `changed`, so the count and the sum reveal every change.
_VERSION = f"""
SELECT count(*), sum(changed), count(*) FILTER (WHERE owner NOT IN (SELECT id FROM {MEMBERS}))
    FROM {LEASES}
"""
_READ = f"SELECT source, owner, fence, wanted_by FROM {LEASES}"
_END_SESSIONS = f"""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN
    (SELECT session FROM {MEMBERS} WHERE {_IS_OVER})
"""
_REMOVE = f"DELETE FROM {MEMBERS} WHERE {_IS_OVER}"
_REMOVE_LEASES = f"""
DELETE FROM {LEASES} WHERE source IN (
    SELECT source FROM {LEASES} WHERE owner NOT IN (SELECT id FROM {MEMBERS})
    FOR UPDATE SKIP LOCKED)
"""
# In the same order everywhere, because concurrent inserts of a row wait for each other.
_TAKE = f"""
INSERT INTO {LEASES} SELECT source, %s, number, NULL, number FROM (
    SELECT source, {_NUMBER} AS number FROM unnest(%s::text[]) AS source ORDER BY source
) AS free ORDER BY source ON CONFLICT DO NOTHING
"""
_REQUEST = f"""
UPDATE {LEASES} SET wanted_by = %s, changed = {_NUMBER} WHERE source IN (
    SELECT source FROM {LEASES} WHERE owner = %s AND wanted_by IS NULL AND source = ANY(%s)
    LIMIT %s FOR UPDATE SKIP LOCKED)
"""
_TRANSFER = f"""
UPDATE {LEASES} SET owner = wanted_by, wanted_by = NULL, fence = {_NUMBER}, changed = {_NUMBER}
    WHERE owner = %s AND source = ANY(%s)
    AND wanted_by IN (SELECT id FROM {MEMBERS} WHERE shares AND expires > clock_timestamp())
"""
_RELEASE = f"DELETE FROM {LEASES} WHERE owner = %s AND source = ANY(%s)"
_RELEASE_ALL = f"DELETE FROM {LEASES} WHERE owner = %s"
_LEAVE = f"DELETE FROM {MEMBERS} WHERE id = %s"
#: Timeout of a statement in milliseconds. Must be shorter than the rest of a lease after a failure.
_STATEMENT_TIMEOUT_MS = 2_000


class PostgreSQLLeases:
    """A `LeaseTable` with its own connection, which is reopened after a failure.

    `name` identifies this process in messages. `session` is the `application_name` of its other
    connections, which other processes close when its lease expires.
    """

    def __init__(self, conninfo: str, name: str, session: str) -> None:
        self._conninfo = make_conninfo(
            conninfo,
            application_name=f"{session} leases",
            connect_timeout=2,
            tcp_user_timeout=_STATEMENT_TIMEOUT_MS,
        )
        self._name = name
        self._session = session
        self._open: psycopg.Connection | None = None

    def _connection(self) -> psycopg.Connection:
        if self._open is None or self._open.closed:
            connection = psycopg.connect(self._conninfo, autocommit=True)
            try:
                connection.execute(f"SET statement_timeout = {_STATEMENT_TIMEOUT_MS}".encode())
                with connection.transaction():
                    for statement in filter(str.strip, _TABLES.split(";")):
                        connection.execute(statement.encode())
            except BaseException:
                connection.close()
                raise
            self._open = connection
        return self._open

    def _execute(self, sql: str, parameters: Sequence[object] = ()) -> psycopg.Cursor[Any]:
        return self._connection().execute(sql.encode(), parameters)

    def renew(self, me: int | None, *, shares: bool) -> Members:
        with storage_errors():
            if me is None or self._execute(_RENEW, (shares, me)).rowcount == 0:
                values = (self._name, self._session, shares)
                ((me,),) = self._execute(_JOIN, values).fetchall()
            rows = self._execute(_VIEW).fetchall()
            ((count, changed, lost),) = self._execute(_VERSION).fetchall()
        return Members(
            me,
            {id: name for id, name, _, _ in rows},
            frozenset(id for id, _, shares, is_over in rows if shares and not is_over),
            bool(lost) or any(is_over for *_, is_over in rows),
            (count, changed),
        )

    def leases(self) -> dict[str, Lease]:
        with storage_errors():
            rows = self._execute(_READ).fetchall()
        return {source: Lease(owner, fence, wanted_by) for source, owner, fence, wanted_by in rows}

    def remove_expired(self) -> None:
        with storage_errors():
            try:
                self._execute(_END_SESSIONS)
            except psycopg.errors.InsufficientPrivilege as error:
                logger.warning("cannot end the sessions of a process: %s", error)
            removed = self._execute(_REMOVE).rowcount
            self._execute(_REMOVE_LEASES)
        if removed:
            silent = counted(removed, "process", "processes")
            logger.warning("%s went silent; other processes take over the Sources", silent)

    def take(self, me: int, sources: Collection[str]) -> None:
        with storage_errors():
            self._execute(_TAKE, (me, list(sources)))

    def request(self, me: int, owner: int, sources: Collection[str], count: int) -> None:
        with storage_errors():
            self._execute(_REQUEST, (me, owner, list(sources), count))

    def hand_over(self, me: int, sources: Collection[str]) -> None:
        with storage_errors(), self._connection().transaction():
            self._execute(_TRANSFER, (me, list(sources)))
            self._execute(_RELEASE, (me, list(sources)))

    def leave(self, me: int) -> None:
        with storage_errors(), self._connection().transaction():
            self._execute(_RELEASE_ALL, (me,))
            self._execute(_LEAVE, (me,))

    def close(self) -> None:
        if self._open is not None:
            with suppress(psycopg.Error):
                self._open.close()


#: Seconds for a database to release the leases at the end.
_RELEASE_TIMEOUT = 3.0


class SharedDatabase:
    """The connections to a database, and this process's leases in it.

    Attributes:
        sources: The listed Sources, by the schemas of their states.
        share: The leases.
        wake: Set when there is work to do before the next renewal.
    """

    def __init__(self, conninfo: str, *, shares: bool) -> None:
        try:
            from rsnotify_subscriber.fleet.shared_database import PostgreSQLLeases
            from rsnotify_subscriber.storage.postgresql import StatePool
        except ImportError:
            raise missing_package("a state in PostgreSQL", "postgresql") from None
        session = f"rsnotify {token_hex(8)}"  # unlike a process number, never reused
        self._pool = StatePool(conninfo, session)
        self._table = PostgreSQLLeases(conninfo, f"{gethostname()}:{os.getpid()}", session)
        self._worker = ThreadPoolExecutor(1, "rsnotify-leases")
        self._error = ""
        self.share = FleetShare(self._table, shares=shares)
        self.sources: dict[str, FollowedSource] = {}
        self.wake = asyncio.Event()

    def location(self, source: FollowedSource) -> StateLocation:
        from rsnotify_subscriber.storage.postgresql import LeasedState

        return LeasedState(self._pool, schema_of(source), self.share)

    @property
    def seconds_left(self) -> float:
        """Seconds until the leases must be checked again unless they are renewed."""
        left = self.share.seconds_left
        return left if left > 0 else RENEWAL_VALIDITY

    def fences(self) -> dict[str, int]:
        """Return the fence of each Source that this process should follow, by schema."""
        share = self.share
        if not share.is_valid:
            return {}
        requested = set(share.requested)
        return {schema: one for schema, one in share.held.items() if schema not in requested}

    def unleased(self, wrong: Mapping[str, str]) -> dict[str, FollowedSourceStatus]:
        """Return the statuses of the Sources that no other process follows, by name.

        A Source in the fleet has its own status instead. `wrong` maps the names of Sources to the
        reasons why this process cannot follow them.
        """
        share, is_valid = self.share, self.share.is_valid
        found = {}
        for schema, source in self.sources.items():
            if is_valid and schema in share.leases and schema not in share.held:
                continue  # another process follows it
            error = wrong.get(source.title)
            if not is_valid and self._error:
                error = f"its lease cannot be renewed: {self._error}"
            phase = Phase.WAITING if error is None else Phase.FAILED
            found[source.title] = FollowedSourceStatus(phase, Status(), error, source.url)
        return found

    def submit(self, work: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)

    def renew(self, ended: Collection[str] = ()) -> None:
        """Hand over the ended leases, and renew the others. A repeated error is logged once."""
        try:
            self.share.hand_over(ended)
            self.share.beat()
            self._error = ""
        except RsnotifyError as error:
            if str(error) != self._error:
                logger.warning("cannot renew leases: %s", error)
            self._error = str(error)
        except Exception as error:
            logger.exception("cannot renew leases")
            self._error = f"{type(error).__name__}: {error}"

    async def end(self, *, leave: bool) -> None:
        """Close all connections. With `leave`, release the leases first."""
        ending = self.submit(self._end, leave)
        self._worker.shutdown(wait=False)
        await asyncio.wait({ending}, timeout=_RELEASE_TIMEOUT)

    def _end(self, leave: bool) -> None:
        try:
            if leave:
                self.share.leave()
        except RsnotifyError as error:
            logger.warning("cannot release leases, which end in a few seconds: %s", error)
        self._table.close()
        self._pool.close()


def schema_of(source: FollowedSource) -> str:
    return source.schema or DEFAULT_SCHEMA
