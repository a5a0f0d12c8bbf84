"""What the hub did in each minute of the last day, and quarter of an hour of the last week."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rsnotify_hub.admin.history import DAY, QUARTER, WEEK, HubHistory, merge_histories
from rsnotify_hub.admin.hub_readings import HubReadings
from rsnotify_hub.admin.schemas import HistoryInfo, MinuteInfo
from rsnotify_hub.live.connections import ConnectionCounts
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.websub_subscription import DeliveryState
from tests.hub.helpers import Clock, LogWatch, RunHub, fragment
from tests.hub.readings import hub_readings


def readings(
    statistics: Statistics, *, websockets: int = 0, retrying: int = 0, lags: Sequence[float] = ()
) -> HubReadings:
    states = {DeliveryState.RETRYING: retrying, DeliveryState.ACTIVE: 1}
    return hub_readings(
        statistics=statistics,
        subscriptions=states,
        live=ConnectionCounts(websockets=9, websocket_subscribers=websockets),
        lags=lambda: lags,
        delivery_queue=retrying,
    )


def test_each_minute_has_what_happened_in_it_and_each_quarter_of_an_hour(clock: Clock):
    history, statistics = HubHistory(None, clock.now), Statistics()
    first = int(clock.now.timestamp()) // 60
    statistics.accepted = 3
    clock.advance(seconds=10)
    history.add(readings(statistics), clock.now)
    clock.advance(seconds=30)
    statistics.accepted = 5
    statistics.count(DeliveryTransport.MQTT, DeliveryOutcome.DELIVERED)
    statistics.count(DeliveryTransport.DASHBOARD, DeliveryOutcome.DELIVERED)
    history.add(readings(statistics, websockets=2, lags=[0, 0, 9]), clock.now)
    clock.advance(seconds=60)
    statistics.count(DeliveryTransport.WEBSUB, DeliveryOutcome.FAILED)
    history.add(readings(statistics, retrying=4, lags=[*range(200)]), clock.now)
    assert history.info() == HistoryInfo(
        minutes=(
            MinuteInfo(first, 5, 1, 0, 3, 0, 40, 0, 9, 0, 0, 0),
            MinuteInfo(first + 1, 0, 0, 1, 5, 4, 60, 99, 197, 4, 0, 0),
        ),
        quarters=[MinuteInfo(first, 5, 1, 1, 5, 4, 100, 99, 197, 4, 0, 0)],
    )


def test_it_has_no_more_than_a_week_even_if_the_clock_jumps(clock: Clock):
    history, statistics = HubHistory(None, clock.now), Statistics()
    for _ in range(WEEK + 50):
        history.add(readings(statistics), clock.now)
        clock.advance(minutes=1)
    for kept, length, step in (
        (history.info().minutes, DAY, 1),
        (history.info().quarters, WEEK // QUARTER, QUARTER),
    ):
        assert len(kept) == length
        assert kept[-1].minute - kept[0].minute == (length - 1) * step
    clock.advance(hours=-12)
    history.add(readings(statistics), clock.now)
    assert history.info().minutes[-1].minute == int(clock.now.timestamp()) // 60
    clock.advance(days=8)
    history.add(readings(statistics), clock.now)
    assert (len(history.info().minutes), len(history.info().quarters)) == (1, 1)


def test_the_histories_of_nodes_are_added():
    one = (MinuteInfo(1, 1, 2, 3, 4, 5), MinuteInfo(2, 1, 1, 1, 1, 1, 60, None, 3.5, 2, 0, 7))
    other = (MinuteInfo(2, 1, 2, 3, 4, 5, 50, 0.5, 2.5, 3, 1, 7), MinuteInfo(3, 6, 6, 6, 6, 6))
    total = (one[0], MinuteInfo(2, 2, 3, 4, 5, 6, 60, 0.5, 3.5, 5, 1, 14), other[1])
    parts = [HistoryInfo(rows, [*rows]) for rows in (one, other)]
    assert merge_histories(parts) == HistoryInfo(total, [*total])


async def test_a_file_of_an_older_hub_is_read(tmp_path: Path, clock: Clock):
    file = tmp_path / "history.json"
    file.write_text('{"minutes": [[29, 5, 6, 7, 8, 0], [30, 1, 2, 3, 4, 5], [31, 1, 2, 3, 2, 2]]}')
    older = HubHistory(file, clock.now)
    assert older.info().minutes[0] == MinuteInfo(29, 5, 6, 7, 8, 0, 60, *[None] * 5)
    assert older.info().quarters == [
        MinuteInfo(15, 5, 6, 7, 8, 0, 60),
        MinuteInfo(30, 2, 4, 6, 4, 5, 120),
    ]
    await older.save()
    assert HubHistory(file, clock.now).info() == older.info()


@pytest.mark.parametrize("content", [b"{", b'{"minutes": [[1, 2]]}', b"\xff"])
async def test_a_damaged_file_begins_it_again(
    run_hub: RunHub, tmp_path: Path, watch: LogWatch, content: bytes
):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/history.json").write_bytes(content)
    async with run_hub() as hub:
        (minute,) = (await hub.admin("GET", "history"))["minutes"]
        assert minute[1:7] == [0, 0, 0, 0, 0, 1]
    assert await watch.line("cannot read the history of the last week")


async def test_a_file_that_cannot_be_written_stops_nothing(
    run_hub: RunHub, tmp_path: Path, watch: LogWatch
):
    async with run_hub() as hub:
        (tmp_path / "hub/history.new").mkdir()
        await hub.accepted(fragment(0, 1))
    assert await watch.line("cannot save the history of the last week")
