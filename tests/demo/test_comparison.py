"""The demo compares the copy with the Source by looking into both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rsnotify_demo.comparison import Comparison
from rsnotify_demo.observations import SENSORS, STATIONS, Observations


@pytest.fixture
def observations(tmp_path: Path) -> Observations:
    return Observations(tmp_path / "source")


@pytest.fixture
def comparison(observations: Observations, tmp_path: Path) -> Comparison:
    return Comparison(observations.resources, tmp_path / "copy")


def copy(folder: Path) -> None:
    shutil.rmtree(folder / "copy", ignore_errors=True)
    shutil.copytree(folder / "source", folder / "copy")


def test_without_a_copy_all_is_missing(comparison: Comparison) -> None:
    difference = comparison.look()
    assert difference.states == "m" * SENSORS + "n" * STATIONS
    assert (difference.behind, difference.differing) == (SENSORS, SENSORS)


def test_each_change_that_the_copy_lacks_counts(
    observations: Observations, comparison: Comparison, tmp_path: Path
) -> None:
    copy(tmp_path)
    assert (comparison.look().behind, comparison.look().differing) == (0, 0)
    for number in range(1, 500):
        observations.change()
        assert observations.changes == number
    assert comparison.look().behind == 499
    copy(tmp_path)
    difference = comparison.look()
    assert (difference.behind, difference.differing) == (0, 0)
    assert set(difference.states) == {"s", "n"}


def test_what_the_copy_still_has_and_what_was_altered_in_it_differ(
    observations: Observations, comparison: Comparison, tmp_path: Path
) -> None:
    copy(tmp_path)
    comparison.look()
    (tmp_path / "copy/station-000.ttl").write_text("left from long ago")
    (tmp_path / "copy/sensor-00.ttl").write_bytes(b"x")
    difference = comparison.look()
    assert difference.states[0] == "o"
    assert difference.states[SENSORS] == "l"
    assert (difference.behind, difference.differing) == (2, 2)


async def test_a_flood_is_one_change_of_each_station(
    observations: Observations, comparison: Comparison, tmp_path: Path
) -> None:
    copy(tmp_path)
    comparison.look()
    await observations.flood()
    assert comparison.look().states == "s" * SENSORS + "m" * STATIONS
    assert observations.changes == comparison.look().behind == STATIONS
