"""Lets a Destination miss changes, and checks how it caught up."""

from __future__ import annotations

import pytest

from rsnotify.format.model import Capability
from tests.subscriber.destination import Destination
from tests.subscriber.packed_source import PackedSource

LISTS = (Capability.RESOURCE_LIST, Capability.CHANGE_LIST)
DUMPS = (Capability.RESOURCE_DUMP, Capability.CHANGE_DUMP)


def logged(log: pytest.LogCaptureFixture, *parts: str) -> bool:
    """Return whether one line has all these parts."""
    return any(all(part in line for part in parts) for line in log.messages)


def fetched(source: PackedSource) -> set[str]:
    """Return the resources that were fetched one by one."""
    return {path for path in source.gets if path.removeprefix("/data/") in source.contents}


async def miss_changes(
    source: PackedSource, destination: Destination, *, packed: bool = True
) -> None:
    """Catch up, and make then many changes that are not in the open Change List."""
    await destination.catch_up()
    for n in range(5):
        source.put(f"r{n}", b"new %d" % n * 100)
        source.put("often", b"%d" % n * 1000)
        source.delete(f"r{n + 5}")
        source.pack_changes() if packed else source.rotate()
    source.put("last", b"of all")
    source.gets.clear()
