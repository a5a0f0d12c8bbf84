"""A Source of lists and dumps, and the log of a Destination that catches up from it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from tests.subscriber.packed_source import PackedSource


@pytest.fixture
async def source() -> AsyncIterator[PackedSource]:
    async with PackedSource() as source:
        for n in range(10):
            source.put(f"r{n}", b"%d" % n * 100)
        yield source


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "rsnotify.subscriber")
    return caplog
