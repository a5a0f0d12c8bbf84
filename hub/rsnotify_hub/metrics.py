"""`GET /metrics`: the hub's metrics in the Prometheus format.

Nothing is counted here. The metrics are read from existing state on request, so they cost nothing
per fragment. No label contains text from clients. For example, a lag is labelled by rank, not by
callback, so the number of series is fixed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from time import perf_counter

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from rsnotify.runtime.counters import Histogram
from rsnotify.runtime.status_server import Families, MetricsText
from rsnotify.runtime.transports import offered_schemes
from rsnotify_hub.admin.parts import metric_parts
from rsnotify_hub.admin.schemas import PartState
from rsnotify_hub.admin.views import HubReadings, transport_names
from rsnotify_hub.admin.views import status as status_of
from rsnotify_hub.statistics import (
    BrokerInfo,
    DeliveryOutcome,
    DeliveryTransport,
    Statistics,
)
from rsnotify_hub.store.interface import LogState
from rsnotify_hub.store.nodes import NodeList, StreamInfo
from rsnotify_hub.subscriptions import DeliveryState

#: The upper bounds of the lag buckets, in seconds.
LAG_BUCKETS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
#: Number of the longest lags, which are shown by rank.
WORST = 10

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
        "Open connections to the server, with WebSockets and event streams",
        readings.connections,
    )
    yield _gauge(
        "websockets", "Open WebSockets, of subscribers and of Sources", readings.websockets
    )
    yield _gauge("event_streams", "Open event streams", readings.event_streams)
    yield _subscribers(readings)
    yield _gauge(
        "publishers",
        "WebSockets on which a Source publishes at least one topic",
        readings.publishers,
    )
    yield _gauge(
        "slow_connections",
        "WebSockets and event streams for whose client something has waited for 5 seconds",
        readings.slow,
    )
    yield _gauge(
        "live_queue_bytes",
        "Bytes that wait in all WebSockets and event streams",
        readings.live_queue,
    )
    yield _gauge(
        "delivery_queue", "WebSub deliveries that wait for a connection", readings.delivery_queue
    )
    yield _gauge("commit_queue", "Writes that wait for the next transaction", readings.commit_queue)
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
    status = status_of(readings)
    yield _gauge("silent_sources", "Sources, by host, that are silent", status.silent)
    parts = GaugeMetricFamily(
        _PREFIX + "part_state",
        "State of each part of the hub, as this node sees it: 0 in order, 1 to be watched, 2 in"
        " trouble",
        labels=["part"],
    )
    for part in metric_parts(status, readings):
        parts.add_metric([part.name], _PART_STATES.index(part.state))
    yield parts
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
    moves = CounterMetricFamily(
        _PREFIX + "shards_moved",
        "Shards that this node took, released or lost; it loses one if it is too slow or cut off",
        labels=["how"],
    )
    for how, count in moved.items():
        moves.add_metric([how], count)
    yield moves
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


def _subscribers(readings: HubReadings) -> Metric:
    family = GaugeMetricFamily(
        _PREFIX + "subscribers",
        "WebSub subscriptions, WebSockets that receive at least one topic, and event streams;"
        " readers of a broker are unknown",
        labels=["way"],
    )
    family.add_metric([DeliveryTransport.WEBSUB], sum(readings.subscriptions.values()))
    family.add_metric([DeliveryTransport.WEBSOCKET], readings.websocket_subscribers)
    family.add_metric([DeliveryTransport.SSE], readings.event_streams)
    return family


def _accepted(statistics: Statistics) -> Iterator[Metric]:
    yield _counter("fragments", "Fragments that became durable", statistics.accepted)
    yield _counter("fragment_bytes", "Bytes of these fragments", statistics.accepted_bytes)
    yield _counter("duplicate_fragments", "Fragments that changed nothing", statistics.duplicates)
    refused = CounterMetricFamily(
        _PREFIX + "refused",
        "Refused requests; fault: came over MQTT and was lost by a fault of the hub;"
        " xmpp-message: a message to the account of the hub",
        labels=["code"],
    )
    for code, count in sorted(statistics.refused.items()):
        refused.add_metric([code], count)
    yield refused


def _delivered(statistics: Statistics) -> Iterator[Metric]:
    deliveries = CounterMetricFamily(
        _PREFIX + "deliveries",
        "Deliveries and attempts; dashboard: its pages",
        labels=["way", "outcome"],
    )
    sizes = CounterMetricFamily(
        _PREFIX + "delivered_bytes", "Bytes of the deliveries", labels=["way"]
    )
    for way in transport_names():
        sizes.add_metric([way], statistics.delivered_bytes[way])
        for outcome in DeliveryOutcome:
            deliveries.add_metric([way, outcome], statistics.deliveries[way, outcome])
    yield deliveries
    yield sizes
    yield _counter("retries", "Retried deliveries", statistics.retries)


def _logs(logs: Sequence[LogState]) -> Iterator[Metric]:
    yield _gauge("topics", "Topics with a log", len(logs))
    yield _gauge("log_fragments", "Kept fragments", sum(log.kept for log in logs))
    yield _gauge("log_bytes", "Bytes of the kept fragments", sum(log.size for log in logs))


def _subscriptions(readings: HubReadings) -> Iterator[Metric]:
    states = GaugeMetricFamily(_PREFIX + "subscriptions", "WebSub subscriptions", labels=["state"])
    for state in DeliveryState:
        states.add_metric([state], readings.subscriptions.get(state, 0))
    yield states
    lags = readings.lags()
    yield _named.histogram(
        "lag_seconds",
        "How long each WebSub subscription has been behind; 0 if it is up to date",
        Histogram(LAG_BUCKETS, lags),
    )
    worst = GaugeMetricFamily(
        _PREFIX + "lag_seconds_worst", f"The {WORST} longest lags", labels=["rank"]
    )
    for rank, lag in enumerate(nlargest(WORST, lags), 1):
        worst.add_metric([str(rank)], lag)
    yield worst
    behind = sum(lag > 0 for lag in lags)
    yield _gauge(
        "subscriptions_behind", "WebSub subscriptions with a backlog, except suspended ones", behind
    )


class Metrics(MetricsText):
    """The metrics of one hub and its process."""

    def __init__(
        self, read: Callable[[], HubReadings], timer: Callable[[], float] = perf_counter
    ) -> None:
        super().__init__(lambda: metric_families(read()), timer)
