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
    assert_honest,
    follow_once,
    following,
    pace,
    polled,
    until,
    until_right,
)
from tests.wild.source import WildSource

RARE = pace(poll=600.0, poll_with_push=600.0)


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    for name in ("a", "b", "c"):
        source.file(name, name.encode(), source.t(-1000))
    source.list_resources(at=source.t(10))
    source.list_changes(from_=source.t(5))
    offer_hub(source, hub)


async def invent(source: WildSource, hub: WildHub, at: float) -> None:
    lie = source.changed("a", "deleted", source.t(at))
    await hub.push([lie], source.t(10), source.t(at))


async def test_the_next_poll_brings_back_what_was_removed(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with following(source, copy, pace=HURRIED) as subscriber:
        await hub.subscribed()
        await until_right(subscriber, copy, source)
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
        source.file("b", b"changed", source.t(60))
        told = source.changed("b", "updated", source.t(60))
        source.list_changes(told, from_=source.t(5))
        await hub.push([told], source.t(50), source.t(60))
        await until_right(subscriber, copy, source)


async def test_the_next_run_brings_it_back_though_the_hub_is_believed_until_then(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with following(source, copy, pace=RARE) as subscriber:
        await hub.subscribed()
        await until(subscriber, lambda status: status.level)
        await invent(source, hub, 50)
        await until(subscriber, lambda _: "a" not in copy.files())
    outcome = await follow_once(source, copy, pace=HURRIED)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_a_run_after_the_list_went_beyond_it_brings_it_back(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with following(source, copy, pace=RARE) as subscriber:
        await hub.subscribed()
        await until(subscriber, lambda status: status.level)
        await invent(source, hub, 50)
        await until(subscriber, lambda _: "a" not in copy.files())
    source.file("b", b"changed", source.t(60))
    source.list_changes(source.changed("b", "updated", source.t(60)), from_=source.t(5))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_a_true_deletion_that_the_list_confirms_costs_no_further_request(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with following(source, copy) as subscriber:
        await hub.subscribed()
        await until_right(subscriber, copy, source)
        source.remove("a")
        told = source.changed("a", "deleted", source.t(50))
        source.list_changes(told, from_=source.t(5))
        source.forget()
        await hub.push([told], source.t(10), source.t(50))
        await until_right(subscriber, copy, source)
        await polled(subscriber, source)
    assert source.requests("a") == []
    assert source.requests("resourcelist.xml") == []
