"""The records of the cluster: nodes, shards, and what all nodes have in common."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from rsnotify_hub.cluster.versions import decode_versioned

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
