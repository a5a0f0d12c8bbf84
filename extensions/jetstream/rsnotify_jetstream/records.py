"""What the nodes of a cluster store and send in msgpack, and its version.

Nodes of several versions run side by side. The version of a record increases when a hub of the
version before could not read it. Additional fields do not increase it: a hub ignores those that it
does not know.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import msgspec
from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify_hub.subscriptions import Subscription

#: The version of the records. A hub reads records of this version and older ones.
VERSION = 1

#: Keys in the bucket of the cluster: the record of the cluster, and what those of nodes and of
#: shards begin with.
META, NODES, SHARDS = "meta", "node.", "shard."

#: The cursor of a subscription: where it began, where it is, and the state of `note_trouble`. The
#: beginning tells it from the cursor of an earlier subscription of the same callback.
StoredCursor = tuple[int, int, bytes | None]


class BaseRecord(Struct, frozen=True, kw_only=True):
    """A record; `what` names it in errors."""

    what: ClassVar[str]
    version: int = VERSION


class _Versioned(Struct):
    version: int


R = TypeVar("R", bound=BaseRecord)


def encode(record: BaseRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(value: bytes, kind: type[R]) -> R:
    """Read a record.

    Raises:
        StorageError: It is damaged, or a newer hub has written it.
    """
    try:
        found = msgspec.msgpack.decode(value, type=_Versioned).version
        if found <= VERSION:
            return msgspec.msgpack.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise StorageError(f"{kind.what} cannot be read: {error}") from None
    raise StorageError(newer(kind.what, found, VERSION))


def newer(what: str, found: int, version: int) -> str:
    """Return what to do about a record of a newer version."""
    return (
        f"{what} has version {found}, and this hub reads version {version}: it was written by a "
        "newer hub; upgrade this hub, too"
    )


class ClusterMeta(BaseRecord, frozen=True, kw_only=True):
    """The number of shards of subscriptions, which is decided when a cluster is created."""

    what = "the record of the cluster in NATS"
    shards: int


class NodeRecord(BaseRecord, frozen=True, kw_only=True):
    """A node as the others know it.

    Args:
        name: The name of its machine or container.
        hub: The version of its hub.
        started: When it started, in seconds since 1970.
        renewals: How often it has renewed this record.
        draining: Whether it is about to stop.
        shards: The number of shards that it works on.
        bridges: Whether it has the settings of a bridge to a broker.
        behind: How many records of the stream it did not have yet; None if unknown.
        server: The server that it is connected to; empty if unknown.
    """

    what = "the record of a node in NATS"
    name: str = ""
    url: str = ""
    hub: str = ""
    started: float = 0.0
    renewals: int = 0
    draining: bool = False
    shards: int = 0
    bridges: bool = True
    behind: int | None = None
    server: str = ""


class ShardRecord(BaseRecord, frozen=True, kw_only=True):
    """The owner of a shard, None if it is free; `epoch` increases with each change."""

    what = "the record of a shard in NATS"
    epoch: int
    owner: str | None


class SubscriptionRecord(BaseRecord, frozen=True, kw_only=True):
    """A subscription; `begins` is its position when it was new, `expires` microseconds."""

    what = "a record of subscriptions in NATS"
    topic: str
    callback: str
    secret: str | None
    expires: int
    begins: int
    suspended: bool
    client: str


class CursorsRecord(BaseRecord, frozen=True, kw_only=True):
    """Cursors of the subscriptions of a shard, by the bytes of their ids.

    `parts` is the number of the records that have them together (`FencedMap`).
    """

    what = "a record of subscriptions in NATS"
    epoch: int
    parts: int = 1
    cursors: dict[bytes, StoredCursor] = {}


class BridgeRecord(BaseRecord, frozen=True, kw_only=True):
    """Cursors of a broker, by the keys of selections; `parts` as of `CursorsRecord`."""

    what = "a record of subscriptions in NATS"
    epoch: int
    parts: int = 1
    broker: str
    cursors: dict[str, int] = {}


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
