from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.subscriber.destination import Destination
from tests.subscriber.hub import SmallHub
from tests.subscriber.source import SmallSource


@pytest.fixture
async def source() -> AsyncIterator[SmallSource]:
    async with SmallSource() as source:
        yield source


@pytest.fixture
async def other_source() -> AsyncIterator[SmallSource]:
    """A server at another port, with other resources."""
    async with SmallSource() as other:
        yield other


@pytest.fixture
def some_content(source: SmallSource) -> None:
    source.put_some()


@pytest.fixture
async def hub() -> AsyncIterator[SmallHub]:
    async with SmallHub() as hub:
        yield hub


@pytest.fixture
def destination(tmp_path: Path, source: SmallSource) -> Destination:
    return Destination(tmp_path / "mirror", source)
