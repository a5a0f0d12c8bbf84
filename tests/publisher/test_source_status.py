"""What `rsnotify source` shows: the number of recorded changes, and the status of each hub."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify_publisher import Publisher
from rsnotify_publisher.commands.source_run import (
    HubStatus,
    SourceLineReport,
    SourceStatus,
    StatusReader,
    hub_line,
    totals,
)
from rsnotify_publisher.journal import system_clock
from tests.publisher.helpers import BASE, PATIENCE, PORT, QUICK, FakeHub, Start

NOWHERE = "http://127.0.0.1:1/"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WELL = HubStatus("https://hub.example/", 0, AT, reached=True, reached_before=True)
AWAY = replace(WELL, reached=False)


async def test_the_status_has_the_number_of_changes_and_each_hub(
    tmp_path: Path, hub: FakeHub
) -> None:
    hubs = [hub.url + "websub", NOWHERE]
    later = 0
    clock = lambda: system_clock() + later  # noqa: E731
    options = replace(QUICK, grace=0)  # as one hub never accepts anything
    async with Publisher(tmp_path, BASE, hubs=hubs, options=options, clock=clock) as publisher:
        reader = StatusReader([publisher])
        first = reader.read()
        assert (first.resources, first.changes) == (0, 0)
        assert [one.reached for one in first.hubs] == [None, None]
        await publisher.acreated(BASE + "a")
        await publisher.aupdated(BASE + "a")
        assert reader.read().resources == 1
        await hub.has(BASE + "a")
        async with asyncio.timeout(PATIENCE):
            while not (status := reader.read()).hubs[0].reached:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (status.resources, status.changes) == (1, 2)
        assert [(one.waiting, one.reached) for one in status.hubs] == [(0, True), (2, None)]
        later = 600_000_000  # µs: long after the last heartbeat that a hub can have accepted
        away = reader.read().hubs[1]
        assert (away.waiting, away.reached, away.reached_before) == (2, False, False)
        reader.close()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (WELL, "up to date"),
        (replace(WELL, waiting=1), "1 change on the way"),
        (replace(WELL, reached=None), "connecting"),
        (AWAY, "not reached since 2026-01-02T03:04:05Z"),
        (replace(AWAY, waiting=3), "not reached since 2026-01-02T03:04:05Z, lacks 3 changes"),
        (replace(AWAY, waiting=10_000), "lacks more than 10,000 changes"),
        (replace(AWAY, reached_before=False), "not reached yet"),
    ],
)
def test_a_hub_has_a_line(status: HubStatus, expected: str) -> None:
    assert hub_line(status).startswith("hub https://hub.example/: ")
    assert hub_line(status).endswith(expected)


def test_a_count_of_one_is_written_as_one() -> None:
    assert totals(SourceStatus(1, 1, ())) == "1 resource, 1 change recorded since the start"
    assert totals(SourceStatus(5_000, 0, ())).startswith("5,000 resources, 0 changes")


def test_nothing_is_written_while_nothing_changes(capsys: pytest.CaptureFixture[str]) -> None:
    report = SourceLineReport()
    for _ in range(200):
        report.show(SourceStatus(3, 0, (replace(WELL, reached=None),)))
    assert capsys.readouterr().out == ""
    for hub in (WELL, AWAY, WELL):
        for _ in range(100):
            report.show(SourceStatus(3, 0, (hub,)))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [hub_line(WELL), hub_line(AWAY), hub_line(WELL)]
    for _ in range(100):
        report.show(SourceStatus(3, 7, (WELL,)))
    assert capsys.readouterr().out.splitlines() == [totals(SourceStatus(3, 7, ()))]


async def test_the_command_prints_when_a_hub_has_everything(
    folder: Path, source: Start, hub: FakeHub
) -> None:
    options = ("--hub", hub.url, "--heartbeat", "0.1")
    process = await asyncio.to_thread(source, folder, *PORT, *options)
    line = await asyncio.to_thread(process.next_line)
    assert line.startswith("hub ws://127.0.0.1:")
    assert line.endswith(": up to date")
