"""When the lists are polled again after a loss of push, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Capability, Document
from rsnotify.format.writer import write_document
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.events import Announcer
from rsnotify_subscriber.following.push_monitor import (
    HEARTBEAT_TIMEOUT,
    RECONNECT_GRACE,
    PushMonitor,
)
from tests.subscriber.push.virtual import run

START = datetime(2026, 1, 1, tzinfo=UTC)


class Followed:
    """Records the calls about push that a follower receives."""

    def __init__(self) -> None:
        self.known: Instant | None = START
        self.told: list[str] = []

    def push_up(self, now: float) -> tuple[()]:
        self.told.append("up")
        return ()

    def push_down(self, now: float) -> tuple[()]:
        self.told.append("down")
        return ()

    def fragment(self, document: Document, now: float, today: datetime) -> tuple[()]:
        self.known = document.until
        return ()


def lived(
    life: Callable[[PushMonitor, list[str]], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    """Return a test that runs `life` on a monitor that is up, with the log of its follower."""

    async def whole() -> None:
        follower = Followed()
        monitor = PushMonitor(cast(Follower, follower), lambda _: None, Announcer(None))
        monitor.up()
        await life(monitor, follower.told)

    return lambda: run(whole())


def beat(monitor: PushMonitor, seconds: float) -> None:
    since = monitor.follower.known
    document = Document(
        Capability.CHANGE_NOTIFICATION, from_=since, until=START + timedelta(seconds=seconds)
    )
    monitor.fragment(write_document(document))


@lived
async def test_a_connection_that_is_replaced_within_a_second_is_no_loss(
    monitor: PushMonitor, told: list[str]
) -> None:
    beat(monitor, 1)
    for _ in range(3):
        monitor.down()
        await asyncio.sleep(RECONNECT_GRACE / 2)
        monitor.up()
    await asyncio.sleep(2 * RECONNECT_GRACE)
    assert told == ["up"]


@lived
async def test_one_that_is_not_replaced_within_a_second_is_lost_until_something_new_comes(
    monitor: PushMonitor, told: list[str]
) -> None:
    beat(monitor, 1)
    monitor.down()
    await asyncio.sleep(1.5 * RECONNECT_GRACE)
    assert told == ["up", "down"]
    monitor.up()
    assert told == ["up", "down"]
    beat(monitor, 2)
    assert told == ["up", "down", "up"]


@lived
async def test_without_heartbeats_any_loss_counts_at_once(
    monitor: PushMonitor, told: list[str]
) -> None:
    monitor.down()
    assert told == ["up", "down"]


@lived
async def test_one_that_is_replaced_by_a_hub_without_heartbeats_is_lost_when_they_are_missed(
    monitor: PushMonitor, told: list[str]
) -> None:
    beat(monitor, 1)
    monitor.down()
    monitor.up()
    await asyncio.sleep(1.5 * HEARTBEAT_TIMEOUT)
    assert told == ["up", "down"]


@lived
async def test_nothing_happens_after_the_end(monitor: PushMonitor, told: list[str]) -> None:
    beat(monitor, 1)
    monitor.down()
    monitor.ended()
    await asyncio.sleep(2 * HEARTBEAT_TIMEOUT)
    assert told == ["up"]
