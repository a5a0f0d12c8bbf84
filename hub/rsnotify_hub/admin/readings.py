"""The state of a hub at one instant, from which status, history and metrics are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from rsnotify_hub.admin.node_schemas import NodeList
from rsnotify_hub.admin.status_schemas import DiskInfo
from rsnotify_hub.statistics import BrokerState, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import LogState
from rsnotify_hub.subscriptions import DeliveryState


class HubReadings(Struct, frozen=True, kw_only=True):
    """The state of a hub.

    Args:
        lags: Returns how long each WebSub subscription that is not suspended has been behind, in
            seconds; 0 if it is up to date.
        connections: The number of open connections to the server, of any kind.
        live_queue: The bytes that wait in all WebSockets and event streams.
        delivery_queue: The number of WebSub deliveries that wait for a connection.
        commit_queue: The number of writes that wait for the next transaction.
        nodes: The nodes; only those of a cluster have metrics.
        brokers: The state of each broker that the hub has a bridge to.
        moved_shards: How many shards this node has taken, released and lost.
        disk: The disk with the data folder, if there is one.
    """

    version: str
    statistics: Statistics
    logs: Sequence[LogState]
    subscriptions: Mapping[DeliveryState, int]
    lags: Callable[[], Sequence[float]]
    connections: int
    websockets: int
    event_streams: int
    live_queue: int
    delivery_queue: int
    commit_queue: int
    brokers: Mapping[DeliveryTransport, BrokerState] = {}
    nodes: NodeList | None = None
    moved_shards: Mapping[str, int] = {}
    disk: DiskInfo | None = None
