"""A hub delivers fragments that are true but old, or of a Source that was set up anew since.

MQTT brokers keep the last fragment of a topic and give it to whoever joins, however long ago it
was retained; WebSub hubs deliver again what was not acknowledged (WebSub §7); a hub's log may
outlive the Source's history.
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


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    for name in ("a", "b", "c"):
        source.file(name, name.encode(), source.t(-1000))
    source.file("a", b"created again", source.t(100))
    source.list_resources(at=source.t(200))
    source.list_changes(
        source.changed("a", "deleted", source.t(50)),
        source.changed("a", "created", source.t(100)),
        from_=source.t(5),
    )
    offer_hub(source, hub)


ERAS = {
    "before all that is known": (40, 50),
    "across what is known": (40, 5000),
    "from before the Source's lists": (-90_000, -80_000),
    "from the beginning until now": (-90_000, 5000),
    "ahead of all that is known": (9000, 9050),
}


@pytest.mark.parametrize(("from_", "until_"), ERAS.values(), ids=list(ERAS))
async def test_a_retained_deletion_of_another_era_does_no_harm(
    source: WildSource, hub: WildHub, copy: Copy, from_: float, until_: float
) -> None:
    async with following(source, copy, pace=HURRIED) as subscriber:
        await hub.subscribed()
        await until_right(subscriber, copy, source)
        old = source.changed("a", "deleted", source.t(until_))
        await hub.push([old], source.t(from_), source.t(until_))
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)
    outcome = await follow_once(source, copy, pace=HURRIED)
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_one_that_waits_for_whoever_joins_does_no_harm(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    old = source.changed("a", "deleted", source.t(50))
    text = await hub.push([old], source.t(40), source.t(50))
    async with following(source, copy, pace=HURRIED) as subscriber:
        await hub.subscribed()
        await hub.deliver(text)
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)


async def test_a_fragment_that_is_delivered_again_and_again_costs_nothing(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    rare = pace(poll=600.0, poll_with_push=600.0)
    async with following(source, copy, pace=rare) as subscriber:
        await hub.subscribed()
        await until(subscriber, lambda status: status.level)
        told = []
        for name, from_, at in (("a", 200, 300), ("b", 300, 301)):
            source.file(name, b"changed", source.t(at))
            entries = [source.changed(name, "updated", source.t(at))]
            told.append(await hub.push(entries, source.t(from_), source.t(at)))
        await until(subscriber, lambda _: copy.files() == source.resources)
        source.forget()
        for text in told * 5 + told[::-1] * 5:
            await hub.deliver(text)
        source.file("c", b"changed", source.t(302))
        entries = [source.changed("c", "updated", source.t(302))]
        await hub.push(entries, source.t(301), source.t(302))
        await until(subscriber, lambda _: copy.files() == source.resources)
    assert source.requests("a") == source.requests("b") == []
