"""The SQL of a topic's log. Each function runs inside a transaction of its caller."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from msgspec import Struct

from rsnotify.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify_hub.log.fragments import Fragment, Interval, interval_of
from rsnotify_hub.log.store import Appended, Entry, LogState

SCHEMA = """
CREATE TABLE IF NOT EXISTS topic (
    id INTEGER PRIMARY KEY,
    uri TEXT NOT NULL UNIQUE,
    position INTEGER NOT NULL,
    through INTEGER NOT NULL,
    received INTEGER NOT NULL,
    kept INTEGER NOT NULL,
    size INTEGER NOT NULL
);
-- AUTOINCREMENT: a position must not come back after its fragment was deleted.
CREATE TABLE IF NOT EXISTS fragment (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER NOT NULL REFERENCES topic,
    digest BLOB NOT NULL,
    begins INTEGER NOT NULL,
    from_ INTEGER,
    until INTEGER NOT NULL,
    received INTEGER NOT NULL,
    heartbeat INTEGER NOT NULL,
    content_type TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fragment_digest ON fragment (topic, digest);
-- Both hold the position too, as every index of SQLite holds the row's id.
CREATE INDEX IF NOT EXISTS fragment_topic ON fragment (topic);
CREATE INDEX IF NOT EXISTS fragment_until ON fragment (topic, until);
"""

_PAGE_ROWS = 256
_PAGE_BYTES = 1_000_000


class Retention(Struct, frozen=True):
    """How much of a log is kept.

    Args:
        size: Bytes of one topic's fragments. The last fragment stays, whatever its size.
        age: How long a fragment is kept.
    """

    size: int
    age: timedelta


def _optional(microseconds: int | None) -> Instant | None:
    return None if microseconds is None else from_microseconds(microseconds)


def states(database: sqlite3.Connection, topic: str | None = None) -> list[LogState]:
    """Return the state of every log, or of one."""
    where = "" if topic is None else "WHERE uri = ?"
    rows = database.execute(
        "SELECT id, uri, position, through, received, kept, size FROM topic " + where,
        () if topic is None else (topic,),
    )
    return [_state(database, *row) for row in rows.fetchall()]


def _state(
    database: sqlite3.Connection,
    topic: int,
    uri: str,
    position: int,
    through: int,
    received: int,
    kept: int,
    size: int,
) -> LogState:
    oldest = database.execute(
        "SELECT position, begins FROM fragment WHERE topic = ? ORDER BY position LIMIT 1", (topic,)
    ).fetchone()
    first, begins = oldest or (position + 1, through)
    last = database.execute(
        "SELECT from_, until FROM fragment WHERE position = ? AND heartbeat", (position,)
    ).fetchone()
    return LogState(
        topic=uri,
        first=first,
        position=position,
        begins=from_microseconds(begins),
        through=from_microseconds(through),
        received=from_microseconds(received),
        kept=kept,
        size=size,
        heartbeat=Interval(from_microseconds(last[0]), from_microseconds(last[1]))
        if last
        else None,
    )


def append(
    database: sqlite3.Connection,
    topic: str,
    fragments: Sequence[Fragment],
    *,
    replacing: int | None,
    now: Instant,
    retention: Retention,
) -> Appended:
    """Append fragments, then trim (`Store.append`)."""
    number = _topic(database, topic, fragments[0].until, now)
    if replacing is not None:
        _delete(database, number, "position = ?", (replacing,))
    positions = tuple(_insert(database, number, fragment, now) for fragment in fragments)
    added = [
        (position, fragment)
        for position, fragment in zip(positions, fragments, strict=True)
        if position is not None
    ]
    if added:
        database.execute(
            "UPDATE topic SET position = ?, through = max(through, ?), received = ?,"
            " kept = kept + ?, size = size + ? WHERE id = ?",
            (
                added[-1][0],
                max(to_microseconds(fragment.until) for _, fragment in added),
                to_microseconds(now),
                len(added),
                sum(len(fragment.body) for _, fragment in added),
                number,
            ),
        )
    return Appended(positions, trim(database, topic, now=now, retention=retention))


def _topic(database: sqlite3.Connection, uri: str, until: Instant, now: Instant) -> int:
    row = database.execute("SELECT id FROM topic WHERE uri = ?", (uri,)).fetchone()
    if row is not None:
        return int(row[0])
    cursor = database.execute(
        "INSERT INTO topic (uri, position, through, received, kept, size)"
        " VALUES (?, 0, ?, ?, 0, 0)",
        (uri, to_microseconds(until), to_microseconds(now)),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _insert(
    database: sqlite3.Connection, topic: int, fragment: Fragment, now: Instant
) -> int | None:
    cursor = database.execute(
        "INSERT INTO fragment (topic, digest, begins, from_, until, received, heartbeat,"
        " content_type, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (topic, digest) DO NOTHING",
        (
            topic,
            hashlib.sha256(fragment.body).digest(),
            to_microseconds(fragment.begins),
            None if fragment.from_ is None else to_microseconds(fragment.from_),
            to_microseconds(fragment.until),
            to_microseconds(now),
            interval_of(fragment) is not None,
            fragment.content_type,
            fragment.body,
        ),
    )
    return cursor.lastrowid if cursor.rowcount else None


def _delete(database: sqlite3.Connection, topic: int, where: str, values: tuple[Any, ...]) -> None:
    """Delete fragments of one topic, and take them off its sums."""
    kept, size = database.execute(
        "SELECT count(*), coalesce(sum(length(body)), 0) FROM fragment"
        f" WHERE topic = ? AND {where}",
        (topic, *values),
    ).fetchone()
    if kept:
        database.execute(f"DELETE FROM fragment WHERE topic = ? AND {where}", (topic, *values))
        database.execute(
            "UPDATE topic SET kept = kept - ?, size = size - ? WHERE id = ?", (kept, size, topic)
        )


def trim(
    database: sqlite3.Connection, topic: str, *, now: Instant, retention: Retention
) -> LogState:
    """Drop the oldest fragments until the log is as small and as young as it shall be."""
    number, size, last = database.execute(
        "SELECT id, size, position FROM topic WHERE uri = ?", (topic,)
    ).fetchone()
    too_old = to_microseconds(now - retention.age)
    cut = 0
    for position, length, received in database.execute(
        "SELECT position, length(body), received FROM fragment WHERE topic = ? ORDER BY position",
        (number,),
    ):
        too_much = size > retention.size and position != last
        if received > too_old and not too_much:
            break
        cut = position
        size -= length
    if cut:
        _delete(database, number, "position <= ?", (cut,))
    return states(database, topic)[0]


def read(
    database: sqlite3.Connection, topic: str, *, after: int, since: Instant | None
) -> list[Entry]:
    """Read a page (`Store.read`)."""
    where, values = "", [topic, after]
    if since is not None:
        # The index on until finds where to begin; the log's order need not be that of until.
        where = (
            " AND until > ? AND position >= (SELECT min(position) FROM fragment"
            " WHERE topic = (SELECT id FROM topic WHERE uri = ?) AND until > ?)"
        )
        values += [to_microseconds(since), topic, to_microseconds(since)]
    rows = database.execute(
        "SELECT position, body, content_type, from_, until, begins, heartbeat FROM fragment"
        " WHERE topic = (SELECT id FROM topic WHERE uri = ?) AND position > ?"
        f"{where} ORDER BY position LIMIT {_PAGE_ROWS}",
        values,
    )
    entries: list[Entry] = []
    size = 0
    for row in rows:
        entries.append(_entry(*row))
        size += len(entries[-1].fragment.body)
        if size > _PAGE_BYTES:
            break
    return entries


def _entry(
    position: int,
    body: bytes,
    content_type: str,
    from_: int | None,
    until: int,
    begins: int,
    heartbeat: int,
) -> Entry:
    fragment = Fragment(
        body=body,
        content_type=content_type,
        from_=_optional(from_),
        until=from_microseconds(until),
        begins=from_microseconds(begins),
        heartbeat=bool(heartbeat),
    )
    return Entry(position, fragment)
