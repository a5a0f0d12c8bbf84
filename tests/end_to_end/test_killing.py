"""A few rounds of `make killing`."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.end_to_end.killing import PAGE, PATIENCE, POSTED, STREAMED, Killing, Wrong, killing


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
