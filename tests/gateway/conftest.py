"""A web server for origins, and a hub."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.gateway.origin_server import Site
from tests.publisher.helpers import FakeHub


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as server:
        yield server


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    hub = FakeHub()
    await hub.start()
    yield hub
    await hub.stop()
