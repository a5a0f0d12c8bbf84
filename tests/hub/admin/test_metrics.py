from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rsnotify import __version__
from rsnotify.runtime.status_endpoints import MetricsText
from rsnotify_hub.admin.hub_readings import HubReadings
from rsnotify_hub.live.connections import ConnectionCounts
from rsnotify_hub.metrics import LAG_BUCKETS, LONGEST_LAGS, metric_families
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.websub_subscription import DeliveryState
from tests.hub.helpers import TOPIC, Callback, Client, Clock, fragment
from tests.hub.readings import hub_readings, scraped
from tests.waiting import PATIENCE


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
    found = scraped(readings(lags))
    for end in LAG_BUCKETS:
        assert found[f'lag_seconds_bucket{{le="{end}"}}'] == sum(lag <= end for lag in lags)
    assert found['lag_seconds_bucket{le="+Inf"}'] == found["lag_seconds_count"] == len(lags)
    worst = [value for name, value in found.items() if name.startswith("lag_seconds_worst")]
    assert worst == sorted(lags, reverse=True)[:LONGEST_LAGS]
    assert found["subscriptions_behind"] == sum(lag > 0 for lag in lags)


def test_every_count_has_a_name():
    statistics = Statistics()
    statistics.accepted, statistics.accepted_bytes = 1, 2
    statistics.duplicates, statistics.retries = 3, 4
    statistics.refused["forbidden"] = 5
    statistics.deliveries[DeliveryTransport.WEBSUB, DeliveryOutcome.GIVEN_UP] = 6
    statistics.delivered_bytes[DeliveryTransport.WEBSOCKET] = 7
    expected = {
        'info{version="1.2.3"}': 1,
        "fragments_total": 1,
        "fragment_bytes_total": 2,
        "duplicate_fragments_total": 3,
        "retries_total": 4,
        'refused_total{code="forbidden"}': 5,
        "connections": 4,
        "websockets": 3,
        "live_queue_bytes": 5,
        "delivery_queue": 6,
        "commit_queue": 7,
        'deliveries_total{outcome="given-up",way="websub"}': 6,
        'deliveries_total{outcome="delivered",way="websocket"}': 0,
        'delivered_bytes_total{way="websocket"}': 7,
    }
    assert expected.items() <= scraped(readings(statistics=statistics)).items()


async def test_the_metrics_count_what_a_hub_has_done(hub: Client, callback: Callback):
    await hub.subscribe(callback)
    callback.answers = [500]
    await hub.listen()
    await hub.accepted(fragment(0, 1))
    await hub.publish(b"nonsense")
    for _ in range(2):
        await callback.delivery()
    await hub.level()
    found = await hub.metrics()
    expected = {
        f'info{{version="{__version__}"}}': 1,
        "topics": 1,
        "fragments_total": 1,
        "log_fragments": 1,
        "log_bytes": len(fragment(0, 1)),
        "websockets": 1,
        "retries_total": 1,
        'subscriptions{state="active"}': 1,
        'refused_total{code="invalid-fragment"}': 1,
        'deliveries_total{outcome="delivered",way="websub"}': 1,
        'deliveries_total{outcome="failed",way="websub"}': 1,
        'deliveries_total{outcome="delivered",way="websocket"}': 1,
    }
    assert expected.items() <= found.items()
    assert found["connections"] >= 2  # the WebSocket, and this one
    assert found["process_resident_memory_bytes"] > 1e6


async def test_a_suspended_subscription_does_not_count_as_lag(
    hub: Client, callback: Callback, clock: Clock
):
    await hub.subscribe(callback)
    row = await hub.subscription()
    await hub.admin("POST", f"subscriptions/{row['id']}/suspend")
    await hub.accepted(fragment(0, 1))
    clock.advance(seconds=60)
    found = await hub.metrics()
    assert found['subscriptions{state="suspended"}'] == 1
    assert (found["lag_seconds_count"], found["subscriptions_behind"]) == (0, 0)


async def test_the_number_of_series_is_independent_of_clients(hub: Client, callback: Callback):
    await hub.accepted(fragment(0, 1))
    before = (await hub.metrics()).keys()
    for number in range(LONGEST_LAGS + 5):
        topic = f"{TOPIC}/canary{number}"
        await hub.accepted(fragment(0, 1), topic=topic)
        await hub.form(mode="subscribe", topic=topic, callback=f"{callback.url}/{number}")
        await callback.intent()
    await hub.admin_until("subscriptions", lambda answer: answer["total"] == LONGEST_LAGS + 5)
    async with asyncio.timeout(PATIENCE):
        while (after := (await hub.metrics()).keys()) == before:
            pass  # a first answer that took long is cached for a while
    assert all(name.startswith("lag_seconds_worst{rank=") for name in after - before)
    assert len(after - before) == LONGEST_LAGS
