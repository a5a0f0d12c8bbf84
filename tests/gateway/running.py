"""A gateway that runs and serves in the process of a test."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from aiohttp import ClientSession, web

from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify_gateway import Gateway, OriginSettings
from rsnotify_publisher import Options
from tests.gateway.checking import CONTACT
from tests.waiting import PATIENCE

OPTIONS = Options(heartbeat=0.05, refresh=0.02, resource_list_every=0.05, grace=0.1)


async def until_answered(url: str) -> None:
    """Wait until a document is published."""
    async with ClientSession() as session, asyncio.timeout(PATIENCE):
        while True:
            async with session.get(url) as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.02)


def configuration(port: int, data: Path, rotate: str, *origins: dict[str, object]) -> str:
    """Write the settings of a gateway that checks its origins often."""
    often = {"poll": 0.05, "poll_most": 0.1, "delay": 0}
    tables = (
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in (often | one).items())
        for one in origins
    )
    return f"""
contact = "operator@gateway.example"
base_url = "http://127.0.0.1:{port}/"
port = {port}
data = "{data}"
[options]
refresh = 0.05
resource_list_every = 0.1
rotate = "{rotate}"
""" + "".join(f"[[origin]]\n{table}" for table in tables)


class RunningGateway:
    def __init__(
        self, folder: Path, origins: Sequence[OriginSettings], port: int = 0, **given: Any
    ) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.gateway = Gateway(
            folder, self.url, origins, **{"contact": CONTACT, "options": OPTIONS, **given}
        )

    async def __aenter__(self) -> Self:
        self._serving = asyncio.Event()
        self._runner = web.AppRunner(self.gateway.application(), shutdown_timeout=0.1)
        await self._runner.setup()

        async def serve() -> None:
            await web.SockSite(self._runner, self._socket).start()
            self._serving.set()

        self.work = asyncio.create_task(self.gateway.run(serve))
        await self._serving.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.work.cancel()
        await asyncio.wait({self.work})
        await self._runner.cleanup()
        self._socket.close()

    async def until_ready(self, number: int = 0) -> None:
        await self.gateway.watches[number].ready.wait()

    async def get(self, name: str) -> tuple[int, bytes]:
        async with ClientSession() as session, session.get(self.url + name) as answer:
            return answer.status, await answer.read()

    async def document(self, name: str) -> Document:
        status, body = await self.get(name)
        assert status == 200
        return read_document(body)
