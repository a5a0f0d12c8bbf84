"""A web server for origins, and a hub."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.gateway.origin_server import Site
from tests.publisher.conftest import hub  # noqa: F401 - a fixture


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as server:
        yield server
