"""A Source that tells of its documents does no harm to a Destination that only pulls."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rsnotify.format.model import Capability, Rel
from rsnotify.format.reader import read_document
from tests.interop.clients import ResyncClient, contents
from tests.publisher.helpers import FakeHub, SourceProcess, Start, eventually, put


async def test_it_follows_a_source_that_tells_others_of_its_documents(
    folder: Path, source: Start, client: ResyncClient
) -> None:
    hub = FakeHub()
    await hub.start()
    try:
        rotating = ("--rotate", "10 changes", "--resource-list-every", "0.5")
        process = await asyncio.to_thread(source, "--hub", hub.url, *rotating)
        described = read_document(await asyncio.to_thread(process.get, ".well-known/resourcesync"))
        assert described.link(Rel.MONITOR_GROUP) == process.url + "resourcesync/framework.xml"
        # It takes a second entry for a second set, and stops.
        assert len(described.resources) == 1
        for number in range(12):
            put(folder / f"file{number}", str(number))
        await hub.until(lambda: Capability.CHANGE_LIST_ARCHIVE in _kinds(hub))
        await asyncio.to_thread(eventually, lambda: _listed(process) == 12)
        await asyncio.to_thread(client.baseline, process.url)
        put(folder / "last", "1")
        await asyncio.to_thread(process.wait_for_change, "created", "last")
        await asyncio.to_thread(client.incremental, process.url)
        assert contents(client.copy) == contents(folder)
    finally:
        await hub.stop()


def _listed(process: SourceProcess) -> int:
    return len(read_document(process.get("resourcelist.xml")).resources)


def _kinds(hub: FakeHub) -> set[str | None]:
    return {entry.capability for notice in hub.notices for entry in notice.resources}
