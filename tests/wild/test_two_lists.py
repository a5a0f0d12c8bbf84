"""A Capability List with two documents of one capability: neither alone is the set (core §9)."""

from __future__ import annotations

import pytest

from tests.wild.documents import capability_list, entry, resource_list
from tests.wild.running import Copy, following, run_honest, run_right, until, until_right
from tests.wild.source import WildSource

NAMES = {"resourcelist": ("resourcelist.xml", "more.xml"), "changelist": ("changelist.xml", "l")}


def offer_two(source: WildSource, capability: str) -> None:
    """Offer a second document of a capability, with a resource of its own."""
    offered = {"resourcelist": "resourcelist.xml", "changelist": "changelist.xml"}
    text = capability_list({kind: source.uri(name) for kind, name in offered.items()}).decode()
    second = entry(source.uri(NAMES[capability][1]), capability=capability)
    source.put("capabilitylist.xml", text.replace("</urlset>", f"{second}</urlset>"))


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.offer()
    source.file("a", b"a")
    source.list_resources()
    source.list_changes()
    source.file("b", b"b")
    only = [entry(source.uri("b"), content=b"b")]
    source.put("more.xml", resource_list(only, at=source.t(10)))
    source.list_changes(source.changed("b", "created", 20), name="l")


@pytest.mark.parametrize("capability", NAMES)
async def test_two_lists_are_refused_with_both_names(
    source: WildSource, copy: Copy, capability: str
) -> None:
    offer_two(source, capability)
    outcome = await run_honest(source, copy)
    assert all(name in str(outcome.reasons) for name in NAMES[capability])


@pytest.mark.parametrize("capability", NAMES)
async def test_a_second_list_that_is_offered_later_is_a_doubt_until_it_is_not_any_more(
    source: WildSource, copy: Copy, capability: str
) -> None:
    del source.resources["b"]
    await run_right(source, copy)
    offer_two(source, capability)
    async with following(source, copy) as subscriber:
        await until(subscriber, lambda status: any("core §9" in one for one in status.doubts))
        assert not subscriber.status.level
        source.offer()
        await until_right(subscriber, copy, source)
