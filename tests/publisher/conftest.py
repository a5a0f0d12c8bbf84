"""Fixtures of the publisher's tests; their classes are in `helpers`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from tests.publisher.helpers import FakeHub, SourceProcess


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    fake = FakeHub()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def source() -> Iterator[Callable[..., SourceProcess]]:
    started: list[SourceProcess] = []

    def start(folder: Path | None, *arguments: str, by: Sequence[str] = ()) -> SourceProcess:
        process = SourceProcess(folder, *arguments, by=by)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made
