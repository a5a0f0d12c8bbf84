"""The SQL that writes a topic's log. Each function runs inside a transaction of its caller."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Any

from rsnotify.format.datetimes import Instant, to_microseconds
from rsnotify_hub.log.fragments import Fragment, heartbeat_interval
from rsnotify_hub.log.sqlite_reading import states
from rsnotify_hub.log.store import Appended, LogEntry, LogRetention, LogState


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
    positions = [_insert(database, number, fragment, now) for fragment in fragments]
    added = [
        LogEntry(position, fragment)
        for position, fragment in zip(positions, fragments, strict=True)
        if position is not None
    ]
    if added:
        last = added[-1].position
        database.execute(
            "UPDATE topic SET position = ?, through = max(through, ?), received = ?,"
            " kept = kept + ?, size = size + ? WHERE id = ?",
            (
                last,
                max(to_microseconds(entry.fragment.until) for entry in added),
                to_microseconds(now),
                len(added),
                sum(len(entry.fragment.body) for entry in added),
                number,
            ),
        )
        # A log has one whole content or changes: a new fragment replaces a whole content.
        _delete(database, number, "whole AND position < ?", (last,))
    _trim(database, number, now=now, retention=retention)
    return Appended(added, states(database, topic)[0])


def forget(database: sqlite3.Connection, topic: str) -> None:
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
    kind = b"whole " if fragment.whole else b""
    return hashlib.sha256(kind + fragment.body).digest()


def _delete(database: sqlite3.Connection, topic: int, where: str, values: tuple[Any, ...]) -> None:
    """Delete fragments of a topic, and subtract them from its sums."""
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
