"""A program that counts each change in its own PostgreSQL, where repeated changes would show.

    python aggregator.py SOURCE-URL CONNINFO [DIES-AFTER]

With a number it dies, as by kill -9, in the handler of that batch, after its effect.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import psycopg

from rsnotify.sync.pace import Pace
from rsnotify.sync.retry import Retry
from rsnotify_subscriber import FollowOptions, PostgreSQLState, Received, Subscriber

PACE = Pace(poll=0.05, retry=Retry(first=0.01, most=0.2))
TABLES = """
CREATE TABLE IF NOT EXISTS effects (uri text, at timestamptz, content bytea);
CREATE TABLE IF NOT EXISTS copy (uri text PRIMARY KEY, content bytea)
"""


class Aggregator:
    """Keeps a copy, and a row for each effect."""

    def __init__(self, dies_after: int | None = None) -> None:
        self._left = dies_after

    def apply_within(self, connection: psycopg.Connection, changes: Sequence[Received]) -> None:
        for change in changes:
            content = change.content.read_bytes() if change.content else None
            line = (change.uri, change.at, content)
            connection.execute("INSERT INTO effects VALUES (%s, %s, %s)", line)
            connection.execute("DELETE FROM copy WHERE uri = %s", (change.uri,))
            if content is not None:
                connection.execute("INSERT INTO copy VALUES (%s, %s)", (change.uri, content))
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


def prepare(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in TABLES.split(";"):
            connection.execute(statement.encode())


async def main(url: str, conninfo: str, dies_after: int | None) -> None:
    state = PostgreSQLState(conninfo)
    await Subscriber(
        url, Aggregator(dies_after), state=state, options=FollowOptions(pace=PACE)
    ).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if sys.argv[3:] else None))
