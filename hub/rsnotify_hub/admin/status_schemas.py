"""The JSON of the admin API about the hub as a whole, now and during the last day."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from rsnotify.format.datetimes import Instant
from rsnotify_hub.subscriptions import DeliveryState


class BrokerInfo(Struct, frozen=True):
    """The state of a broker.

    Args:
        connected: Whether a node of the hub is connected to it.
        behind: The number of topics that it has not received completely.
        since: Since when it has not been connected; null while it is.
        error: Why the last attempt to connect failed, or the connection ended; null while it is
            connected.
    """

    connected: bool
    behind: int
    since: Annotated[Instant, Meta(tz=True)] | None = None
    error: str | None = None


class DiskInfo(Struct, frozen=True):
    """A disk.

    Args:
        free: The bytes that the hub may still write.
        size: Its bytes.
    """

    free: int
    size: int


class StatusInfo(Struct, frozen=True, kw_only=True):
    """The hub as a whole; on a cluster, all nodes that answered at once.

    Args:
        version: The version of the hub, or of this node.
        started: When it, or this node, started; the counts of each node begin when it starts.
        now: The time of its clock.
        nodes: How many nodes these numbers are about.
        topics: The number of topics with a log.
        subscriptions: The number of WebSub subscriptions.
        states: The number of subscriptions in each state.
        websockets: The number of open WebSockets.
        event_streams: The number of open event streams.
        accepted: Fragments that became durable.
        accepted_bytes: Their bytes.
        deliveries: Deliveries and attempts, by transport and outcome.
        log_bytes: The bytes of all kept fragments.
        silent: The number of Sources, by the hosts of topics, that have been silent for 15 minutes.
        connections: Open connections to the server.
        live_queue: The bytes that wait in WebSockets and event streams.
        delivery_queue: The number of WebSub deliveries that wait for a connection.
        commit_queue: The number of writes that wait for the next transaction.
        brokers: The state of each broker that the hub has a bridge to, by transport.
        disk: The disk with the data folder; null on a cluster.
        admin: Always true, since only admins receive this.
    """

    version: str
    started: Annotated[Instant, Meta(tz=True)]
    now: Annotated[Instant, Meta(tz=True)]
    nodes: int = 1
    topics: int
    subscriptions: int
    states: dict[DeliveryState, int]
    websockets: int
    event_streams: int
    accepted: int
    accepted_bytes: int
    deliveries: dict[str, dict[str, int]]
    log_bytes: int
    silent: int = 0
    connections: int = 0
    live_queue: int = 0
    delivery_queue: int = 0
    commit_queue: int = 0
    brokers: dict[str, BrokerInfo] = {}
    disk: DiskInfo | None = None
    admin: bool = True


class MinuteInfo(Struct, frozen=True, array_like=True):
    """What the hub did in one minute, and its state at the end of that.

    Args:
        minute: The minute, counted since 1970-01-01T00:00Z.
        accepted: Fragments that became durable.
        delivered: Deliveries, over all transports.
        failed: Attempts that failed.
        subscribers: The number of WebSockets, event streams and WebSub subscriptions.
        troubled: The number of subscriptions that were retried or given up.
    """

    minute: int
    accepted: int
    delivered: int
    failed: int
    subscribers: int
    troubled: int


class HistoryInfo(Struct, frozen=True):
    """The minutes of the last day in which the hub ran, oldest first.

    Args:
        minutes: The minutes, each as an array of the numbers that `MinuteInfo` names.
    """

    minutes: tuple[MinuteInfo, ...]
