"""A hub withholds changes, and says by `from` and `until` that there were none."""

from __future__ import annotations

import pytest

from tests.wild.hub import WildHub, offer_hub
from tests.wild.running import (
    Copy,
    assert_honest,
    follow_once,
    following,
    pace,
    until,
    until_right,
)
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    for name in ("a", "b", "c"):
        source.file(name, name.encode(), source.t(-1000))
    source.list_resources(at=source.t(10))
    source.list_changes(from_=source.t(5))
    offer_hub(source, hub)


def change(source: WildSource) -> list[str]:
    source.file("a", b"changed", source.t(60))
    first = source.changed("a", "updated", source.t(60))
    source.remove("b")
    second = source.changed("b", "deleted", source.t(61))
    source.file("c", b"changed", source.t(62))
    third = source.changed("c", "updated", source.t(62))
    source.list_changes(first, second, third, from_=source.t(5))
    return [first, second, third]


@pytest.mark.parametrize("told", [0, 1], ids=["all", "all but the last"])
async def test_the_next_poll_finds_them(
    source: WildSource, hub: WildHub, copy: Copy, told: int
) -> None:
    async with following(source, copy) as subscriber:
        await hub.subscribed()
        await until_right(subscriber, copy, source)
        changes = change(source)
        await hub.push(changes[3 - told :], source.t(10), source.t(100))
        await until_right(subscriber, copy, source)


@pytest.mark.parametrize("told", [0, 1], ids=["all", "all but the last"])
async def test_the_next_run_finds_them(
    source: WildSource, hub: WildHub, copy: Copy, told: int
) -> None:
    rare = pace(poll=600.0, poll_with_push=600.0)
    async with following(source, copy, pace=rare) as subscriber:
        await hub.subscribed()
        await until(subscriber, lambda status: status.level)
        changes = change(source)
        await hub.push(changes[3 - told :], source.t(10), source.t(100))
        await until(
            subscriber,
            lambda status: status.through is not None and status.through >= source.t(100),
        )
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome
