"""Source, hub and Destination as processes, killed while a history is replayed, end equal."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end import history
from tests.end_to_end.counting import counting, doubles
from tests.end_to_end.replay import mirroring, replay
from tests.end_to_end.scenes import BEST, BRIDGE, HUB, MOST_WAYS, POLLED, XMPP_BRIDGE
from tests.end_to_end.stage import Stage


async def test_a_destination_ends_equal_though_hub_and_destination_are_killed(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, ["hub"], mirroring())
    assert await replay(stage, list(history.make_up(600, seed=7)), HUB)


async def test_a_destination_ends_equal_by_websub_though_hub_and_destination_are_killed(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, ["hub"], counting("--via", "websub"))
    assert await replay(stage, list(history.make_up(300, seed=9)), HUB)
    assert not doubles(stage.destination)


async def test_a_destination_that_only_polls_ends_equal_without_any_hub(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [], mirroring("--via", "poll", "--poll", "0.5"))
    assert await replay(stage, list(history.make_up(400, seed=8)), POLLED)


async def test_a_destination_ends_equal_by_mqtt_though_all_but_the_source_are_killed(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, ["hub", "mqtt"], mirroring("--via", "mqtt"))
    assert await replay(stage, list(history.make_up(300, seed=10)), BRIDGE)


async def test_a_destination_ends_equal_by_xmpp_though_all_but_the_source_are_killed(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, ["hub", "xmpp"], counting("--via", "xmpp"))
    steps = list(history.make_up(300, seed=12))
    assert await replay(stage, steps, XMPP_BRIDGE, rate=200, best=["xmpp"])
    assert not doubles(stage.destination)


async def test_a_destination_hears_by_the_best_way_left_and_each_change_has_its_effect_once(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, BEST, counting("--poll", "1"))
    steps = list(history.make_up(240, seed=11))
    assert await replay(stage, steps, MOST_WAYS, rate=200, best=BEST, fails_over=True)
    assert not doubles(stage.destination)
