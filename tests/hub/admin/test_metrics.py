from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from rsnotify import __version__
from rsnotify.runtime.status_endpoints import MetricsText
from rsnotify_hub.admin.hub_readings import HubReadings
from rsnotify_hub.live.connections import ConnectionCounts
from rsnotify_hub.metrics import LAG_BUCKETS, LONGEST_LAGS, metric_families
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.websub_subscription import DeliveryState
from tests.hub.helpers import TOPIC, Callback, Client, Clock, fragment
from tests.hub.readings import hub_readings
from tests.waiting import PATIENCE

Values = dict[str, dict[tuple[str, ...], float]]


def read(text: str) -> list[Metric]:
    """What Prometheus would read."""
    return list(text_string_to_metric_families(text))


def values(families: Sequence[Metric]) -> Values:
    """The values of all series, by the values of their labels in the order of the names."""
    found: Values = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, {})[
                tuple(label for _, label in sorted(sample.labels.items()))
            ] = sample.value
    return found


def readings(lags: Sequence[float] = (), statistics: Statistics | None = None) -> HubReadings:
    return hub_readings(
        statistics=statistics or Statistics(),
        subscriptions={DeliveryState.ACTIVE: len(lags)},
        lags=lambda: lags,
        connections=4,
        live=ConnectionCounts(websockets=3, event_streams=5, live_queue=5),
        delivery_queue=6,
        commit_queue=7,
    )


def scraped(lags: Sequence[float] = (), statistics: Statistics | None = None) -> Values:
    body = MetricsText(lambda: metric_families(readings(lags, statistics))).answer().body
    assert isinstance(body, bytes)
    return values(read(body.decode()))


def test_frequent_requests_take_at_most_a_tenth_of_the_time():
    now, looks = 0.0, 0

    def look() -> HubReadings:
        nonlocal now, looks
        now, looks = now + 0.5, looks + 1
        return readings()

    metrics = MetricsText(lambda: metric_families(look()), lambda: now)
    looks = 0
    for _ in range(1000):
        metrics.answer()
        now += 0.01
    assert looks == 2
    now += 5
    metrics.answer()
    assert looks == 3


@given(st.lists(st.floats(0, 1e6), max_size=30))
def test_lags_are_a_histogram_and_the_worst_by_rank(lags: list[float]):
    found = scraped(lags)
    for end in LAG_BUCKETS:
        bucket = found["rsnotify_hub_lag_seconds_bucket"][(str(end),)]
        assert bucket == sum(lag <= end for lag in lags)
    assert found["rsnotify_hub_lag_seconds_bucket"][("+Inf",)] == len(lags)
    assert found["rsnotify_hub_lag_seconds_count"][()] == len(lags)
    worst = found.get("rsnotify_hub_lag_seconds_worst", {})
    assert list(worst.values()) == sorted(lags, reverse=True)[:LONGEST_LAGS]
    assert found["rsnotify_hub_subscriptions_behind"][()] == sum(lag > 0 for lag in lags)


def test_every_count_has_a_name():
    statistics = Statistics()
    statistics.accepted, statistics.accepted_bytes = 1, 2
    statistics.duplicates, statistics.retries = 3, 4
    statistics.refused["forbidden"] = 5
    statistics.deliveries[DeliveryTransport.WEBSUB, DeliveryOutcome.GIVEN_UP] = 6
    statistics.delivered_bytes[DeliveryTransport.WEBSOCKET] = 7
    found = scraped(statistics=statistics)
    for name, value in {
        "info": {("1.2.3",): 1.0},
        "fragments_total": 1,
        "fragment_bytes_total": 2,
        "duplicate_fragments_total": 3,
        "retries_total": 4,
        "refused_total": {("forbidden",): 5.0},
        "connections": 4,
        "websockets": 3,
        "live_queue_bytes": 5,
        "delivery_queue": 6,
        "commit_queue": 7,
    }.items():
        series = value if isinstance(value, dict) else {(): value}
        assert found[f"rsnotify_hub_{name}"] == series, name
    assert found["rsnotify_hub_deliveries_total"]["given-up", "websub"] == 6
    assert found["rsnotify_hub_deliveries_total"]["delivered", "websocket"] == 0
    assert found["rsnotify_hub_delivered_bytes_total"][("websocket",)] == 7


async def metrics(hub: Client) -> Values:
    async with hub.session.get(hub.url + "metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = read(await response.text())
    assert all(family.documentation for family in families)
    assert len({family.name for family in families}) == len(families)
    return values(families)


async def test_the_metrics_count_what_a_hub_has_done(hub: Client, callback: Callback):
    await hub.subscribe(callback)
    callback.answers = [500]
    await hub.listen()
    await hub.accepted(fragment(0, 1))
    await hub.publish(b"nonsense")
    for _ in range(2):
        await callback.delivery()
    await hub.level()
    found = await metrics(hub)
    assert found["rsnotify_hub_info"] == {(__version__,): 1.0}
    for name, value in {
        "topics": 1,
        "fragments_total": 1,
        "log_fragments": 1,
        "log_bytes": len(fragment(0, 1)),
        "websockets": 1,
        "retries_total": 1,
    }.items():
        assert found[f"rsnotify_hub_{name}"][()] == value, name
    assert found["rsnotify_hub_connections"][()] >= 2  # the WebSocket, and this one
    assert found["rsnotify_hub_subscriptions"][("active",)] == 1
    assert found["rsnotify_hub_refused_total"][("invalid-fragment",)] == 1
    deliveries = found["rsnotify_hub_deliveries_total"]
    for outcome, way in (("delivered", "websub"), ("failed", "websub"), ("delivered", "websocket")):
        assert deliveries[outcome, way] == 1
    assert found["process_resident_memory_bytes"][()] > 1e6


async def test_a_suspended_subscription_does_not_count_as_lag(
    hub: Client, callback: Callback, clock: Clock
):
    await hub.subscribe(callback)
    row = await hub.subscription()
    status, suspended = await hub.ask_admin("POST", f"subscriptions/{row['id']}/suspend")
    assert (status, suspended["id"]) == (200, row["id"])
    await hub.accepted(fragment(0, 1))
    clock.advance(seconds=60)
    found = await metrics(hub)
    assert found["rsnotify_hub_subscriptions"][("suspended",)] == 1
    assert found["rsnotify_hub_lag_seconds_count"][()] == 0
    assert found["rsnotify_hub_subscriptions_behind"][()] == 0


async def series(hub: Client) -> set[tuple[str, tuple[str, ...]]]:
    return {(name, labels) for name, found in (await metrics(hub)).items() for labels in found}


async def test_the_number_of_series_is_independent_of_clients(hub: Client, callback: Callback):
    await hub.accepted(fragment(0, 1))
    before = await series(hub)
    for number in range(LONGEST_LAGS + 5):
        topic = f"{TOPIC}/canary{number}"
        await hub.accepted(fragment(0, 1), topic=topic)
        await hub.form(mode="subscribe", topic=topic, callback=f"{callback.url}/{number}")
        await callback.intent()
    await hub.admin_until("subscriptions", lambda answer: answer["total"] == LONGEST_LAGS + 5)
    async with asyncio.timeout(PATIENCE):
        while (after := await series(hub)) == before:
            pass  # a first answer that took long is cached for a while
    ranks = {name for name, _ in after - before}
    assert ranks <= {"rsnotify_hub_lag_seconds_worst"}
    assert len(after - before) == LONGEST_LAGS
