"""The records of subscriptions and cursors in JetStream, in msgpack."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify_hub.subscriptions import Subscription
from rsnotify_jetstream.cluster_records import decode_versioned

#: The version of the format. A hub reads records of this version and older ones.
VERSION = 1

#: The cursor of a subscription: where it began, where it is, and the state of `note_trouble`. The
#: beginning tells it from the cursor of an earlier subscription of the same callback.
StoredCursor = tuple[int, int, bytes | None]


class SubscriptionRecord(Struct, frozen=True, kw_only=True):
    """A subscription; `begins` is its position when it was new, `expires` microseconds."""

    version: int = VERSION
    topic: str
    callback: str
    secret: str | None
    expires: int
    begins: int
    suspended: bool
    client: str


class CursorsRecord(Struct, frozen=True, kw_only=True):
    """Cursors of the subscriptions of a shard, by the bytes of their ids.

    `parts` is the number of the records that have them together (`FencedMap`).
    """

    version: int = VERSION
    epoch: int
    parts: int = 1
    cursors: dict[bytes, StoredCursor] = {}


class BridgeRecord(Struct, frozen=True, kw_only=True):
    """Cursors of a broker, by the keys of selections; `parts` as of `CursorsRecord`."""

    version: int = VERSION
    epoch: int
    parts: int = 1
    broker: str
    cursors: dict[str, int] = {}


T = TypeVar("T", SubscriptionRecord, CursorsRecord, BridgeRecord)


def encode(record: SubscriptionRecord | CursorsRecord | BridgeRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(value: bytes, kind: type[T]) -> T:
    """Read a record.

    Raises:
        StorageError: It is none, or a newer hub has written it.
    """
    return decode_versioned(value, kind, VERSION, "a record of subscriptions in NATS")


def record_of(subscription: Subscription, begins: int) -> SubscriptionRecord:
    return SubscriptionRecord(
        topic=subscription.topic,
        callback=subscription.callback,
        secret=subscription.secret,
        expires=to_microseconds(subscription.expires),
        begins=begins,
        suspended=subscription.suspended,
        client=subscription.client,
    )


def cursor_of(record: SubscriptionRecord, cursor: StoredCursor | None) -> StoredCursor:
    """Return the cursor of a subscription, or where it began if that is of an earlier one."""
    if cursor is None or cursor[0] != record.begins:
        return record.begins, record.begins, None
    return cursor


def subscription_of(record: SubscriptionRecord, position: int) -> Subscription:
    return Subscription(
        record.topic,
        record.callback,
        record.secret,
        from_microseconds(record.expires),
        position,
        record.suspended,
        record.client,
    )
