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
    following,
    pace,
    polled,
    pushed,
    run_right,
    until,
    until_right,
)
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    source.files("a", "b", "c")
    source.file("a", b"created again", 100)
    source.list_resources(at=200)
    source.list_changes(source.changed("a", "deleted", 50), source.changed("a", "created", 100))
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
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        old = source.changed("a", "deleted", until_)
        await hub.push([old], source.t(from_), source.t(until_))
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)
    await run_right(source, copy, pace=HURRIED)


async def test_one_that_waits_for_whoever_joins_does_no_harm(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    old = source.changed("a", "deleted", 50)
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
    async with pushed(hub, source, copy, pace=rare) as subscriber:
        told = []
        for name, from_, at in (("a", 200, 300), ("b", 300, 301)):
            source.file(name, b"changed", at)
            entries = [source.changed(name, "updated", at)]
            told.append(await hub.push(entries, source.t(from_), source.t(at)))
        await until(subscriber, lambda _: copy.files() == source.resources)
        source.forget()
        for text in told * 5 + told[::-1] * 5:
            await hub.deliver(text)
        entries = [source.update("c", 302)]
        await hub.push(entries, source.t(301), source.t(302))
        await until(subscriber, lambda _: copy.files() == source.resources)
    assert source.requests("a") == source.requests("b") == []
