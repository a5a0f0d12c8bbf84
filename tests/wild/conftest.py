"""A scripted Source and hub, and an empty folder for the copy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.wild.hub import Hub, offer_hub
from tests.wild.running import Copy, Folder, Recorder, Synchronize
from tests.wild.source import Source

KINDS = ("folder", "handler")
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try each case with one kind of copy; `make slow` tries it with the other kind."""
    for item in items:
        if item.path.parent != HERE or "copy" not in getattr(item, "fixturenames", ()):
            continue
        assert isinstance(item, pytest.Function)
        kind = item.callspec.params["copy"]
        others = [one for one in item.callspec.id.split("-") if one != kind]
        if KINDS.index(kind) != crc32(f"{item.originalname} {others}".encode()) % len(KINDS):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    source = Source()
    await source.server.start()
    yield source
    await source.server.stop()


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    hub = Hub()
    await hub.server.start()
    yield hub
    await hub.stop()


@pytest.fixture
def begun(source: Source) -> None:
    source.begin("a", "b", "c")


@pytest.fixture
def offered(begun: None, source: Source, hub: Hub) -> None:
    offer_hub(source, hub)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "copy"


@pytest.fixture(params=KINDS)
def copy(request: pytest.FixtureRequest, source: Source, tmp_path: Path) -> Copy:
    """An empty copy: a folder, or what the handler of an embedded Subscriber keeps."""
    if request.param == "folder":
        return Folder(tmp_path / "copy")
    return Recorder(source.base, tmp_path / "state")


@pytest.fixture(params=["in the next run", "while following"])
async def synchronize(
    request: pytest.FixtureRequest, source: Source, copy: Copy
) -> AsyncIterator[Synchronize]:
    """A function that waits until the copy is right, and its subscriber says so.

    Each call is a run of its own, or all are about a subscriber that the first call starts.
    """
    async with Synchronize(source, copy, goes_on=request.param == "while following") as one:
        yield one
