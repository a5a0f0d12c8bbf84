"""Closed changes, dumps and the status after the clock was set back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rsnotify_publisher.journal import system_clock
from rsnotify_publisher.source_status import StatusReader
from tests.publisher import helpers
from tests.publisher.helpers import BASE, Clock, FakeHub, eventually, quick_publisher
from tests.publisher.published import Published


def test_a_clock_that_is_set_back_does_not_postpone_a_resource_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(helpers, "PATIENCE", 5.0)  # for a quick failure
    with Published(tmp_path, resource_dump_every=0.05) as source:
        source.update("a")
        eventually(lambda: source.has("resourcedump.xml"))
        source.wait_written()
        first = source.read("resourcedump.xml").at
        source.clock._ahead -= 86_400_000_000
        source.update("b")
        eventually(lambda: source.read("resourcedump.xml").at != first)


def test_changes_are_closed_at_a_cron_time_although_the_clock_of_the_source_lags(tmp_path: Path):
    """The clock of a gateway's set stands still at the beginning of the last check."""
    at = datetime.now(UTC) + timedelta(seconds=3)
    with Published(tmp_path, rotate=f"cron: {at:%S %M %H %d %m} *") as source:
        source.publisher.source.wall_clock = system_clock
        source.clock._ahead -= 5_000_000
        source.update("a")
        eventually(lambda: bool(source.read("changelist-archive.xml").resources))


async def test_an_unreachable_hub_is_not_reported_as_reached_after_the_clock_was_set_back(
    tmp_path: Path, hub: FakeHub
):
    clock = Clock()
    publisher = quick_publisher(tmp_path, hub.url + "websub", clock=clock, grace=0, heartbeat=0.05)
    reader = StatusReader([publisher])
    async with publisher:
        assert await publisher.await_published(60)
        await publisher.acreated(BASE + "a")
        await hub.has(BASE + "a")
        await asyncio.to_thread(eventually, lambda: bool(reader.read().hubs[0].reached))
        await hub.stop()
        clock.pass_seconds(-86_400)
        clock.pass_seconds(60)  # the hub does not answer for a minute
        reached = (await asyncio.to_thread(reader.read)).hubs[0].reached
        reader.close()
    assert not reached
