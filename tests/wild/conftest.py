"""A scripted Source and hub, and an empty folder for the copy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.wild.hub import Hub, offer_hub
from tests.wild.running import Copy, Folder, Recorder
from tests.wild.source import Source


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


@pytest.fixture(params=["folder", "handler"])
def copy(request: pytest.FixtureRequest, source: Source, tmp_path: Path) -> Copy:
    """An empty copy: a folder, or what the handler of an embedded Subscriber keeps."""
    if request.param == "folder":
        return Folder(tmp_path / "copy")
    return Recorder(source.base, tmp_path / "state")
