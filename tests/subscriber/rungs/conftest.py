"""A Source of dumps to climb up by, and what is told of the climbing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from rsnotify.format.vocabulary import Capability
from tests.subscriber.destination import Destination
from tests.subscriber.packed_source import PackedSource

LISTS = (Capability.RESOURCE_LIST, Capability.CHANGE_LIST)

DUMPS = (Capability.RESOURCE_DUMP, Capability.CHANGE_DUMP)


@pytest.fixture
async def source() -> AsyncIterator[PackedSource]:
    source = PackedSource()
    await source.server.start()
    for n in range(10):
        source.put(f"r{n}", b"%d" % n * 100)
    yield source
    await source.server.stop()


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "rsnotify.subscriber")
    return caplog


def told(log: pytest.LogCaptureFixture, *parts: str) -> bool:
    return any(all(part in line for part in parts) for line in log.messages)


def fetched(source: PackedSource) -> set[str]:
    """Return which resources were asked for by themselves."""
    return {path for path in source.gets if path.removeprefix("/data/") in source.contents}


async def away(source: PackedSource, destination: Destination, *, packed: bool = True) -> None:
    """Get level, and let then much happen that the open Change List does not tell."""
    await destination.catch_up()
    for n in range(5):
        source.put(f"r{n}", b"new %d" % n * 100)
        source.put("often", b"%d" % n * 1000)
        source.delete(f"r{n + 5}")
        source.pack_changes() if packed else source.rotate()
    source.put("last", b"of all")
    source.gets.clear()
