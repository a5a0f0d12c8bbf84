"""The Destination's clock is wrong: ahead of or behind the Source's, by a day or by years.

Nothing that the Source says is compared with it; a Date of the Source's own answers is what its
documents are held against. Here the Source's clock is moved instead, which is the same.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.wild.hub import WildHub, offer_hub
from tests.wild.running import Copy, pushed, run_right, until_right
from tests.wild.source import WildSource

BY = {
    "a day behind": timedelta(days=1),
    "an hour behind": timedelta(hours=1),
    "an hour ahead": -timedelta(hours=1),
    "years ahead": -timedelta(days=3000),
}


@pytest.fixture(params=BY.values(), ids=list(BY), autouse=True)
def begun(request: pytest.FixtureRequest, source: WildSource, hub: WildHub) -> None:
    source.start = datetime.now(UTC).replace(microsecond=0) + request.param
    source.clock = source.t(20.5)
    source.begin("a", "b", "c")
    offer_hub(source, hub)


def change(source: WildSource) -> list[str]:
    source.clock = source.t(65.5)
    source.file("a", b"changed", 60)
    source.remove("b")
    changes = [source.changed("a", "updated", 60), source.changed("b", "deleted", 61)]
    source.list_changes(*changes)
    return changes


async def test_runs_are_right(source: WildSource, copy: Copy) -> None:
    await run_right(source, copy)
    change(source)
    await run_right(source, copy)


async def test_push_is_followed(source: WildSource, hub: WildHub, copy: Copy) -> None:
    async with pushed(hub, source, copy) as subscriber:
        changes = change(source)
        await hub.push(changes, source.t(10), source.t(61))
        await until_right(subscriber, copy, source)
