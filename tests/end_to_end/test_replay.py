"""Source, hub and Destination as processes, killed while a history is replayed, end equal."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end import history, replay


async def test_a_destination_ends_equal_though_hub_and_destination_are_killed(
    tmp_path: Path,
) -> None:
    steps = list(history.make_up(600, seed=7))
    assert await replay.replay(tmp_path, steps)


async def test_a_destination_ends_equal_by_websub_though_hub_and_destination_are_killed(
    tmp_path: Path,
) -> None:
    steps = list(history.make_up(300, seed=9))
    assert await replay.replay(tmp_path, steps, follow=replay.by("websub"))


async def test_a_destination_that_only_polls_ends_equal_without_any_hub(tmp_path: Path) -> None:
    steps = list(history.make_up(400, seed=8))
    follow = ["--via", "poll", "--poll", "0.5"]
    assert await replay.replay(tmp_path, steps, hub=False, follow=follow)


async def test_a_destination_ends_equal_by_mqtt_though_all_but_the_source_are_killed(
    tmp_path: Path,
) -> None:
    steps = list(history.make_up(300, seed=10))
    assert await replay.replay(tmp_path, steps, broker=True, follow=replay.by("mqtt"))
