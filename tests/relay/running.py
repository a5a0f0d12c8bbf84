"""A relay that runs and serves in the process of a test, over real HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import Document, Resource
from rsnotify.format.reader import read_document
from rsnotify_publisher import Options
from rsnotify_relay import Relay
from rsnotify_subscriber import FolderMirror, FollowOptions, Subscriber, default_state
from tests.interop.clients import contents
from tests.ports import port_for
from tests.subscriber.destination import PACE, PATIENCE
from tests.subscriber.options import gathered
from tests.subscriber.source import SmallSource

OPTIONS = Options(refresh=0.02, resource_list_every=0.05, grace=0.1)


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of a folder at a moment when no file was just removed."""
    while True:
        with suppress(FileNotFoundError):
            return contents(folder)


class Running:
    """A relay that runs and serves."""

    def __init__(
        self, url: str, folder: Path, path: str = "/r/", port: int | None = None, **given: Any
    ):
        self.port = port_for(self) if port is None else port
        self._socket = socket.create_server(("127.0.0.1", self.port))
        self.url = f"http://127.0.0.1:{self.port}{path}"
        self.folder = folder
        self.relay = Relay(
            url, folder, self.url, **gathered({"pace": PACE, "options": OPTIONS, **given}, "follow")
        )

    async def start(self) -> None:
        self._runner = web.AppRunner(self.relay.application(), shutdown_timeout=0.1)
        await self._runner.setup()
        self.work = asyncio.create_task(
            self.relay.run(lambda: web.SockSite(self._runner, self._socket).start())
        )

    async def stop(self) -> None:
        self.relay.stop()
        await asyncio.wait({self.work})
        await self._runner.cleanup()
        self._socket.close()

    async def kill(self) -> None:
        """End it at once: nothing is committed after this."""
        self.work.cancel()
        await asyncio.wait({self.work})
        await self._runner.cleanup()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            assert await self.relay.subscriber.until(lambda _: condition())

    async def until_level(self) -> None:
        async with asyncio.timeout(PATIENCE):
            assert await self.relay.subscriber.until(lambda status: status.level)

    async def until_equal(self, source: SmallSource) -> None:
        await self.until(lambda: files(self.folder) == source.contents)

    async def get(self, name: str) -> tuple[int, str, bytes]:
        async with ClientSession() as session, session.get(self.url + name) as answer:
            return answer.status, answer.content_type, await answer.read()

    async def document(self, name: str) -> Document:
        return read_document((await self.get(name))[2])

    async def published(self) -> list[Resource]:
        """Return the changes that are published, in their order, once all that are recorded are."""
        with self.relay.publisher.source.open_journal() as journal, journal.snapshot() as state:
            last = from_microseconds(state.last_change)
        async with asyncio.timeout(PATIENCE):
            while True:
                published = (await self.document("changelist.xml")).resources
                if published and published[-1].datetime == last:
                    return list(published)


async def catch_up(url: str, folder: Path) -> None:
    state, options = default_state(folder), FollowOptions(pace=PACE)
    async with asyncio.timeout(PATIENCE):
        await Subscriber(url, FolderMirror(folder), state=state, options=options).catch_up()
