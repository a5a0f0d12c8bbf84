"""The demo compares the files of the copy with those of the Source."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rsnotify_demo.destination_process import DestinationStatus
from rsnotify_demo.monitor import (
    SENSORS,
    STATIONS,
    Comparison,
    LagHistory,
    Observations,
)


@pytest.fixture
def observations(tmp_path: Path) -> Observations:
    return Observations(tmp_path / "source")


@pytest.fixture
def comparison(observations: Observations, tmp_path: Path) -> Comparison:
    return Comparison(observations.resources, tmp_path / "copy")


def copy(folder: Path) -> None:
    shutil.rmtree(folder / "copy", ignore_errors=True)
    shutil.copytree(folder / "source", folder / "copy")


def test_without_a_copy_every_resource_is_missing(comparison: Comparison) -> None:
    difference = comparison.compare()
    assert difference.states == "m" * SENSORS + "n" * STATIONS
    assert (difference.behind, difference.differing) == (SENSORS, SENSORS)


def test_each_change_that_the_copy_lacks_counts(
    observations: Observations, comparison: Comparison, tmp_path: Path
) -> None:
    copy(tmp_path)
    assert (comparison.compare().behind, comparison.compare().differing) == (0, 0)
    for number in range(1, 500):
        observations.change()
        assert observations.changes == number
    difference = comparison.compare()
    assert (difference.changes, difference.behind) == (499, 499)
    copy(tmp_path)
    difference = comparison.compare()
    assert (difference.changes, difference.behind, difference.differing) == (499, 0, 0)
    assert set(difference.states) == {"s", "n"}


def test_files_that_should_be_deleted_and_altered_files_differ(
    observations: Observations, comparison: Comparison, tmp_path: Path
) -> None:
    copy(tmp_path)
    comparison.compare()
    (tmp_path / "copy/station-000.ttl").write_text("left from long ago")
    (tmp_path / "copy/sensor-00.ttl").write_bytes(b"x")
    difference = comparison.compare()
    assert difference.states[0] == "o"
    assert difference.states[SENSORS] == "l"
    assert (difference.behind, difference.differing) == (2, 2)


async def test_a_flood_is_one_change_of_each_station(
    observations: Observations, comparison: Comparison, tmp_path: Path
) -> None:
    copy(tmp_path)
    comparison.compare()
    await observations.flood()
    assert comparison.compare().states == "s" * SENSORS + "m" * STATIONS
    assert observations.changes == comparison.compare().behind == STATIONS


def test_the_lags_of_all_seconds_are_summed_up_and_drawn() -> None:
    history = LagHistory()
    assert (history.typical(), history.sparkline("0123")) == (None, "")
    seconds = [(700, 700), (0.5, 2), (9, 20), (11, 30), (99_999, 99_999), (None, None)]
    for half, most in seconds:
        history.add(DestinationStatus(lag_ms=half, lag_p99_ms=most))
    assert history.typical() == (10.0, 25.0)  # without the first second
    assert history.sparkline("0123") == "0013"  # a bar for each decade of milliseconds
