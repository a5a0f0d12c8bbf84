"""The records that the nodes of a cluster store and send, encoded as msgpack, and their version.

Nodes with different versions of the hub may run side by side. The version of the records increases
when a hub of the previous version could not read them. Additional fields do not increase it,
because a hub ignores fields that it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify_hub.websub_subscription import Subscription

#: The version of the records. A hub reads records of this version and older ones.
VERSION = 1

#: Keys in the cluster's bucket: that of the cluster's record, and the prefixes of the keys of nodes
#: and shards.
META, NODES, SHARDS = "meta", "node.", "shard."

#: The cursor of a subscription: its first position, its current position, and its failure state.
#: The first position distinguishes it from the cursor of an earlier subscription of the callback.
StoredCursor = tuple[int, int, bytes | None]


class BaseRecord(Struct, frozen=True, kw_only=True):
    """A record. `what` describes it in error messages."""

    what: ClassVar[str]
    version: int = VERSION


class _Versioned(Struct):
    version: int


K = TypeVar("K", bound=bytes | str)
V = TypeVar("V")
R = TypeVar("R", bound=BaseRecord)


def encode(record: BaseRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(value: bytes, kind: type[R]) -> R:
    """Decode a record.

    Raises:
        StorageError: The record is damaged, or a newer hub has written it.
    """
    try:
        found = msgspec.msgpack.decode(value, type=_Versioned).version
        if found <= VERSION:
            return msgspec.msgpack.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise StorageError(f"cannot read {kind.what}: {error}") from None
    raise StorageError(newer(kind.what, found, VERSION))


def newer(what: str, found: int, version: int) -> str:
    """Return the error message for a record of a newer version."""
    return (
        f"{what} has version {found}, but this hub only reads version {version}: a newer hub has "
        "written it; upgrade this hub, too"
    )


class ClusterMeta(BaseRecord, frozen=True, kw_only=True):
    """The number of shards of subscriptions, fixed when the cluster is created."""

    what = "the record of the cluster in NATS"
    shards: int


class NodeRecord(BaseRecord, frozen=True, kw_only=True):
    """The state of a node that it shares with the other nodes.

    Args:
        name: The name of the node's machine or container.
        hub: The version of the node's hub.
        renewals: How often the node has renewed this record.
        draining: Whether the node is about to stop.
        bridges: Whether the node has the settings of a bridge to a broker.
        behind: The number of records in the stream that the node did not have yet, if known.
        server: The NATS server that the node is connected to; empty if unknown.
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
    """The owner of a shard, if any. `epoch` increases with each change of ownership."""

    what = "the record of a shard in NATS"
    epoch: int
    owner: str | None


class SubscriptionRecord(BaseRecord, frozen=True, kw_only=True):
    """A subscription.

    `begins` is the first position of its cursor. `expires` is in microseconds since 1970.
    """

    what = "a record of subscriptions in NATS"
    topic: str
    callback: str
    secret: str | None
    expires: int
    begins: int
    suspended: bool
    client: str


class FencedCursors(BaseRecord, Generic[K, V], frozen=True, kw_only=True):
    """All or some of the cursors in a `FencedMap`.

    `epoch` is the epoch of their owner. `parts` is the number of records in the map, which is valid
    only in the first record.
    """

    what = "a record of subscriptions in NATS"
    epoch: int
    parts: int = 1
    if TYPE_CHECKING:  # defined in the subclasses, because its place among the fields is stored
        cursors: dict[K, V] = {}


class CursorsRecord(FencedCursors[bytes, StoredCursor], frozen=True, kw_only=True):
    """The cursors of a shard's subscriptions, by the bytes of their ids."""

    cursors: dict[bytes, StoredCursor] = {}


class BridgeRecord(FencedCursors[str, int], frozen=True, kw_only=True):
    """Cursors of a broker, by the keys of selections."""

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
    """Return the cursor of a subscription, or its first position if `cursor` is not its own."""
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
