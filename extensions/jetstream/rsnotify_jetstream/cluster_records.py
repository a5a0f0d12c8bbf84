"""The records of the cluster: nodes, shards, and what all nodes have in common.

The version in each record and message of a cluster, which nodes of several versions share.

A version increases when a hub of the version before could not read the record. Additional fields do
not increase it: a hub ignores those that it does not know.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from rsnotify.errors import StorageError

T = TypeVar("T")


class _Versioned(Struct):
    version: int


def decode_versioned(value: bytes, kind: type[T], version: int, what: str) -> T:
    """Read a record in msgpack.

    Args:
        value: The record.
        kind: Its type.
        version: The newest version that this hub reads.
        what: What it is, for errors.

    Raises:
        StorageError: It is damaged, or a newer hub has written it.
    """
    try:
        found = msgspec.msgpack.decode(value, type=_Versioned).version
        if found <= version:
            return msgspec.msgpack.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise StorageError(f"{what} cannot be read: {error}") from None
    raise StorageError(newer(what, found, version))


def newer(what: str, found: int, version: int) -> str:
    """Return what to do about a record of a newer version."""
    return (
        f"{what} has version {found}, and this hub reads version {version}: it was written by a "
        "newer hub; upgrade this hub, too"
    )


#: The version of the format of these records.
VERSION = 1

META = "meta"
_NODE = "node."
_SHARD = "shard."


class ClusterMeta(Struct, frozen=True, kw_only=True):
    """What is decided when a cluster is created.

    Args:
        version: The version of the format.
        shards: The number of shards of subscriptions.
    """

    version: int = VERSION
    shards: int


class NodeRecord(Struct, frozen=True, kw_only=True):
    """A node as the others know it.

    Args:
        version: The version of the format.
        name: The name of its machine or container.
        url: Its URL.
        hub: The version of its hub.
        started: When it started, in seconds since 1970.
        renewals: How often it has renewed this record.
        draining: Whether it is about to stop.
        shards: The number of shards that it works on.
        bridges: Whether it has the settings for the bridge to the MQTT broker.
        behind: How many records of the stream it did not have yet; None if unknown.
        server: The server that it is connected to; empty if unknown.
    """

    version: int = VERSION
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


class ShardRecord(Struct, frozen=True, kw_only=True):
    """The owner of a shard, None if it is free; `epoch` increases with each change."""

    version: int = VERSION
    epoch: int
    owner: str | None


def node_key(node: str) -> str:
    return _NODE + node


def shard_key(shard: str) -> str:
    return _SHARD + shard


def node_of_key(key: str) -> str | None:
    return key.removeprefix(_NODE) if key.startswith(_NODE) else None


def shard_of_key(key: str) -> str | None:
    return key.removeprefix(_SHARD) if key.startswith(_SHARD) else None


def encode(record: ClusterMeta | NodeRecord | ShardRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def read_meta(value: bytes) -> ClusterMeta:
    return decode_versioned(value, ClusterMeta, VERSION, "the record of the cluster in NATS")


def read_node(value: bytes) -> NodeRecord:
    return decode_versioned(value, NodeRecord, VERSION, "the record of a node in NATS")


def read_shard(value: bytes) -> ShardRecord:
    return decode_versioned(value, ShardRecord, VERSION, "the record of a shard in NATS")
