"""`GET /metrics`: the hub's numbers as Prometheus reads them.

Nothing is counted here. What is kept anyway is looked at when somebody asks, so a fragment
costs the hub nothing more. No label has a stranger's word in it: a lag belongs to a rank, not
to a callback, so the number of series is the same whatever comes. Nor can a stranger who asks
again and again take up the hub's time: an answer is given again for ten times as long as it
took to make.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from time import perf_counter

from aiohttp import web
from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from rsnotify_hub.log.store import LogState
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.websub.delivery.delivery import DeliveryState

#: Where the buckets of lags end, in seconds: from a blink to a day.
LAG_BUCKETS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
#: How many of the longest lags are told one by one.
WORST = 10
#: For how many times as long as it took to make an answer is given again.
REST = 10

_PREFIX = "rsnotify_hub_"


class Bridged(Struct, frozen=True):
    """How it stands with an MQTT broker.

    Args:
        connected: Whether there is a connection.
        behind: How many topics it has not got all of.
    """

    connected: bool
    behind: int


class Readings(Struct, frozen=True, kw_only=True):
    """What is looked at.

    Args:
        version: The version of the hub.
        statistics: What it has done.
        logs: The state of every log.
        subscriptions: How many WebSub subscriptions are in each state.
        lags: How long each WebSub subscription that is not suspended has been behind, in seconds;
            0 for up to date.
        connections: How many connections to the server are open, of any kind.
        websockets: How many WebSockets are open.
        websocket_queue: Bytes that wait in all of them.
        delivery_queue: WebSub deliveries that wait for their turn.
        commit_queue: Writes that wait for the next transaction.
        mqtt: How it stands with the MQTT broker; None where there is none.
    """

    version: str
    statistics: Statistics
    logs: Sequence[LogState]
    subscriptions: Mapping[DeliveryState, int]
    lags: Sequence[float]
    connections: int
    websockets: int
    websocket_queue: int
    delivery_queue: int
    commit_queue: int
    mqtt: Bridged | None = None


def families(readings: Readings) -> Iterator[Metric]:
    """Yield every family of metrics of a hub."""
    yield InfoMetricFamily(_PREFIX[:-1], "The hub", value={"version": readings.version})
    yield from _accepted(readings.statistics)
    yield from _delivered(readings.statistics)
    yield from _logs(readings.logs)
    yield from _subscriptions(readings)
    yield _gauge("connections", "Open connections to the server", readings.connections)
    yield _gauge("websockets", "Open WebSockets", readings.websockets)
    yield _gauge(
        "websocket_queue_bytes", "Bytes that wait in all WebSockets", readings.websocket_queue
    )
    yield _gauge(
        "delivery_queue", "WebSub deliveries that wait for their turn", readings.delivery_queue
    )
    yield _gauge("commit_queue", "Writes that wait for the next transaction", readings.commit_queue)
    mqtt = readings.mqtt or Bridged(False, 0)
    yield _gauge("mqtt_connected", "Whether the MQTT broker is connected", mqtt.connected)
    yield _gauge("mqtt_topics_behind", "Topics that the MQTT broker lacks a part of", mqtt.behind)


def _accepted(statistics: Statistics) -> Iterator[Metric]:
    yield _counter("fragments", "Fragments that became durable", statistics.accepted)
    yield _counter("fragment_bytes", "Bytes of these fragments", statistics.accepted_bytes)
    yield _counter("duplicate_fragments", "Fragments that said nothing new", statistics.duplicates)
    refused = CounterMetricFamily(_PREFIX + "refused", "Refused requests", labels=["code"])
    for code, count in sorted(statistics.refused.items()):
        refused.add_metric([code], count)
    yield refused


def _delivered(statistics: Statistics) -> Iterator[Metric]:
    deliveries = CounterMetricFamily(
        _PREFIX + "deliveries", "Deliveries and tries", labels=["way", "outcome"]
    )
    sizes = CounterMetricFamily(
        _PREFIX + "delivered_bytes", "Bytes of what was delivered", labels=["way"]
    )
    for way in DeliveryTransport:
        sizes.add_metric([way], statistics.delivered_bytes[way])
        for outcome in DeliveryOutcome:
            deliveries.add_metric([way, outcome], statistics.deliveries[way, outcome])
    yield deliveries
    yield sizes
    yield _counter("retries", "Deliveries that were tried again", statistics.retries)


def _logs(logs: Sequence[LogState]) -> Iterator[Metric]:
    yield _gauge("topics", "Topics with a log", len(logs))
    yield _gauge("log_fragments", "Fragments kept", sum(log.kept for log in logs))
    yield _gauge("log_bytes", "Bytes of the fragments kept", sum(log.size for log in logs))


def _subscriptions(readings: Readings) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        _PREFIX + "subscriptions", "WebSub subscriptions by state", labels=["state"]
    )
    for state in DeliveryState:
        states.add_metric([state], readings.subscriptions.get(state, 0))
    yield states
    yield HistogramMetricFamily(
        _PREFIX + "lag_seconds",
        "How long the WebSub subscriptions have been behind, as they stand now",
        buckets=_buckets(readings.lags),
        sum_value=sum(readings.lags),
    )
    worst = GaugeMetricFamily(
        _PREFIX + "lag_seconds_worst", "The longest lags, by rank", labels=["rank"]
    )
    for rank, lag in enumerate(nlargest(WORST, readings.lags), 1):
        worst.add_metric([str(rank)], lag)
    yield worst
    behind = sum(lag > 0 for lag in readings.lags)
    yield _gauge("subscriptions_behind", "WebSub subscriptions that something waits for", behind)


def _buckets(lags: Sequence[float]) -> list[tuple[str, float]]:
    counts = [0] * (len(LAG_BUCKETS) + 1)
    for lag in lags:
        counts[bisect_left(LAG_BUCKETS, lag)] += 1
    total, buckets = 0, []
    for end, count in zip((*map(str, LAG_BUCKETS), "+Inf"), counts, strict=True):
        total += count
        buckets.append((end, float(total)))
    return buckets


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, about, value=value)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, about, value=value)


class Metrics(Collector):
    """The metrics of one hub, and of its process.

    Args:
        read: Looks at the hub.
        timer: Tells the seconds since any instant.
    """

    def __init__(
        self, read: Callable[[], Readings], timer: Callable[[], float] = perf_counter
    ) -> None:
        self._read = read
        self._timer = timer
        self._body, self._stale = b"", timer()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every family (`prometheus_client.registry.Collector`)."""
        return families(self._read())

    def answer(self) -> web.Response:
        """Answer `GET /metrics`."""
        begin = self._timer()
        if begin >= self._stale:
            self._body = generate_latest(self._registry)
            end = self._timer()
            self._stale = end + REST * (end - begin)
        return web.Response(
            body=self._body,
            headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"},
        )
