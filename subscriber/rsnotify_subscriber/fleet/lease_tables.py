"""The tables of members and leases, in the PostgreSQL database with the states."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from rsnotify.errors import counted
from rsnotify_subscriber.fleet.leases import LEASE_DURATION, Lease, Members
from rsnotify_subscriber.storage.postgresql import LEASES, MEMBERS, storage_errors

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
