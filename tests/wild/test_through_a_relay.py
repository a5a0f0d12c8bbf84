"""A relay follows a wild Source, and a Destination follows the relay.

What the relay corrects, it publishes as changes of its own, so that all who follow it correct it,
too; what it doubts, it does not call right.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.relay.running import Running
from tests.wild.hub import WildHub, offer_hub
from tests.wild.running import HURRIED, Folder, following, until, until_right
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    source.begin("a", "b", "c")
    offer_hub(source, hub)


@pytest.fixture
async def relay(source: WildSource, begun: None, tmp_path: Path) -> AsyncIterator[Running]:
    relay = Running(source.url, tmp_path / "relay", pace=replace(HURRIED, compare=0.5))
    await relay.start()
    yield relay
    await relay.stop()


async def both_are_right(relay: Running, source: WildSource, copy: Path) -> None:
    await relay.until(
        lambda: (
            relay.relay.subscriber.status.level and Folder(relay.folder).files() == source.resources
        )
    )
    url = relay.url + "capabilitylist.xml"
    async with following(url, copy) as subscriber:
        await until_right(subscriber, copy, source)


async def test_a_late_entry(source: WildSource, relay: Running, folder: Path) -> None:
    await both_are_right(relay, source, folder)
    first = source.update("a", 100)
    source.list_changes(first)
    await both_are_right(relay, source, folder)
    source.list_changes(source.update("b", 90), first)
    await both_are_right(relay, source, folder)


async def test_a_deletion_that_only_the_resource_list_shows(
    source: WildSource, relay: Running, folder: Path
) -> None:
    await both_are_right(relay, source, folder)
    source.remove("b")
    source.list_resources(at=200)
    await both_are_right(relay, source, folder)


async def test_an_invented_deletion(
    source: WildSource, hub: WildHub, relay: Running, folder: Path
) -> None:
    await hub.subscribed()
    async with following(relay.url + "capabilitylist.xml", folder) as behind:
        await until_right(behind, folder, source)
        await hub.push([source.changed("a", "deleted", 50)], source.t(10), source.t(50))
        before = len(source.requests("changelist.xml"))
        await relay.until(lambda: len(source.requests("changelist.xml")) >= before + 2)
        await until(behind, lambda _: Folder(folder).files() == source.resources)
    await both_are_right(relay, source, folder)


async def test_a_restored_source(source: WildSource, relay: Running, folder: Path) -> None:
    source.file("a", b"changed", 100)
    source.file("d", b"d", 110)
    changes = [source.changed("a", "updated", 100), source.changed("d", "created", 110)]
    source.list_changes(*changes)
    await both_are_right(relay, source, folder)
    source.remove("d")
    source.file("a", b"a", -1000)
    source.clock = source.t(1000.5)
    source.list_changes()
    await both_are_right(relay, source, folder)
