"""The SQL of subscriptions. Each function runs inside a transaction of its caller."""

from __future__ import annotations

import sqlite3

from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify_hub.store.interface import StoredSubscription, SubscriptionRecords
from rsnotify_hub.store.sqlite.cursors import BRIDGED
from rsnotify_hub.subscriptions import Subscription


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
