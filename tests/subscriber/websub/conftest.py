from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration
from rsnotify_subscriber.push import websub_transport as transport
from tests.subscriber.websub.blog import Blog, open_blog
from tests.subscriber.websub.desk import PATIENCE, Desk, open_desk

RunHub = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture(autouse=True)
def no_hurry_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until each hub has received the unsubscribe requests; the machine may be busy."""
    monkeypatch.setattr(transport, "_UNSUBSCRIBE_TIMEOUT", PATIENCE)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with open_desk() as opened:
        yield opened


@pytest.fixture
async def blog() -> AsyncIterator[Blog]:
    async with open_blog() as opened:
        yield opened


@pytest.fixture
def run_hub(tmp_path: Path) -> RunHub:
    """Run the real hub over the test's folder, each time over the same; gives its URL."""

    @asynccontextmanager
    async def run(**settings: Any) -> AsyncIterator[str]:
        defaults = {
            "port": 0,
            "data": str(tmp_path / "hub"),
            "allow_private_addresses": True,
            "retry_seconds": 0.01,
            "min_lease_seconds": 1,
        }
        async with serve(load_configuration(None, **{**defaults, **settings})) as url:
            yield url

    return run


@pytest.fixture
async def hub(run_hub: RunHub) -> AsyncIterator[str]:
    async with run_hub() as url:
        yield url
