"""A few rounds of `make killing`."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from rsnotify.sync.actions import DocumentKind
from tests.end_to_end import history
from tests.end_to_end.counting import counting, doubles
from tests.end_to_end.killing import PAGE, PATIENCE, POSTED, STREAMED, Killing, Wrong, killing
from tests.end_to_end.replay import mirroring, replay
from tests.end_to_end.returning import Plan, returning
from tests.end_to_end.scenes import BEST, BRIDGE, HUB, MOST_WAYS, POLLED, XMPP_BRIDGE
from tests.end_to_end.scenes import Plan as Scenes
from tests.end_to_end.stage import Stage


async def test_nothing_acknowledged_is_lost_when_the_hub_is_killed_under_load(tmp_path: Path):
    run = await killing(tmp_path, rounds=2, chance=random.Random(4))
    assert min(run.acknowledged.values()) > 0
    for topic in (POSTED, STREAMED):
        assert run.heard[topic] >= run.acknowledged[topic]
        assert run.delivered[topic] >= run.acknowledged[topic]
    assert run.delivered[PAGE] >= run.acknowledged[PAGE]


async def test_a_hub_that_acknowledges_what_it_does_not_keep_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    post, kill = Killing.post, Killing.kill
    told = asyncio.Event()

    async def post_and_believe(run: Killing) -> None:
        await post(run)
        if run.acknowledged[POSTED] == 1:
            run.acknowledged[POSTED] = 2  # which is not published any more
            told.set()

    async def kill_once_told(run: Killing) -> None:
        async with asyncio.timeout(PATIENCE):
            await told.wait()
        await kill(run)

    monkeypatch.setattr(Killing, "post", post_and_believe)
    monkeypatch.setattr(Killing, "kill", kill_once_told)
    with pytest.raises(ExceptionGroup) as found:
        await killing(tmp_path, rounds=1, chance=random.Random(4))
    assert found.group_contains(Wrong, match="acknowledged|came by WebSocket|delivered after")


# Source, hub and Destination as processes, killed while a history is replayed, end equal.


@pytest.mark.parametrize(
    ("via", "ways", "changes", "plan"),
    [
        ("auto", ["hub"], 400, HUB),
        ("poll", [], 300, POLLED),
        ("mqtt", ["hub", "mqtt"], 300, BRIDGE),
    ],
)
async def test_a_copy_ends_equal_though_all_but_the_source_are_killed(
    tmp_path: Path, via: str, ways: list[str], changes: int, plan: Scenes
):
    poll = ("--poll", "0.5") if via == "poll" else ()
    stage = Stage(tmp_path, ways, mirroring("--via", via, *poll))
    assert await replay(stage, list(history.make_up(changes, seed=7)), plan)


@pytest.mark.parametrize(
    ("via", "ways", "plan", "how"),
    [
        ("websub", ["hub"], HUB, {}),
        ("xmpp", ["hub", "xmpp"], XMPP_BRIDGE, {"rate": 200, "best": ["xmpp"]}),
    ],
)
async def test_each_change_has_its_effect_once_though_all_but_the_source_are_killed(
    tmp_path: Path, via: str, ways: list[str], plan: Scenes, how: dict[str, Any]
):
    stage = Stage(tmp_path, ways, counting("--via", via))
    assert await replay(stage, list(history.make_up(300, seed=9)), plan, **how)
    assert not doubles(stage.destination)


async def test_a_destination_hears_by_the_best_way_left_and_each_change_has_its_effect_once(
    tmp_path: Path,
):
    stage = Stage(tmp_path, BEST, counting("--poll", "1"))
    steps = list(history.make_up(240, seed=11))
    assert await replay(stage, steps, MOST_WAYS, rate=200, best=BEST, fails_over=True)
    assert not doubles(stage.destination)


# A Destination that was away, for a moment or for ever, gets level by the cheapest way.


async def test_a_destination_that_comes_back_takes_the_cheapest_rung_and_ends_equal(tmp_path: Path):
    steps = list(history.make_up(600, seed=3))
    rungs = await returning(tmp_path, steps, Plan(rotate=40, keep=2, seed=7))
    assert set(rungs) == {
        DocumentKind.CHANGE_LIST,
        DocumentKind.CHANGE_LIST_ARCHIVE,
        DocumentKind.RESOURCE_LIST,
    }
    assert rungs[DocumentKind.RESOURCE_LIST] > 1  # the first, and one after a long absence
