"""Many sets of one process, a hub, and a fleet that follows them: a WebSocket at each side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration
from rsnotify_publisher import Publisher, SourceDescription
from rsnotify_subscriber import Fleet, FolderMirror, PushState, Subscriber
from rsnotify_subscriber.fleet import FollowedSourceStatus
from tests.end_to_end.open_websockets import until_websockets
from tests.ports import free_port
from tests.publisher.helpers import PATIENCE, QUICK, serving

SETS = 4
TOKEN = "a-token-of-a-source"


class Scene:
    """Sets of resources, and a fleet that follows each of them."""

    def __init__(self, folder: Path, port: int, hub: str) -> None:
        self.hub = hub
        self._folder = folder
        self._base = f"http://127.0.0.1:{port}/"
        self.contents = [b"first"] * SETS
        self.publishers = [
            Publisher(
                folder / f"state{number}",
                f"{self._base}{number}/",
                hubs=[hub],
                token=TOKEN,
                options=QUICK,
                content=lambda uri: self.contents[int(uri.split("/")[3])],
            )
            for number in range(SETS)
        ]
        self.source = SourceDescription(self._base, self.publishers)
        self.fleet = Fleet()
        for number in range(SETS):
            mirror = FolderMirror(self._copy(number))
            url = f"{self._base}{number}/capabilitylist.xml"
            state = folder / f"copied{number}"
            self.fleet.add(
                str(number), Subscriber(url, mirror, state=state, shared=self.fleet.shared)
            )

    def _copy(self, number: int) -> Path:
        return self._folder / f"copy{number}"

    def application(self) -> web.Application:
        async def content(request: web.Request) -> web.Response:
            return web.Response(body=self.contents[int(request.match_info["number"])])

        app = web.Application()
        app.router.add_get("/{number}/resource", content)
        app.router.add_get("/{tail:.*}", self._documents)
        return app

    async def _documents(self, request: web.Request) -> web.StreamResponse:
        number, _, name = request.match_info["tail"].partition("/")
        folder = self.publishers[int(number)].source.documents_folder
        path = folder / name
        return web.FileResponse(path) if path.is_file() else web.Response(status=404)

    async def change(self, content: bytes, numbers: Sequence[int] = range(SETS)) -> None:
        for number in numbers:
            self.contents[number] = content
            uri = f"{self._base}{number}/resource"
            await self.publishers[number].aupdated(uri, content=content)

    async def until_copied(self, content: bytes, numbers: Sequence[int] = range(SETS)) -> None:
        def is_copied(number: int) -> bool:
            files = [path for path in self._copy(number).rglob("resource*") if path.is_file()]
            return [path.read_bytes() for path in files] == [content]

        await self.until(lambda _: all(map(is_copied, numbers)))

    async def until(self, condition: Callable[[list[FollowedSourceStatus]], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.fleet.until(lambda statuses: condition(list(statuses.values())))

    async def until_pushed(self) -> None:
        await self.until(
            lambda all_: all(one.status.level and one.status.push is PushState.UP for one in all_)
        )


@pytest.fixture
def run_hub(tmp_path: Path) -> Callable[..., Any]:
    port = free_port()

    def run(*granted: str) -> Any:
        grants = [{"token": TOKEN, "topics": granted}]
        settings = {"port": port, "data": str(tmp_path / "hub"), "publishers": grants}
        return serve(load_configuration(None, **settings, allow_private_addresses=True))

    return run


@asynccontextmanager
async def played(folder: Path, port: int, hub: str) -> AsyncIterator[Scene]:
    scene = Scene(folder, port, hub)
    async with serving(scene.application(), port), scene.source:
        for publisher in scene.publishers:
            assert await publisher.await_published(PATIENCE)
        async with scene.fleet:
            yield scene


async def test_source_and_fleet_have_one_websocket_each_and_open_it_again(
    tmp_path: Path, run_hub: Callable[..., Any]
):
    port = free_port()
    topics = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        async with run_hub(topics) as hub:
            scene = await stack.enter_async_context(played(tmp_path, port, hub))
            await scene.until_pushed()
            await until_websockets(hub, 2)
            await scene.change(b"second")
            await scene.until_copied(b"second")
        await scene.until(lambda all_: all(one.status.push is PushState.DOWN for one in all_))
        await scene.change(b"third")
        async with run_hub(topics) as hub:
            await scene.until_copied(b"third")
            await scene.until_pushed()
            await until_websockets(hub, 2)
            await scene.fleet.remove("0")
            await scene.change(b"fourth")
            await scene.until_copied(b"fourth", range(1, SETS))
            await until_websockets(hub, 2)
            await stack.aclose()
            await until_websockets(hub, 0)


async def test_a_set_that_the_hub_refuses_does_not_delay_the_others(
    tmp_path: Path, run_hub: Callable[..., Any]
):
    port = free_port()
    granted = [f"http://127.0.0.1:{port}/{number}" for number in range(1, SETS)]
    async with run_hub(*granted) as hub, played(tmp_path, port, hub) as scene:
        await scene.until_pushed()
        await scene.change(b"second", range(1, SETS))
        await scene.until_copied(b"second", range(1, SETS))
        await until_websockets(hub, 2)
