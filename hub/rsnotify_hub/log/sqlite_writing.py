"""The SQL that writes a topic's log. Each function runs inside a transaction of its caller."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from msgspec import Struct

from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify_hub.log.fragments import Fragment, heartbeat_interval
from rsnotify_hub.log.sqlite_reading import states
from rsnotify_hub.log.store import Appended, LogState

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
CREATE INDEX IF NOT EXISTS topic_received ON topic (received DESC, uri);
-- AUTOINCREMENT: a position must not be reused after its fragment was deleted.
CREATE TABLE IF NOT EXISTS fragment (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER NOT NULL REFERENCES topic,
    digest BLOB NOT NULL,
    begins INTEGER NOT NULL,
    from_ INTEGER,
    until INTEGER NOT NULL,
    received INTEGER NOT NULL,
    heartbeat INTEGER NOT NULL,
    whole INTEGER NOT NULL DEFAULT 0,
    content_type TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fragment_digest ON fragment (topic, digest);
-- Both contain the position, since every index of SQLite contains the row's id.
CREATE INDEX IF NOT EXISTS fragment_topic ON fragment (topic);
CREATE INDEX IF NOT EXISTS fragment_until ON fragment (topic, until);
CREATE INDEX IF NOT EXISTS fragment_whole ON fragment (topic) WHERE whole;
"""

#: Migrates a log of format 1 to format 2, before `SCHEMA` adds new tables and indexes.
FROM_1_TO_2 = "ALTER TABLE fragment ADD COLUMN whole INTEGER NOT NULL DEFAULT 0;"


class LogRetention(Struct, frozen=True):
    """How much of a log is kept.

    Args:
        size: The bytes of one topic's fragments. The last fragment is kept, whatever its size.
        age: How long a fragment is kept.
    """

    size: int
    age: timedelta


def append(
    database: sqlite3.Connection,
    topic: str,
    fragments: Sequence[Fragment],
    *,
    replacing: int | None,
    now: Instant,
    retention: LogRetention,
) -> Appended:
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
        # A log has one whole content or changes: a new fragment replaces a whole content.
        _delete(database, number, "whole AND position < ?", (added[-1][0],))
    _trim(database, number, now=now, retention=retention)
    return Appended(positions, states(database, topic)[0])


def forget(database: sqlite3.Connection, topic: str) -> None:
    """Delete a log and all its fragments (`Store.forget`)."""
    row = database.execute("SELECT id FROM topic WHERE uri = ?", (topic,)).fetchone()
    if row is not None:
        database.execute("DELETE FROM fragment WHERE topic = ?", row)
        # The cursor of the topic and those of its parts, whose keys continue after a space.
        cursors = "DELETE FROM bridged WHERE topic = ? OR substr(topic, 1, ?) = ?"
        database.execute(cursors, (topic, len(topic) + 1, topic + " "))
        database.execute("DELETE FROM topic WHERE id = ?", row)


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
        " whole, content_type, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (topic, digest) DO NOTHING",
        (
            topic,
            _digest(fragment),
            to_microseconds(fragment.begins),
            None if fragment.from_ is None else to_microseconds(fragment.from_),
            to_microseconds(fragment.until),
            to_microseconds(now),
            heartbeat_interval(fragment) is not None,
            fragment.whole,
            fragment.content_type,
            fragment.body,
        ),
    )
    return cursor.lastrowid if cursor.rowcount else None


def _digest(fragment: Fragment) -> bytes:
    """Return the digest that identifies equal fragments in a log."""
    kind = b"whole " if fragment.whole else b""
    return hashlib.sha256(kind + fragment.body).digest()


def _delete(database: sqlite3.Connection, topic: int, where: str, values: tuple[Any, ...]) -> None:
    """Delete fragments of one topic, and subtract them from its sums."""
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
    database: sqlite3.Connection, topic: str, *, now: Instant, retention: LogRetention
) -> LogState | None:
    """Delete the oldest fragments until the log is within its retention.

    A whole content is kept: it is the present content of the topic, however old it is.

    Returns:
        The state of the log afterwards; None if there is none.
    """
    row = database.execute("SELECT id FROM topic WHERE uri = ?", (topic,)).fetchone()
    if row is None:
        return None
    _trim(database, row[0], now=now, retention=retention)
    return states(database, topic)[0]


def _trim(
    database: sqlite3.Connection, number: int, *, now: Instant, retention: LogRetention
) -> None:
    size, last = database.execute(
        "SELECT size, position FROM topic WHERE id = ?", (number,)
    ).fetchone()
    too_old = to_microseconds(now - retention.age)
    cut = 0
    for position, length, received in database.execute(
        "SELECT position, length(body), received FROM fragment"
        " WHERE topic = ? AND NOT whole ORDER BY position",
        (number,),
    ):
        too_much = size > retention.size and position != last
        if received > too_old and not too_much:
            break
        cut = position
        size -= length
    if cut:
        _delete(database, number, "position <= ? AND NOT whole", (cut,))
