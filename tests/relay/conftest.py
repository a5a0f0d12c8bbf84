"""A Source, and relays behind it, all over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.publisher.conftest import hub  # noqa: F401 - a fixture
from tests.relay.running import Running
from tests.subscriber.source import SmallSource


@pytest.fixture
async def source() -> AsyncIterator[SmallSource]:
    async with SmallSource() as source:
        yield source


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    started: list[Running] = []

    async def start(url: str, name: str = "copy", **given: Any) -> Running:
        running = Running(url, tmp_path / name, **given)
        await running.start()
        started.append(running)
        return running

    yield start
    for running in reversed(started):
        await running.stop()
