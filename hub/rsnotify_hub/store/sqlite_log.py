"""The SQL that reads a topic's log. Each function runs inside a transaction of its caller.

The SQL that writes a topic's log. Each function runs inside a transaction of its caller.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify_hub.fragments import Fragment, Interval, heartbeat_interval, stored_fragment
from rsnotify_hub.store.interface import Backlog, LogEntry, LogRetention, LogState

_PAGE_ROWS = 256
_PAGE_BYTES = 1_000_000
_MAX_POSITION = 2**63 - 1
_ENTRY = "SELECT position, body, content_type, from_, until, begins, heartbeat, whole FROM fragment"
_OF_TOPIC = "topic = (SELECT id FROM topic WHERE uri = ?)"
#: Given an instant twice, as `is_later`.
_LATER = "AND until >= ? AND (until > ? OR (from_ = until AND NOT heartbeat))"


def states(database: sqlite3.Connection, topic: str | None = None) -> list[LogState]:
    if topic is None:
        return _states(database, "")
    return _states(database, "WHERE uri = ?", topic)


def newest(
    database: sqlite3.Connection, after: tuple[Instant, str] | None, limit: int
) -> list[LogState]:
    order = "ORDER BY received DESC, uri LIMIT ?"
    if after is None:
        return _states(database, order, limit)
    received, topic = to_microseconds(after[0]), after[1]
    same = _states(database, f"WHERE received = ? AND uri > ? {order}", received, topic, limit)
    rest = limit - len(same)
    return same + _states(database, f"WHERE received < ? {order}", received, rest)


def _states(database: sqlite3.Connection, which: str, *values: str | int) -> list[LogState]:
    sql = f"SELECT id, uri, position, through, received, kept, size FROM topic {which}"
    return [_state(database, row) for row in database.execute(sql, values).fetchall()]


def _state(database: sqlite3.Connection, row: tuple[Any, ...]) -> LogState:
    topic, uri, position, through, received, kept, size = row
    oldest = database.execute(
        "SELECT position, begins FROM fragment WHERE topic = ? ORDER BY position LIMIT 1", (topic,)
    ).fetchone()
    first, begins = oldest or (position + 1, through)
    last = database.execute(
        "SELECT from_, until, heartbeat, whole FROM fragment WHERE position = ?", (position,)
    ).fetchone()
    from_, until, heartbeat, whole = last or (0, 0, False, False)
    return LogState(
        topic=uri,
        first=first,
        position=position,
        begins=from_microseconds(begins),
        through=from_microseconds(through),
        received=from_microseconds(received),
        kept=kept,
        size=size,
        heartbeat=Interval(from_microseconds(from_), from_microseconds(until))
        if heartbeat
        else None,
        whole=bool(whole),
    )


def read(
    database: sqlite3.Connection, topic: str, *, after: int, since: Instant | None
) -> list[LogEntry]:
    where = ""
    values: list[str | int] = [topic, after]
    if since is not None:
        instant = to_microseconds(since)
        # The index on until finds the first position; the log may be in another order.
        where = (
            f" {_LATER} AND position >= (SELECT min(position) FROM fragment"
            f" WHERE {_OF_TOPIC} {_LATER})"
        )
        values += [instant, instant, topic, instant, instant]
    return _page(database, f"AND position > ?{where} ORDER BY position", values)


def changes(database: sqlite3.Connection, topic: str, *, since: Instant | None) -> list[LogEntry]:
    if since is None:
        return _page(database, "ORDER BY until, position", [topic])
    instant = to_microseconds(since)
    order = "ORDER BY until, position"
    entries = _page(database, f"{_LATER} {order}", [topic, instant, instant])
    if entries and all(entry.fragment.begins > since for entry in entries):
        across = f"{_LATER} AND begins <= ? {order}"
        entries = _page(database, across, [topic, instant, instant, instant]) or entries
    return entries


def _page(database: sqlite3.Connection, which: str, values: list[str | int]) -> list[LogEntry]:
    sql = f"{_ENTRY} WHERE {_OF_TOPIC} {which} LIMIT {_PAGE_ROWS}"
    entries: list[LogEntry] = []
    size = 0
    for row in database.execute(sql, values):
        entries.append(_entry(row))
        size += len(entries[-1].fragment.body)
        if size > _PAGE_BYTES:
            break
    return entries


def _entry(row: tuple[Any, ...]) -> LogEntry:
    position, body, content_type, from_, until, begins, heartbeat, whole = row
    fragment = stored_fragment(
        body=body,
        content_type=content_type,
        from_=None if from_ is None else from_microseconds(from_),
        until=from_microseconds(until),
        begins=from_microseconds(begins),
        heartbeat=bool(heartbeat),
        whole=bool(whole),
    )
    return LogEntry(position, fragment)


def backlogs(database: sqlite3.Connection, topic: str, positions: Sequence[int]) -> list[Backlog]:
    """Return the backlog after each of some positions (`Store.backlogs`).

    The entries between two positions are counted from the last position on, each entry once.
    """
    found: dict[int, Backlog] = {}
    end, count = _MAX_POSITION, 0
    for position in sorted(set(positions), reverse=True):
        count += database.execute(
            f"SELECT count(*) FROM fragment WHERE {_OF_TOPIC} AND position > ? AND position <= ?",
            (topic, position, end),
        ).fetchone()[0]
        first = database.execute(
            f"SELECT begins FROM fragment WHERE {_OF_TOPIC} AND position > ?"
            " ORDER BY position LIMIT 1",
            (topic, position),
        ).fetchone()
        found[position] = Backlog(count, None if first is None else from_microseconds(first[0]))
        end = position
    return [found[position] for position in positions]


class _Topic(Struct):
    """The row of a topic; instants are in microseconds."""

    id: int
    position: int
    through: int
    received: int
    kept: int
    size: int


def append(
    database: sqlite3.Connection,
    topic: str,
    fragments: Sequence[Fragment],
    *,
    after: int,
    replacing: int | None,
    now: Instant,
    retention: LogRetention,
) -> tuple[list[LogEntry], LogState] | None:
    """Append to a log (`LogStore.append`), and return the new entries and its state.

    Returns None if the log does not end at `after`.
    """
    row = _find(database, topic)
    if (row.position if row else 0) != after:
        return None
    if row is None:
        row = _new(database, topic, fragments[0].until, now)
    if replacing is not None:
        _delete(database, row, "position = ?", replacing)
    added = [
        LogEntry(position, fragment)
        for fragment in fragments
        if (position := _insert(database, row.id, fragment, now)) is not None
    ]
    for entry in added:
        row.position = entry.position
        row.through = max(row.through, to_microseconds(entry.fragment.until))
        row.received = to_microseconds(now)
        row.kept += 1
        row.size += len(entry.fragment.body)
    if added:
        # A log has one whole content or changes: a new fragment replaces a whole content.
        _delete(database, row, "whole AND position < ?", row.position)
    first, begins = _trim(database, row, now=now, retention=retention)
    _save(database, row)
    if not added:
        return [], states(database, topic)[0]
    last = added[-1].fragment
    state = LogState(
        topic=topic,
        first=first,
        position=row.position,
        begins=from_microseconds(begins),
        through=from_microseconds(row.through),
        received=from_microseconds(row.received),
        kept=row.kept,
        size=row.size,
        heartbeat=heartbeat_interval(last),
        whole=last.whole,
    )
    return added, state


def forget(database: sqlite3.Connection, topic: str, *, after: int) -> bool:
    """Delete a log; return False if it does not end at `after`."""
    row = _find(database, topic)
    if row is None or row.position != after:
        return False
    database.execute("DELETE FROM fragment WHERE topic = ?", (row.id,))
    # The cursor of the topic and those of its parts, whose keys continue after a space.
    cursors = "DELETE FROM bridged WHERE topic = ? OR substr(topic, 1, ?) = ?"
    database.execute(cursors, (topic, len(topic) + 1, topic + " "))
    database.execute("DELETE FROM topic WHERE id = ?", (row.id,))
    return True


def _find(database: sqlite3.Connection, uri: str) -> _Topic | None:
    row = database.execute(
        "SELECT id, position, through, received, kept, size FROM topic WHERE uri = ?", (uri,)
    ).fetchone()
    return None if row is None else _Topic(*row)


def _new(database: sqlite3.Connection, uri: str, until: Instant, now: Instant) -> _Topic:
    through, received = to_microseconds(until), to_microseconds(now)
    cursor = database.execute(
        "INSERT INTO topic (uri, position, through, received, kept, size)"
        " VALUES (?, 0, ?, ?, 0, 0)",
        (uri, through, received),
    )
    assert cursor.lastrowid is not None
    return _Topic(cursor.lastrowid, 0, through, received, 0, 0)


def _save(database: sqlite3.Connection, topic: _Topic) -> None:
    database.execute(
        "UPDATE topic SET position = ?, through = ?, received = ?, kept = ?, size = ? WHERE id = ?",
        (topic.position, topic.through, topic.received, topic.kept, topic.size, topic.id),
    )


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


def _delete(database: sqlite3.Connection, topic: _Topic, where: str, *values: int) -> None:
    """Delete fragments of a topic, and subtract them from its sums, which the caller saves."""
    kept, size = database.execute(
        "SELECT count(*), coalesce(sum(length(body)), 0) FROM fragment"
        f" WHERE topic = ? AND {where}",
        (topic.id, *values),
    ).fetchone()
    if kept:
        database.execute(f"DELETE FROM fragment WHERE topic = ? AND {where}", (topic.id, *values))
        topic.kept -= kept
        topic.size -= size


def trim(
    database: sqlite3.Connection, topic: str, *, now: Instant, retention: LogRetention
) -> LogState | None:
    """Delete the oldest fragments until the log is within its retention."""
    row = _find(database, topic)
    if row is None:
        return None
    _trim(database, row, now=now, retention=retention)
    _save(database, row)
    return states(database, topic)[0]


def _trim(
    database: sqlite3.Connection, topic: _Topic, *, now: Instant, retention: LogRetention
) -> tuple[int, int]:
    """Delete the oldest fragments until the log is within its retention.

    A whole content is kept until another fragment replaces it: it is the present content of the
    topic, however old it is.

    Returns:
        The position and the begin of the oldest fragment that is kept; if none is, the position
        after the last one and the end of the log.
    """
    too_old = to_microseconds(now - retention.age)
    size = topic.size
    cut = 0
    oldest = (topic.position + 1, topic.through)
    for position, begins, length, received, whole in database.execute(
        "SELECT position, begins, length(body), received, whole FROM fragment"
        " WHERE topic = ? ORDER BY position",
        (topic.id,),
    ):
        too_much = size > retention.size and position != topic.position
        if whole or (received > too_old and not too_much):
            oldest = position, begins
            break
        cut = position
        size -= length
    if cut:
        _delete(database, topic, "position <= ?", cut)
    return oldest
