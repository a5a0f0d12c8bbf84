from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from rsnotify.pace import Pace
from rsnotify.retry import Retry
from rsnotify.selection import Selection
from rsnotify_subscriber import FolderMirror, Subscriber, default_state
from tests.subscriber.hub import SmallHub
from tests.subscriber.source import SmallSource

#: As in life, but in a hurry.
PACE = Pace(
    poll=0.1, poll_with_push=0.5, gap_grace=0.02, gone_after=0.05, retry=Retry(first=0.01, most=0.2)
)
#: Another selection than none: everything is compared with the Resource List anew.
ANEW = Selection(excluded=("nothing",))


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


class Destination:
    """A mirror and whoever follows into it."""

    def __init__(self, folder: Path, source: SmallSource) -> None:
        self.folder = folder
        self.source = source
        self.current: Subscriber

    def subscriber(self, url: str | None = None, **options: Any) -> Subscriber:
        options.setdefault("pace", PACE)
        options.setdefault("state", default_state(self.folder))
        mirror = FolderMirror(self.folder)
        self.current = Subscriber(url or self.source.url, mirror, **options)
        return self.current

    async def catch_up(self, url: str | None = None, **options: Any) -> None:
        async with asyncio.timeout(60):
            await self.subscriber(url, **options).catch_up()

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file()
        }

    def equals_source(self) -> bool:
        return self.files() == self.source.contents

    async def until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        """Wait until something holds that the subscriber made last brings about."""
        async with asyncio.timeout(seconds):
            assert await self.current.until(lambda _: condition())

    async def until_equal(self, seconds: float = 10) -> None:
        await self.until(self.equals_source, seconds)


@pytest.fixture
def destination(tmp_path: Path, source: SmallSource) -> Destination:
    return Destination(tmp_path / "mirror", source)
