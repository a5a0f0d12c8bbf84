from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rsnotify.selection.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify.sync.retry import Retry
from rsnotify_subscriber import FolderMirror, PushState, Subscriber, default_state
from tests.subscriber.hub import SmallHub
from tests.subscriber.options import gathered
from tests.subscriber.source import SmallSource

#: As in life, but in a hurry.
PACE = Pace(
    poll=0.1, poll_with_push=0.5, gap_grace=0.02, gone_after=0.05, retry=Retry(first=0.01, most=0.2)
)
CHANGE_LIST = "/data/changelist.xml"
#: Seconds after which what is waited for counts as never to come, on however slow a machine.
PATIENCE = 60.0
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


def files_of(folder: Path) -> dict[str, bytes]:
    """Read the files below a folder; those that somebody removes meanwhile are not there."""
    found = {}
    for where, _, names in os.walk(folder):
        for path in [Path(where, name) for name in names]:
            with suppress(FileNotFoundError):
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


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
        self.current = Subscriber(url or self.source.url, mirror, **gathered(options))
        return self.current

    async def catch_up(self, url: str | None = None, **options: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.subscriber(url, **options).catch_up()

    def files(self) -> dict[str, bytes]:
        return files_of(self.folder)

    def equals_source(self) -> bool:
        return self.files() == self.source.contents

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds that the subscriber made last brings about."""
        async with asyncio.timeout(PATIENCE):
            assert await self.current.until(lambda _: condition())

    async def until_pushed(self, *, relaxed: bool = False) -> None:
        """Wait until the copy is level and a hub is joined.

        Args:
            relaxed: Whether polls are to be as rare as they are with push from then on: the
                lists are only read to their end once the hub is joined.
        """
        polled = self.source.hold(CHANGE_LIST) if relaxed else None
        await self.until(lambda: self.current.status.push is PushState.UP)
        if polled is not None:
            polled.set()
        await self.until(lambda: self.current.status.level)

    async def until_equal(self) -> None:
        await self.until(self.equals_source)


@pytest.fixture
def destination(tmp_path: Path, source: SmallSource) -> Destination:
    return Destination(tmp_path / "mirror", source)
