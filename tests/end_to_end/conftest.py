"""A hub in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration


def running_hub(folder: Path, **settings: Any) -> AbstractAsyncContextManager[str]:
    settings = {"port": 0, "data": str(folder), "allow_private_addresses": True, **settings}
    return serve(load_configuration(None, **settings))


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[str]:
    async with running_hub(tmp_path / "hub") as url:
        yield url
