"""A copy in PostgreSQL, made by a handler in the transaction that commits T, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from urllib.parse import unquote

import psycopg

from rsnotify_subscriber import Received
from tests.harnesses.torture.truth import Held

_TABLES = """
CREATE TABLE copy (uri text PRIMARY KEY, hash text);
CREATE TABLE effects (number serial, uri text, at timestamptz, hash text)
"""
# After another effect the same one may come again: a resource that is verified has its current
# content, with the datetime of the change that is in doubt.
_TWICE = """
SELECT uri, at FROM (
    SELECT uri, at, hash, lag(at) OVER resource AS at_before, lag(hash) OVER resource AS before
        FROM effects WINDOW resource AS (PARTITION BY uri ORDER BY number)
) AS effect
    WHERE at = at_before AND hash IS NOT DISTINCT FROM before
"""
_EFFECT = "INSERT INTO effects (uri, at, hash) VALUES (%s, %s, %s)"


class Ledger:
    """A handler that stores the hash of each resource, and a row for each effect."""

    def apply_within(self, connection: psycopg.Connection, changes: Sequence[Received]) -> None:
        for change in changes:
            digest = sha256(change.content.read_bytes()).hexdigest() if change.content else None
            connection.execute("DELETE FROM copy WHERE uri = %s", (change.uri,))
            if digest is not None:
                connection.execute("INSERT INTO copy VALUES (%s, %s)", (change.uri, digest))
            effect = (change.uri, change.at, digest)
            connection.execute(_EFFECT, effect)


class LedgerCopy:
    """What a `Ledger` has stored, seen from outside."""

    def __init__(self, conninfo: str, base: str) -> None:
        self._conninfo = conninfo
        self._base = base

    def prepare(self) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            for statement in _TABLES.split(";"):
                connection.execute(statement.encode())

    async def held(self) -> Held | None:
        """Return the hash of each resource; None while the server is down."""
        found = await self._rows("SELECT uri, hash FROM copy")
        if found is None:
            return None
        return {unquote(uri.removeprefix(self._base)): digest for uri, digest in found}

    async def doubles(self) -> list[str]:
        """Return in sentences which changes had their effect twice."""
        rows = await self._rows(_TWICE) or ()
        return [f"the change of {uri} at {at} had its effect twice" for uri, at in rows]

    async def _rows(self, query: str) -> list[tuple[str, str]] | None:
        try:
            async with await psycopg.AsyncConnection.connect(self._conninfo) as connection:
                return await (await connection.execute(query.encode())).fetchall()
        except psycopg.OperationalError:
            return None
