"""The numbers of each minute of the last day."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsnotify_hub.admin.reports import MINUTES, DayHistory, joined
from rsnotify_hub.admin.schemas import HistoryInfo, MinuteInfo
from rsnotify_hub.admin.views import HubReadings
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.subscriptions import DeliveryState
from tests.hub.admin.admin_user import AdminUser
from tests.hub.helpers import Callback, Clock, LogWatch, RunHub, fragment
from tests.hub.readings import hub_readings


def readings(statistics: Statistics, *, websockets: int = 0, retrying: int = 0) -> HubReadings:
    states = {DeliveryState.RETRYING: retrying, DeliveryState.ACTIVE: 1}
    return hub_readings(
        statistics=statistics, subscriptions=states, websocket_subscribers=websockets, websockets=9
    )


def test_each_minute_has_what_happened_in_it(clock: Clock):
    history, statistics = DayHistory(None), Statistics()
    first = int(clock.now.timestamp()) // 60
    statistics.accepted = 3
    history.add(readings(statistics), clock.now)
    clock.advance(seconds=30)
    statistics.accepted = 5
    statistics.count(DeliveryTransport.MQTT, DeliveryOutcome.DELIVERED)
    statistics.count(DeliveryTransport.DASHBOARD, DeliveryOutcome.DELIVERED)
    history.add(readings(statistics, websockets=2), clock.now)
    clock.advance(seconds=60)
    statistics.count(DeliveryTransport.WEBSUB, DeliveryOutcome.FAILED)
    history.add(readings(statistics, retrying=4), clock.now)
    assert history.info().minutes == (
        MinuteInfo(first, 5, 1, 0, 3, 0),
        MinuteInfo(first + 1, 0, 0, 1, 5, 4),
    )


def test_it_has_no_more_than_a_day_even_if_the_clock_jumps(clock: Clock):
    history, statistics = DayHistory(None), Statistics()
    for _ in range(MINUTES + 50):
        history.add(readings(statistics), clock.now)
        clock.advance(minutes=1)
    minutes = [each.minute for each in history.info().minutes]
    assert len(minutes) == MINUTES
    assert minutes[-1] - minutes[0] == MINUTES - 1
    clock.advance(hours=-12)
    history.add(readings(statistics), clock.now)
    assert history.info().minutes[-1].minute == int(clock.now.timestamp()) // 60
    clock.advance(days=2)
    history.add(readings(statistics), clock.now)
    assert len(history.info().minutes) == 1


def test_the_histories_of_nodes_are_added():
    one = HistoryInfo((MinuteInfo(1, 1, 2, 3, 4, 5), MinuteInfo(2, 1, 1, 1, 1, 1)))
    other = HistoryInfo((MinuteInfo(2, 1, 2, 3, 4, 5), MinuteInfo(3, 6, 6, 6, 6, 6)))
    assert joined([one, other]).minutes == (
        MinuteInfo(1, 1, 2, 3, 4, 5),
        MinuteInfo(2, 2, 3, 4, 5, 6),
        MinuteInfo(3, 6, 6, 6, 6, 6),
    )


async def test_it_survives_a_restart(run_hub: RunHub, callback: Callback, clock: Clock):
    async with run_hub() as hub:
        await hub.accepted(fragment(0, 1))
    clock.advance(minutes=5)
    async with run_hub() as hub:
        (minute,) = (await AdminUser(hub).get("history"))["minutes"]
        assert minute[1] == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"minutes": [[1, 2]]}', b"\xff"])
async def test_a_damaged_file_begins_it_again(
    run_hub: RunHub, tmp_path: Path, watch: LogWatch, content: bytes
):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/history.json").write_bytes(content)
    async with run_hub() as hub:
        assert (await AdminUser(hub).get("history"))["minutes"] == []
    assert await watch.line("the history of the last day cannot be read")


async def test_a_file_that_cannot_be_written_stops_nothing(
    run_hub: RunHub, tmp_path: Path, watch: LogWatch
):
    async with run_hub() as hub:
        (tmp_path / "hub/history.new").mkdir()
        await hub.accepted(fragment(0, 1))
    assert await watch.line("the history of the last day cannot be stored now")
