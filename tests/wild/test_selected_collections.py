"""Only a collection of a Source is followed, and a hub contradicts the lists about its resources.

What is verified is fetched without an entry that names its collection (core §14.8): that is no
reason to remove it from the copy, nor to take in what is of another collection.
"""

from __future__ import annotations

import pytest

from rsnotify.selection import Selection
from tests.wild.documents import entry, ln, resource_list
from tests.wild.hub import WildHub, offer_hub
from tests.wild.running import HURRIED, Copy, follow_once, following, pace, polled, until
from tests.wild.source import WildSource

WANTED, OTHER = "http://c.example/wanted", "http://c.example/other"
SELECTION = Selection(collections=(WANTED,))


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    entries = []
    for name, collection in (("a", WANTED), ("b", WANTED), ("c", OTHER)):
        content = source.file(name, name.encode(), -1000)
        links = [ln("collection", collection)]
        entries.append(entry(source.uri(name), content=content, links=links))
    source.put("resourcelist.xml", resource_list(entries, at=source.t(10)))
    source.list_changes()
    offer_hub(source, hub)


def right(source: WildSource) -> dict[str, bytes]:
    return {name: content for name, content in source.resources.items() if name != "c"}


@pytest.mark.parametrize("change", ["deleted", "updated"])
async def test_what_a_hub_invents_of_it_is_put_right(
    source: WildSource, hub: WildHub, copy: Copy, change: str
) -> None:
    async with following(source, copy, pace=HURRIED, selection=SELECTION) as subscriber:
        await hub.subscribed()
        await until(subscriber, lambda status: status.level and copy.files() == right(source))
        links = [ln("collection", WANTED)]
        lie = source.changed("a", change, 50, hashed=False, links=links)
        await hub.push([lie], source.t(10), source.t(50))
        await polled(subscriber, source)
        await until(subscriber, lambda status: status.level and copy.files() == right(source))


@pytest.mark.parametrize("change", ["deleted", "updated"])
async def test_so_it_is_in_the_next_run(
    source: WildSource, hub: WildHub, copy: Copy, change: str
) -> None:
    rare = pace(poll=600.0, poll_with_push=600.0)
    async with following(source, copy, pace=rare, selection=SELECTION) as subscriber:
        await hub.subscribed()
        await until(subscriber, lambda status: status.level)
        links = [ln("collection", WANTED)]
        lie = source.changed("a", change, 50, hashed=False, links=links)
        await hub.push([lie], source.t(10), source.t(50))
        await until(subscriber, lambda status: status.through == source.t(50))
    outcome = await follow_once(source, copy, pace=HURRIED, selection=SELECTION)
    assert copy.files() == right(source) or not outcome.claims
