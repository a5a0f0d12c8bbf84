"""A Destination for tests: a mirror, its subscriber, and settings in which nothing takes long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from rsnotify.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify.sync.retry import Retry
from rsnotify_subscriber import Event, FolderMirror, PushState, Subscriber, Via, default_state
from tests.subscriber.options import gathered
from tests.subscriber.source import PATIENCE, SmallSource

E = TypeVar("E")
#: As in production, but with short intervals.
PACE = Pace(
    poll=0.1,
    poll_with_push=0.5,
    gap_grace=0.02,
    patience=2.0,
    gone_after=0.05,
    retry=Retry(first=0.01, most=0.2),
)
CHANGE_LIST = "/data/changelist.xml"
#: A selection of everything: the copy is compared with the Resource List again.
ANEW = Selection(excluded=("nothing",))


def files_of(folder: Path) -> dict[str, bytes]:
    """Read the files below a folder; those that are removed meanwhile are left out."""
    found = {}
    for where, _, names in os.walk(folder):
        for path in [Path(where, name) for name in names]:
            with suppress(FileNotFoundError):
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


class Destination:
    """A mirror, the subscriber that follows into it, and the events of all its subscribers."""

    def __init__(self, folder: Path, source: SmallSource) -> None:
        self.folder = folder
        self.source = source
        self.current: Subscriber
        self.events: list[Event] = []

    def subscriber(self, url: str | None = None, **options: Any) -> Subscriber:
        defaults = {
            "pace": PACE,
            "state": default_state(self.folder),
            "on_event": self.events.append,
        }
        mirror = FolderMirror(self.folder)
        self.current = Subscriber(url or self.source.url, mirror, **gathered(defaults | options))
        return self.current

    @asynccontextmanager
    async def following(self, **options: Any) -> AsyncIterator[Subscriber]:
        """Follow; enter once the copy is level and a hub, if there is one, is joined."""
        async with self.subscriber(**options) as subscriber:
            await self.until(lambda: subscriber.status.level)
            named = any(name in options for name in ("mqtt", "hubs"))
            if (self.source.hubs or named) and options.get("via") is not Via.POLL:
                await self.until(lambda: subscriber.status.push is PushState.UP)
            yield subscriber

    async def catch_up(self, url: str | None = None, **options: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.subscriber(url, **options).catch_up()

    async def become_equal(self, url: str | None = None, **options: Any) -> None:
        """Catch up, and check that the copy equals the Source."""
        await self.catch_up(url, **options)
        assert self.equals_source()

    def files(self) -> dict[str, bytes]:
        return files_of(self.folder)

    def equals_source(self) -> bool:
        return self.files() == self.source.contents

    def events_of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds that the last subscriber brings about."""
        async with asyncio.timeout(PATIENCE):
            assert await self.current.until(lambda _: condition())

    async def until_pushed(self, *, relaxed: bool = False) -> None:
        """Wait until the copy is level and a hub is joined.

        Args:
            relaxed: Whether polls should be as rare from then on as they are with push: the lists
                are only read to their end once the hub is joined.
        """
        polled = self.source.hold(CHANGE_LIST) if relaxed else None
        await self.until(lambda: self.current.status.push is PushState.UP)
        if polled is not None:
            polled.set()
        await self.until(lambda: self.current.status.level)

    async def until_equal(self) -> None:
        await self.until(self.equals_source)

    async def until_by(self, *hubs: str) -> None:
        """Wait until changes come by just these hubs."""
        await self.until(lambda: self.current.status.way == hubs)
