"""The SQL of subscriptions. Each function runs inside a transaction of its caller.

Writes the cursors of subscriptions and brokers, and failure states, in batches.

A flush for each would delay publishers. A batch that cannot be written is retried; if a crash
loses it, the hub delivers some fragments twice.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3

from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify_hub.store.interface import StoredSubscription, SubscriptionRecords
from rsnotify_hub.store.sqlite_commit import GroupCommit
from rsnotify_hub.subscriptions import Subscription

log = logging.getLogger("rsnotify.hub.store")

#: How long a moved cursor waits for others to be written with it, in seconds.
CURSOR_DELAY = 0.25
#: The wait before a batch that could not be written is retried, in seconds.
RETRY_DELAY = 5.0

_Cursors = dict[tuple[str, str], int | bytes | None]

#: Moves the cursor of a subscription, by topic and callback.
SUBSCRIPTION = "UPDATE subscription SET position = ? WHERE topic = ? AND callback = ?"
#: Stores how the deliveries of a subscription fail, by topic and callback.
TROUBLE = (
    "INSERT INTO trouble (state, topic, callback)"
    " SELECT ?, topic, callback FROM subscription WHERE topic = ? AND callback = ?"
    " ON CONFLICT (topic, callback) DO UPDATE SET state = excluded.state"
)
#: Moves the cursor of a topic at a broker, by broker and topic.
BRIDGED = (
    "INSERT INTO bridged (position, broker, topic) VALUES (?, ?, ?)"
    " ON CONFLICT (broker, topic) DO UPDATE SET position = excluded.position"
)


class CursorWriter:
    """Writes cursors of one kind.

    Args:
        sql: The statement that moves a cursor, given its position and the two parts of its key.
    """

    def __init__(self, writer: GroupCommit, sql: str) -> None:
        self._writer = writer
        self._sql = sql
        self._loop = asyncio.get_running_loop()
        self._moved: _Cursors = {}
        self._flushing: _Cursors = {}
        self._flush: asyncio.TimerHandle | None = None
        self._is_writing = False

    def move(self, first: str, second: str, position: int | bytes | None) -> None:
        """Move a cursor, or set a state, by the two parts of its key."""
        self._moved[first, second] = position
        if self._flush is None:
            self._flush_in(CURSOR_DELAY)

    def forget(self, first: str, second: str) -> None:
        """Discard an unwritten move, before a write that replaces it."""
        for cursors in (self._moved, self._flushing):
            cursors.pop((first, second), None)

    def _flush_in(self, seconds: float) -> None:
        if self._flush is None and self._moved and not self._is_writing:
            self._flush = self._loop.call_later(seconds, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        self._is_writing = True
        self._flushing, self._moved = self._moved, {}
        rows = [(position, *key) for key, position in self._flushing.items()]
        written = self._writer.submit(lambda database: database.executemany(self._sql, rows))
        written.add_done_callback(self._flushed)

    def _flushed(self, written: asyncio.Future[sqlite3.Cursor]) -> None:
        self._is_writing = False
        flushed, self._flushing = self._flushing, {}
        if written.cancelled() or (error := written.exception()) is None:
            self._flush_in(CURSOR_DELAY)
            return
        log.warning(
            "cursors could not be saved yet; after a crash some fragments are delivered twice: %s",
            error,
        )
        self._moved = flushed | self._moved
        self._flush_in(RETRY_DELAY)

    async def close(self) -> None:
        await self._writer.idle()
        if self._flush is not None:
            self._flush.cancel()
            self._flush_now()
            await self._writer.idle()
        if self._flush is not None:  # the write failed
            self._flush.cancel()


def stored(database: sqlite3.Connection) -> list[StoredSubscription]:
    rows = database.execute(
        "SELECT topic, callback, secret, expires, position, suspended, client, state"
        " FROM subscription LEFT JOIN trouble USING (topic, callback)"
    )
    return [_stored(*row) for row in rows]


def _stored(
    topic: str,
    callback: str,
    secret: str | None,
    expires: int,
    position: int,
    suspended: int,
    client: str,
    trouble: bytes | None,
) -> StoredSubscription:
    lease_end = from_microseconds(expires)
    return StoredSubscription(
        Subscription(topic, callback, secret, lease_end, position, bool(suspended), client), trouble
    )


def save(database: sqlite3.Connection, subscription: Subscription) -> None:
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


def delete(database: sqlite3.Connection, topic: str, callback: str) -> None:
    for table in ("subscription", "trouble"):
        database.execute(f"DELETE FROM {table} WHERE topic = ? AND callback = ?", (topic, callback))


def brokers(database: sqlite3.Connection) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for broker, topic, position in database.execute("SELECT broker, topic, position FROM bridged"):
        found.setdefault(broker, {})[topic] = position
    return found


def restore(database: sqlite3.Connection, records: SubscriptionRecords) -> int:
    """Store what is missing (`SubscriptionStore.restore`)."""
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
        delete(database, subscription.topic, subscription.callback)
        save(database, subscription)
    known = brokers(database)
    for broker, positions in records.brokers.items():
        if broker not in known:
            rows = [(position, broker, topic) for topic, position in positions.items()]
            database.executemany(BRIDGED, rows)
    return len(missing)
