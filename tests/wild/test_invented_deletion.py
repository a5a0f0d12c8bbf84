"""A hub delivers a deletion that never happened.

A hub is not the Source: whoever may publish there, a bug, or messages of another era can invent a
change. No list will ever have it, nor take it back. So what was learned by push alone counts until
a list that covers its time confirms it; if the list lacks it, the resource itself is asked for.
"""

from __future__ import annotations

import pytest

from tests.wild.hub import WildHub, offer_hub
from tests.wild.running import (
    HURRIED,
    Copy,
    following,
    pace,
    polled,
    pushed,
    run_right,
    until,
    until_right,
)
from tests.wild.source import WildSource

RARE = pace(poll=600.0, poll_with_push=600.0)


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    source.begin("a", "b", "c")
    offer_hub(source, hub)


async def invent(source: WildSource, hub: WildHub, at: float) -> None:
    lie = source.changed("a", "deleted", at)
    await hub.push([lie], source.t(10), source.t(at))


async def test_the_next_poll_brings_back_what_was_removed(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        await invent(source, hub, 50)
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)


async def test_so_it_does_where_the_list_goes_on(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with following(source, copy, pace=pace(poll_with_push=1.0)) as subscriber:
        await hub.subscribed()
        await until_right(subscriber, copy, source)
        await invent(source, hub, 50)
        told = source.update("b", 60)
        source.list_changes(told)
        await hub.push([told], source.t(50), source.t(60))
        await until_right(subscriber, copy, source)


async def test_the_next_run_brings_it_back_though_the_hub_is_believed_until_then(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        await invent(source, hub, 50)
        await until(subscriber, lambda _: "a" not in copy.files())
    await run_right(source, copy, pace=HURRIED)


async def test_a_run_after_the_list_went_beyond_it_brings_it_back(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        await invent(source, hub, 50)
        await until(subscriber, lambda _: "a" not in copy.files())
    source.list_changes(source.update("b", 60))
    await run_right(source, copy)


async def test_a_true_deletion_that_the_list_confirms_costs_no_further_request(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with pushed(hub, source, copy) as subscriber:
        told = source.delete("a", 50)
        source.list_changes(told)
        source.forget()
        await hub.push([told], source.t(10), source.t(50))
        await until_right(subscriber, copy, source)
        await polled(subscriber, source)
    assert source.requests("a") == []
    assert source.requests("resourcelist.xml") == []
