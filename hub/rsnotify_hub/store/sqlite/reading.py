"""The SQL that reads a topic's log. Each function runs inside a transaction of its caller."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify_hub.fragments.fragment import Fragment, Interval
from rsnotify_hub.store.interface import Backlog, LogEntry, LogState

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
        # The index on until finds the first position; the log need not be in the order of until.
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
    fragment = Fragment(
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
