"""The default store: one SQLite database in WAL mode that flushes every commit."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from msgspec import Struct

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import check_role, later_version, make_durably
from rsnotify_hub.fragments import (
    Fragment,
    FragmentKind,
    Interval,
    heartbeat_interval,
    stored_fragment,
)
from rsnotify_hub.store.group_commit import CursorWriter, GroupCommit
from rsnotify_hub.store.interface import (
    Backlog,
    BridgeOwner,
    LogEntry,
    LogListener,
    LogMoved,
    LogRetention,
    LogState,
    StoredSubscription,
    SubscriptionOwner,
    SubscriptionRecords,
)
from rsnotify_hub.websub_subscription import Subscription

_SCHEMA = """
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
-- Both contain the position, because every SQLite index contains the row's id.
CREATE INDEX IF NOT EXISTS fragment_topic ON fragment (topic);
CREATE INDEX IF NOT EXISTS fragment_until ON fragment (topic, until);
CREATE INDEX IF NOT EXISTS fragment_whole ON fragment (topic) WHERE whole;
CREATE TABLE IF NOT EXISTS subscription (
    topic TEXT NOT NULL,
    callback TEXT NOT NULL,
    secret TEXT,
    expires INTEGER NOT NULL,
    position INTEGER NOT NULL,
    suspended INTEGER NOT NULL DEFAULT 0,
    client TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (topic, callback)
);
CREATE TABLE IF NOT EXISTS bridged (
    broker TEXT NOT NULL,
    topic TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (broker, topic)
);
CREATE TABLE IF NOT EXISTS trouble (
    topic TEXT NOT NULL,
    callback TEXT NOT NULL,
    state BLOB,
    PRIMARY KEY (topic, callback)
);
CREATE TABLE IF NOT EXISTS checked (id INTEGER PRIMARY KEY CHECK (id = 1), times INTEGER);
"""
# Format 3 added brokers, format 4 the order of topics, and format 5 failure states.
_VERSION = 5
# Format 2 added clients of subscriptions, suspended subscriptions and whole contents.
_MIGRATION_FROM_1 = """
ALTER TABLE fragment ADD COLUMN whole INTEGER NOT NULL DEFAULT 0;
ALTER TABLE subscription ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
ALTER TABLE subscription ADD COLUMN client TEXT NOT NULL DEFAULT '';
"""


def connect(path: Path, connection: type[sqlite3.Connection]) -> sqlite3.Connection:
    """Return a connection in autocommit mode that any thread may use, one thread at a time."""
    if not path.exists():
        path.touch(mode=0o600)  # contains secrets; SQLite's other files get the same mode
    database = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=10, factory=connection
    )
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
    except BaseException:
        database.close()
        raise
    return database


def prepare(database: sqlite3.Connection, path: Path) -> None:
    """Create the tables, or migrate a database of an older version."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == _VERSION:
        return  # without writing, so that a hub starts even if its disk is full
    if version not in range(_VERSION):
        raise later_version(path)
    changes = (_MIGRATION_FROM_1 if version == 1 else "") + _SCHEMA
    # One transaction: if the hub is killed during the migration, the next start repeats it.
    database.executescript(f"BEGIN; {changes} PRAGMA user_version = {_VERSION}; COMMIT;")


#: Maximum size of a page of a log.
_PAGE_ROWS, _PAGE_BYTES = 256, 1_000_000
_MAX_POSITION = 2**63 - 1
_SELECT_ENTRY = (
    "SELECT position, body, content_type, from_, until, begins, heartbeat, whole FROM fragment"
)
_OF_TOPIC = "topic = (SELECT id FROM topic WHERE uri = ?)"
#: SQL for `is_later`. Its two parameters are the same instant.
_LATER = "AND until >= ? AND (until > ? OR (from_ = until AND NOT heartbeat))"


#: Moves a subscription's cursor, by topic and callback.
_MOVE_CURSOR = "UPDATE subscription SET position = ? WHERE topic = ? AND callback = ?"
#: Stores the failure state of a subscription's deliveries, by topic and callback.
_SAVE_FAILURE_STATE = (
    "INSERT INTO trouble (state, topic, callback)"
    " SELECT ?, topic, callback FROM subscription WHERE topic = ? AND callback = ?"
    " ON CONFLICT (topic, callback) DO UPDATE SET state = excluded.state"
)
#: Moves a broker's cursor in a topic, by broker and topic.
_MOVE_BRIDGED = (
    "INSERT INTO bridged (position, broker, topic) VALUES (?, ?, ?)"
    " ON CONFLICT (broker, topic) DO UPDATE SET position = excluded.position"
)

T = TypeVar("T")


class SqliteStore:
    """A `Store` in a folder, for one hub process at a time.

    Creates the folder if it does not exist. Only their owner can read new files. Tests pass a
    `connection` class that fails.
    """

    answer_seconds: float | None = None

    def __init__(
        self,
        folder: Path,
        retention: LogRetention,
        clock: Callable[[], Instant],
        *,
        connection: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        self._connection = connection
        self._retention = retention
        self._clock = clock
        self._listener: LogListener
        self._loop = asyncio.get_running_loop()
        check_role(folder / "hub.sqlite")
        try:
            make_durably(folder, mode=0o700)
            self._lock = FileLock(folder / "hub.lock")
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(f"another hub is using the folder {folder}") from None
        except OSError as error:
            raise ConfigurationError(
                f"cannot use the folder {folder}: {reason_of(error)}"
            ) from None
        try:
            self._open(folder / "hub.sqlite")
        except BaseException:
            self._lock.release()
            raise

    def _open(self, path: Path) -> None:
        with ExitStack() as stack:
            try:
                writer = stack.enter_context(closing(connect(path, self._connection)))
                prepare(writer, path)
                self._reader = connect(path, self._connection)
            except (sqlite3.Error, OSError) as error:
                raise ConfigurationError(
                    f"cannot use the hub's data in {path}: {reason_of(error)}"
                ) from None
            stack.pop_all()
        self._writer = GroupCommit(writer)
        self._cursors = CursorWriter(self._writer, _MOVE_CURSOR)
        self._failure_states = CursorWriter(self._writer, _SAVE_FAILURE_STATE)
        self._bridged = CursorWriter(self._writer, _MOVE_BRIDGED)
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="hub-reader")

    async def _read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._loop.run_in_executor(self._reading, operation, self._reader)
        except sqlite3.Error as error:
            raise StorageError(f"cannot read the hub's data: {reason_of(error)}") from None

    async def _execute(self, sql: str, *values: object) -> None:
        await self._writer.submit(lambda database: database.execute(sql, values))

    async def start(self, listener: LogListener) -> list[LogState]:
        self._listener = listener
        return await self._read(_log_states)

    async def newest(self, *, after: tuple[Instant, str] | None, limit: int) -> list[LogState]:
        return await self._read(partial(_newest_logs, after=after, limit=limit))

    async def append(
        self, topic: str, fragments: Sequence[Fragment], *, after: int, replacing: int | None
    ) -> int:
        self._listener.append_started(topic, fragments)
        appended = await self._writer.submit(
            partial(
                _append,
                topic=topic,
                fragments=fragments,
                after=after,
                replacing=replacing,
                now=self._clock(),
                retention=self._retention,
            )
        )
        if appended is None:
            raise await self._moved(topic, after)
        entries, state = appended
        self._listener.appended(topic, entries, state, replacing)
        return len(entries)

    async def _moved(self, topic: str, after: int) -> LogMoved:
        """Report to the listener how an uncertain write has changed the log."""
        states = await self._read(partial(_log_states, topic=topic))
        if not states:
            self._listener.forgotten(topic)
            return LogMoved(f"the log of {topic} was deleted")
        entries: list[LogEntry] = []
        while page := await self.read(topic, after=after):
            entries += page
            after = page[-1].position
        self._listener.appended(topic, entries, states[0], None)
        return LogMoved(f"the log of {topic} has more entries")

    async def read(self, topic: str, *, after: int, since: Instant | None = None) -> list[LogEntry]:
        return await self._read(partial(_read_log, topic=topic, after=after, since=since))

    async def changes(self, topic: str, *, since: Instant | None) -> list[LogEntry]:
        return await self._read(partial(_read_changes, topic=topic, since=since))

    async def trim(self, topic: str) -> LogState | None:
        return await self._writer.submit(
            partial(_trim_log, topic=topic, now=self._clock(), retention=self._retention)
        )

    async def backlogs(self, topic: str, positions: Sequence[int]) -> list[Backlog]:
        return await self._read(partial(_read_backlogs, topic=topic, positions=positions))

    async def forget(self, topic: str, *, after: int) -> None:
        is_done = await self._writer.submit(
            lambda database: _forget_log(database, topic, after=after)
        )
        if not is_done:
            raise await self._moved(topic, after)
        self._listener.forgotten(topic)

    async def assign(self, owner: SubscriptionOwner) -> None:
        """Assign all subscriptions to the owner, because this is the only node."""
        owner.acquired(await self._read(_stored_subscriptions))

    async def records(self) -> SubscriptionRecords:
        stored = await self._read(_stored_subscriptions)
        brokers = await self._read(_brokers)
        return SubscriptionRecords([each.subscription for each in stored], brokers)

    async def restore(self, records: SubscriptionRecords) -> int:
        return await self._writer.submit(partial(_restore, records=records))

    async def assign_bridge(self, bridge: BridgeOwner) -> None:
        await bridge.start()

    def owns(self, authority: str) -> bool:
        return True

    async def save(self, subscription: Subscription) -> None:
        self._cursors.forget(subscription.topic, subscription.callback)
        await self._writer.submit(partial(_save_subscription, subscription=subscription))

    async def delete(self, topic: str, callback: str) -> None:
        self._failure_states.forget(topic, callback)
        await self._writer.submit(partial(_delete_subscription, topic=topic, callback=callback))

    def move_cursor(self, topic: str, callback: str, position: int) -> None:
        self._cursors.move(topic, callback, position)

    def save_failure_state(self, topic: str, callback: str, state: bytes | None) -> None:
        self._failure_states.move(topic, callback, state)

    def owns_bridge(self) -> bool:
        return True

    async def bridged(self, broker: str) -> dict[str, int]:
        return (await self._read(_brokers)).get(broker, {})

    async def bridge(self, broker: str, positions: Mapping[str, int]) -> None:
        rows = [(position, broker, topic) for topic, position in positions.items()]
        await self._writer.submit(lambda database: database.executemany(_MOVE_BRIDGED, rows))

    async def unbridge(self, broker: str, topic: str) -> None:
        self._bridged.forget(broker, topic)
        await self._execute("DELETE FROM bridged WHERE broker = ? AND topic = ?", broker, topic)

    def move_bridged(self, broker: str, topic: str, position: int) -> None:
        self._bridged.move(broker, topic, position)

    def queued(self) -> int:
        return self._writer.queued()

    async def check(self) -> None:
        await self._execute(
            "INSERT INTO checked VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET times = times + 1"
        )

    async def close(self) -> None:
        for cursors in (self._cursors, self._failure_states, self._bridged):
            await cursors.close()
        await self._writer.close()
        self._reading.shutdown()
        self._reader.close()
        self._lock.release()


# Operations. `SqliteStore` runs each of them in a transaction.


def _log_states(database: sqlite3.Connection, topic: str | None = None) -> list[LogState]:
    if topic is None:
        return _select_states(database, "")
    return _select_states(database, "WHERE uri = ?", topic)


def _newest_logs(
    database: sqlite3.Connection, after: tuple[Instant, str] | None, limit: int
) -> list[LogState]:
    order = "ORDER BY received DESC, uri LIMIT ?"
    if after is None:
        return _select_states(database, order, limit)
    received, topic = to_microseconds(after[0]), after[1]
    same = _select_states(
        database, f"WHERE received = ? AND uri > ? {order}", received, topic, limit
    )
    rest = limit - len(same)
    return same + _select_states(database, f"WHERE received < ? {order}", received, rest)


def _select_states(database: sqlite3.Connection, which: str, *values: str | int) -> list[LogState]:
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


def _read_log(
    database: sqlite3.Connection, topic: str, *, after: int, since: Instant | None
) -> list[LogEntry]:
    where = ""
    values: list[str | int] = [topic, after]
    if since is not None:
        instant = to_microseconds(since)
        # The index on `until` finds the first position, because the log may be in another order.
        where = (
            f" {_LATER} AND position >= (SELECT min(position) FROM fragment"
            f" WHERE {_OF_TOPIC} {_LATER})"
        )
        values += [instant, instant, topic, instant, instant]
    return _page(database, f"AND position > ?{where} ORDER BY position", values)


def _read_changes(
    database: sqlite3.Connection, topic: str, *, since: Instant | None
) -> list[LogEntry]:
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
    sql = f"{_SELECT_ENTRY} WHERE {_OF_TOPIC} {which} LIMIT {_PAGE_ROWS}"
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


def _read_backlogs(
    database: sqlite3.Connection, topic: str, positions: Sequence[int]
) -> list[Backlog]:
    """Return the backlog after each position (`Store.backlogs`).

    Works backwards from the last position, so that each entry is counted only once.
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
    """A row of the `topic` table. Instants are in microseconds."""

    id: int
    position: int
    through: int
    received: int
    kept: int
    size: int


def _append(
    database: sqlite3.Connection,
    topic: str,
    fragments: Sequence[Fragment],
    *,
    after: int,
    replacing: int | None,
    now: Instant,
    retention: LogRetention,
) -> tuple[list[LogEntry], LogState] | None:
    """Append to a log (`LogStore.append`), and return the new entries and the log's state.

    Return None if the log does not end at `after`.
    """
    row = _find_topic(database, topic)
    if (row.position if row else 0) != after:
        return None
    if row is None:
        row = _new_topic(database, topic, fragments[0].until, now)
    if replacing is not None:
        _delete_fragments(database, row, "position = ?", replacing)
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
        # A log holds either one whole content or changes, so any new fragment replaces a whole
        # content.
        _delete_fragments(database, row, "whole AND position < ?", row.position)
    first, begins = _trim(database, row, now=now, retention=retention)
    _save_topic(database, row)
    if not added:
        return [], _log_states(database, topic)[0]
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
        whole=last.kind is FragmentKind.WHOLE,
    )
    return added, state


def _forget_log(database: sqlite3.Connection, topic: str, *, after: int) -> bool:
    """Delete a log. Return False if the log does not end at `after`."""
    row = _find_topic(database, topic)
    if row is None or row.position != after:
        return False
    database.execute("DELETE FROM fragment WHERE topic = ?", (row.id,))
    # Delete the cursors of the topic and its filtered topics, whose keys are the topic, a space and
    # the selection.
    cursors = "DELETE FROM bridged WHERE topic = ? OR substr(topic, 1, ?) = ?"
    database.execute(cursors, (topic, len(topic) + 1, topic + " "))
    database.execute("DELETE FROM topic WHERE id = ?", (row.id,))
    return True


def _find_topic(database: sqlite3.Connection, uri: str) -> _Topic | None:
    row = database.execute(
        "SELECT id, position, through, received, kept, size FROM topic WHERE uri = ?", (uri,)
    ).fetchone()
    return None if row is None else _Topic(*row)


def _new_topic(database: sqlite3.Connection, uri: str, until: Instant, now: Instant) -> _Topic:
    through, received = to_microseconds(until), to_microseconds(now)
    cursor = database.execute(
        "INSERT INTO topic (uri, position, through, received, kept, size)"
        " VALUES (?, 0, ?, ?, 0, 0)",
        (uri, through, received),
    )
    assert cursor.lastrowid is not None
    return _Topic(cursor.lastrowid, 0, through, received, 0, 0)


def _save_topic(database: sqlite3.Connection, topic: _Topic) -> None:
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
            fragment.kind is FragmentKind.WHOLE,
            fragment.content_type,
            fragment.body,
        ),
    )
    return cursor.lastrowid if cursor.rowcount else None


def _digest(fragment: Fragment) -> bytes:
    kind = b"whole " if fragment.kind is FragmentKind.WHOLE else b""
    return hashlib.sha256(kind + fragment.body).digest()


def _delete_fragments(
    database: sqlite3.Connection, topic: _Topic, where: str, *values: int
) -> None:
    """Delete fragments of a topic, and update its totals. The caller calls `_save_topic`."""
    kept, size = database.execute(
        "SELECT count(*), coalesce(sum(length(body)), 0) FROM fragment"
        f" WHERE topic = ? AND {where}",
        (topic.id, *values),
    ).fetchone()
    if kept:
        database.execute(f"DELETE FROM fragment WHERE topic = ? AND {where}", (topic.id, *values))
        topic.kept -= kept
        topic.size -= size


def _trim_log(
    database: sqlite3.Connection, topic: str, *, now: Instant, retention: LogRetention
) -> LogState | None:
    row = _find_topic(database, topic)
    if row is None:
        return None
    _trim(database, row, now=now, retention=retention)
    _save_topic(database, row)
    return _log_states(database, topic)[0]


def _trim(
    database: sqlite3.Connection, topic: _Topic, *, now: Instant, retention: LogRetention
) -> tuple[int, int]:
    """Delete the oldest fragments until the log is within its retention.

    A whole content is kept until another fragment replaces it, because it is the topic's current
    content.

    Returns:
        The position and the start of the oldest kept fragment. If none is kept, the position after
        the last fragment, and the end of the log.
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
        _delete_fragments(database, topic, "position <= ?", cut)
    return oldest


def _stored_subscriptions(database: sqlite3.Connection) -> list[StoredSubscription]:
    rows = database.execute(
        "SELECT topic, callback, secret, expires, position, suspended, client, state"
        " FROM subscription LEFT JOIN trouble USING (topic, callback)"
    )
    found = []
    for topic, callback, secret, expires, position, suspended, client, failure_state in rows:
        end = from_microseconds(expires)
        subscription = Subscription(topic, callback, secret, end, position, bool(suspended), client)
        found.append(StoredSubscription(subscription, failure_state))
    return found


def _save_subscription(database: sqlite3.Connection, subscription: Subscription) -> None:
    database.execute(
        "INSERT OR REPLACE INTO subscription"
        " (topic, callback, secret, expires, position, suspended, client)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            subscription.topic,
            subscription.callback,
            subscription.secret,
            to_microseconds(subscription.expires),
            subscription.position,
            subscription.suspended,
            subscription.client,
        ),
    )


def _delete_subscription(database: sqlite3.Connection, topic: str, callback: str) -> None:
    for table in ("subscription", "trouble"):
        database.execute(f"DELETE FROM {table} WHERE topic = ? AND callback = ?", (topic, callback))


def _brokers(database: sqlite3.Connection) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for broker, topic, position in database.execute("SELECT broker, topic, position FROM bridged"):
        found.setdefault(broker, {})[topic] = position
    return found


def _restore(database: sqlite3.Connection, records: SubscriptionRecords) -> int:
    """Store missing subscriptions and brokers (`SubscriptionStore.restore`)."""
    leases = {
        (topic, callback): expires
        for topic, callback, expires in database.execute(
            "SELECT topic, callback, expires FROM subscription"
        )
    }
    missing = [
        each
        for each in records.subscriptions
        if leases.get((each.topic, each.callback), -1) < to_microseconds(each.expires)
    ]
    for subscription in missing:
        _delete_subscription(database, subscription.topic, subscription.callback)
        _save_subscription(database, subscription)
    known = _brokers(database)
    for broker, positions in records.brokers.items():
        if broker not in known:
            rows = [(position, broker, topic) for topic, position in positions.items()]
            database.executemany(_MOVE_BRIDGED, rows)
    return len(missing)
