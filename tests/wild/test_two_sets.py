"""One Source has two sets of resources, and something of the one turns up in the other.

core §6.3 gives each set its own Capability List. Hubs are set up wrongly, sets share a channel, and
a Change List may list what does not belong to its set.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wild.documents import capability_list, description, entry, inline, ln
from tests.wild.hub import WildHub, offer_hub
from tests.wild.running import (
    HURRIED,
    Copy,
    assert_honest,
    command_audit,
    command_follow_once,
    polled,
    pushed,
    run_right,
    until_right,
)
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    source.begin("a", "b")
    offer_hub(source, hub)
    other = {"resourcelist": source.uri("/other/resourcelist.xml")}
    source.put("/other/capabilitylist.xml", capability_list(other))
    lists = [source.url, source.uri("/other/capabilitylist.xml")]
    source.put("/.well-known/resourcesync", description(lists))


async def test_who_names_the_site_is_asked_which_of_them(source: WildSource, folder: Path) -> None:
    outcome = await command_follow_once(source.site, folder)
    assert outcome.code == 2
    assert "/set/capabilitylist.xml" in outcome.output
    assert "/other/capabilitylist.xml" in outcome.output


async def test_a_fragment_of_the_other_set_changes_nothing(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        strange = entry(
            source.uri("/other/x"),
            "created",
            datetime=source.t(50),
            content=b"x",
            links=[inline(b"x")],
        )
        await hub.push([strange], source.t(10), source.t(50))
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)
    await run_right(source, copy, pace=HURRIED)


async def test_the_time_of_the_other_set_does_not_count(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    """Both sets share a channel: what the other tells says nothing of the time of this one."""
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        up = ln("up", source.uri("/other/capabilitylist.xml"))
        strange = entry(source.uri("/other/x"), "created", datetime=source.t(500), links=[up])
        await hub.push([strange], source.t(10), source.t(500))
        source.list_changes(source.update("a", 60))
        await until_right(subscriber, copy, source)


async def test_audit_does_not_mistake_one_set_for_the_other(
    source: WildSource, folder: Path
) -> None:
    source.put("/other/resourcelist.xml", source.answers["/set/resourcelist.xml"])
    assert_honest(folder, source, await command_follow_once(source, folder))
    outcome = await command_audit(source.uri("/other/capabilitylist.xml"), folder)
    assert outcome.code != 0
