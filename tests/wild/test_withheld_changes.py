"""A hub withholds changes, and says by `from` and `until` that there were none."""

from __future__ import annotations

import pytest

from tests.wild.hub import WildHub, offer_hub
from tests.wild.running import Copy, pace, pushed, run_right, until, until_right
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    source.begin("a", "b", "c")
    offer_hub(source, hub)


def change(source: WildSource) -> list[str]:
    first = source.update("a", 60)
    second = source.delete("b", 61)
    third = source.update("c", 62)
    source.list_changes(first, second, third)
    return [first, second, third]


@pytest.mark.parametrize("told", [0, 1], ids=["all", "all but the last"])
async def test_the_next_poll_finds_them(
    source: WildSource, hub: WildHub, copy: Copy, told: int
) -> None:
    async with pushed(hub, source, copy) as subscriber:
        changes = change(source)
        await hub.push(changes[3 - told :], source.t(10), source.t(100))
        await until_right(subscriber, copy, source)


@pytest.mark.parametrize("told", [0, 1], ids=["all", "all but the last"])
async def test_the_next_run_finds_them(
    source: WildSource, hub: WildHub, copy: Copy, told: int
) -> None:
    rare = pace(poll=600.0, poll_with_push=600.0)
    async with pushed(hub, source, copy, pace=rare) as subscriber:
        changes = change(source)
        await hub.push(changes[3 - told :], source.t(10), source.t(100))
        await until(
            subscriber,
            lambda status: status.through is not None and status.through >= source.t(100),
        )
    await run_right(source, copy)
