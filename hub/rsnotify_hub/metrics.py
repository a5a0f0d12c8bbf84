"""`GET /metrics`: the hub's metrics in the Prometheus format.

The metrics are computed from existing state on request, so they cost nothing per fragment. No label
contains text from clients, so the number of series is fixed. For example, a lag is labelled by
rank, not by callback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import product

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, InfoMetricFamily

from rsnotify.runtime.counters import Histogram
from rsnotify.runtime.status_endpoints import Families
from rsnotify.runtime.transport_extensions import offered_schemes
from rsnotify_hub.admin.hub_readings import HubReadings
from rsnotify_hub.admin.part_states import parts_of_node
from rsnotify_hub.admin.schema_conversion import status_info, transport_names
from rsnotify_hub.admin.schemas import PartState
from rsnotify_hub.statistics import BrokerInfo, DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import LogState
from rsnotify_hub.store.nodes import NodeList, StreamInfo
from rsnotify_hub.websub_subscription import DeliveryState

#: The upper bounds of the lag buckets, in seconds.
LAG_BUCKETS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
#: Number of the longest lags that are reported, by rank.
LONGEST_LAGS = 10

_PREFIX = "rsnotify_hub_"
_named = Families(_PREFIX)
_gauge, _counter = _named.gauge, _named.counter
_UNKNOWN = float("nan")
_PART_STATES = (PartState.IN_ORDER, PartState.WATCH, PartState.TROUBLE)


def metric_families(readings: HubReadings) -> Iterator[Metric]:
    yield InfoMetricFamily(_PREFIX[:-1], "The hub", value={"version": readings.version})
    yield from _accepted(readings.statistics)
    yield from _delivered(readings.statistics)
    yield from _logs(readings.logs)
    yield from _subscriptions(readings)
    yield _gauge(
        "connections",
        "Open connections to the server, including WebSockets and event streams",
        readings.connections,
    )
    yield _gauge(
        "websockets", "Open WebSockets, of subscribers and of Sources", readings.live.websockets
    )
    yield _gauge("event_streams", "Open event streams", readings.live.event_streams)
    yield _named.gauges(
        "subscribers",
        "WebSub subscriptions, WebSockets that receive at least one topic, and event streams;"
        " readers of a broker are unknown",
        "way",
        {
            DeliveryTransport.WEBSUB: sum(readings.subscriptions.values()),
            DeliveryTransport.WEBSOCKET: readings.live.websocket_subscribers,
            DeliveryTransport.SSE: readings.live.event_streams,
        },
    )
    yield _gauge(
        "publishers",
        "WebSockets on which a Source publishes at least one topic",
        readings.live.publishers,
    )
    yield _gauge(
        "slow_connections",
        "WebSockets and event streams for which data has been waiting for 5 seconds",
        readings.live.slow,
    )
    yield _gauge(
        "live_queue_bytes",
        "Bytes waiting to be sent on WebSockets and event streams",
        readings.live.live_queue,
    )
    yield _gauge(
        "delivery_queue", "WebSub deliveries waiting for a connection", readings.delivery_queue
    )
    yield _gauge("commit_queue", "Writes waiting for the next transaction", readings.commit_queue)
    for way in (DeliveryTransport.MQTT, *offered_schemes()):
        state = readings.brokers.get(way, BrokerInfo(False, 0))
        name, broker = re.sub(r"\W", "_", way), f"{way.upper()} broker"
        yield _gauge(
            f"{name}_connected", f"Whether the hub is connected to the {broker}", state.connected
        )
        yield _gauge(
            f"{name}_topics_behind",
            f"Topics that the {broker} has not received completely",
            state.behind,
        )
    status = status_info(readings)
    yield _gauge("silent_sources", "Silent Sources, counted by host", status.silent)
    yield _named.gauges(
        "part_state",
        "State of each part of the hub, as this node sees it: 0 in order, 1 to be watched, 2 in"
        " trouble",
        "part",
        {part.name: _PART_STATES.index(part.state) for part in parts_of_node(status, readings)},
    )
    if readings.nodes is not None and readings.nodes.stream is not None:
        yield from _cluster(readings.nodes, readings.nodes.stream, readings.moved_shards)


def _cluster(nodes: NodeList, stream: StreamInfo, moved: Mapping[str, int]) -> Iterator[Metric]:
    # A fenced node cannot know this.
    alive = _UNKNOWN if nodes.free is None else sum(bool(row.alive) for row in nodes.rows)
    yield _gauge(
        "nodes_alive", "Nodes that are alive, as this one sees them; NaN while it is fenced", alive
    )
    owned = sum(row.shards for row in nodes.rows if row.this)
    yield _gauge("shards_owned", "Shards of subscriptions that this node owns", owned)
    free = _UNKNOWN if nodes.free is None else nodes.free
    yield _gauge(
        "shards_free",
        "Shards that no living node owns, so that their subscriptions receive nothing;"
        " NaN while this node is fenced",
        free,
    )
    yield _named.counters(
        "shards_moved",
        "Shards that this node took, released or lost; it loses one if it is too slow or cut off",
        "how",
        moved,
    )
    yield _gauge("nats_connected", "Whether this node is connected to NATS", stream.connected)
    behind = [row.behind for row in nodes.rows if row.this and row.behind is not None]
    yield _gauge(
        "stream_behind",
        "Records of the stream that this node does not have; NaN while it cannot know",
        sum(behind) if behind else _UNKNOWN,
    )
    lagging = sum(not copy.current for copy in stream.copies)
    yield _gauge(
        "stream_copies_behind", "Copies of the stream on NATS servers that are not current", lagging
    )


def _accepted(statistics: Statistics) -> Iterator[Metric]:
    yield _counter("fragments", "Fragments that became durable", statistics.accepted)
    yield _counter("fragment_bytes", "Bytes of these fragments", statistics.accepted_bytes)
    yield _counter("duplicate_fragments", "Fragments that changed nothing", statistics.duplicates)
    yield _named.counters(
        "refused",
        "Refused requests; fault: an MQTT message lost to an internal error;"
        " xmpp-message: a message to the hub's account",
        "code",
        dict(sorted(statistics.refused.items())),
    )


def _delivered(statistics: Statistics) -> Iterator[Metric]:
    deliveries = CounterMetricFamily(
        _PREFIX + "deliveries",
        "Deliveries and attempts; dashboard: its pages",
        labels=["way", "outcome"],
    )
    ways = transport_names()
    for way, outcome in product(ways, DeliveryOutcome):
        deliveries.add_metric([way, outcome], statistics.deliveries[way, outcome])
    yield deliveries
    sizes = {way: statistics.delivered_bytes[way] for way in ways}
    yield _named.counters("delivered_bytes", "Bytes of the deliveries", "way", sizes)
    yield _counter("retries", "Retried deliveries", statistics.retries)


def _logs(logs: Sequence[LogState]) -> Iterator[Metric]:
    yield _gauge("topics", "Topics with a log", len(logs))
    yield _gauge("log_fragments", "Kept fragments", sum(log.kept for log in logs))
    yield _gauge("log_bytes", "Bytes of the kept fragments", sum(log.size for log in logs))


def _subscriptions(readings: HubReadings) -> Iterator[Metric]:
    states: dict[str, int] = {
        state: readings.subscriptions.get(state, 0) for state in DeliveryState
    }
    yield _named.gauges("subscriptions", "WebSub subscriptions", "state", states)
    lags = readings.lags()
    yield _named.histogram(
        "lag_seconds",
        "How long each WebSub subscription has been behind; 0 if it is up to date",
        Histogram(LAG_BUCKETS, lags),
    )
    worst = {str(rank): lag for rank, lag in enumerate(nlargest(LONGEST_LAGS, lags), 1)}
    yield _named.gauges("lag_seconds_worst", f"The {LONGEST_LAGS} longest lags", "rank", worst)
    behind = sum(lag > 0 for lag in lags)
    yield _gauge(
        "subscriptions_behind", "WebSub subscriptions with a backlog, except suspended ones", behind
    )
