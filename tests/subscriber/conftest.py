from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.subscriber.destination import Destination
from tests.subscriber.hub import SmallHub
from tests.subscriber.source import SmallSource


@pytest.fixture
async def source() -> AsyncIterator[SmallSource]:
    source = SmallSource()
    await source.server.start()
    yield source
    await source.server.stop()


@pytest.fixture
async def hub() -> AsyncIterator[SmallHub]:
    hub = SmallHub()
    await hub.server.start()
    yield hub
    await hub.stop()


@pytest.fixture
def destination(tmp_path: Path, source: SmallSource) -> Destination:
    return Destination(tmp_path / "mirror", source)
