from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rsnotify_subscriber import Fleet, FolderMirror, Limits, Received, Subscriber
from rsnotify_subscriber.fleet import FollowedSourceStatus
from tests.subscriber.destination import PACE, PATIENCE, files_of
from tests.subscriber.options import gathered
from tests.subscriber.source import SmallSource

DEFAULT_LIMITS = Limits()


class Many:
    """Some small Sources, and where they are mirrored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: dict[str, SmallSource] = {}

    async def start(self, count: int) -> None:
        for number in range(count):
            source = self.sources[f"s{number}"] = SmallSource()
            await source.server.start()
            for resource in range(3):
                source.put(f"r{resource}", b"%d of %d" % (resource, number))

    async def fleet(self, count: int, limits: Limits = DEFAULT_LIMITS, *away: str) -> Fleet:
        """Start so many Sources, apart from some, and make a fleet of all."""
        await self.start(count)
        for name in away:
            await self.sources[name].server.stop()
        return self.fleet_of_all(limits)

    def fleet_of_all(self, limits: Limits = DEFAULT_LIMITS) -> Fleet:
        fleet = Fleet(limits)
        for name in self.sources:
            self.add(fleet, name)
        return fleet

    async def stop(self) -> None:
        await asyncio.gather(*(source.server.stop() for source in self.sources.values()))

    def mirror(self, name: str) -> Path:
        return self.folder / name

    def add(self, fleet: Fleet, name: str, handler: Any = None, **options: Any) -> Subscriber:
        options.setdefault("state", self.folder / f"{name}.state")
        options.setdefault("pace", PACE)
        handler = handler or FolderMirror(self.mirror(name))
        url = self.sources[name].url
        subscriber = Subscriber(url, handler, shared=fleet.shared, **gathered(options))
        fleet.add(name, subscriber)
        return subscriber

    def equal(self, *names: str) -> bool:
        """Whether mirrors are what their Sources are; all of them, if none is named."""
        return all(
            files_of(self.mirror(name)) == self.sources[name].contents
            for name in names or self.sources
        )


class Hanging:
    """A handler that waits in its thread until it is let go.

    Attributes:
        called: Is set by the call.
    """

    def __init__(self) -> None:
        self.called = threading.Event()
        self.release = threading.Event()

    def apply(self, changes: Sequence[Received]) -> None:
        self.called.set()
        assert self.release.wait(PATIENCE)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    one = Hanging()
    yield one
    one.release.set()


@pytest.fixture
async def many(tmp_path: Path) -> AsyncIterator[Many]:
    many = Many(tmp_path)
    yield many
    await many.stop()


async def until(
    fleet: Fleet, condition: Callable[[Mapping[str, FollowedSourceStatus]], bool]
) -> None:
    async with asyncio.timeout(PATIENCE):
        await fleet.until(condition)


async def until_level(fleet: Fleet, *names: str) -> None:
    """Wait until these are level; all of them, if none is named."""
    await until(fleet, lambda all_: all(all_[name].status.level for name in names or all_))
