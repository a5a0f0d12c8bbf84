"""A Source, a hub, a relay and Destinations as processes, with their folders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from rsnotify.runtime.processes import Process
from tests.interop.clients import contents
from tests.ports import free_port
from tests.subscriber.processes import outcome, rsnotify, running


class Site:
    """The folders and processes of a Source, a hub, a relay and Destinations."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self.data.mkdir(exist_ok=True)
        self.url, self.hub_url, self.relay_url = (
            f"http://127.0.0.1:{free_port()}/" for _ in range(3)
        )

    def hub(self) -> AbstractAsyncContextManager[None]:
        return self._process("hub", "--data", self.root / "hub", url=self.hub_url)

    def source(self) -> AbstractAsyncContextManager[None]:
        options = ("--base-url", self.url, "--hub", self.hub_url, "--rotate", "20 changes")
        return self._process("source", self.data, *options, url=self.url)

    def relay(self) -> AbstractAsyncContextManager[None]:
        folder = self.root / "relayed"
        return self._process(
            "relay", self.url, folder, "--base-url", self.relay_url, url=self.relay_url
        )

    @asynccontextmanager
    async def running_all(self) -> AsyncIterator[None]:
        async with self.hub(), self.source(), self.relay():
            yield

    def following(self, copy: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
        return running("follow", self.url, self.root / copy, "--json")

    @asynccontextmanager
    async def _process(self, name: str, *arguments: object, url: str) -> AsyncIterator[None]:
        port = url.rstrip("/").rpartition(":")[2]
        words = [*map(str, arguments), "--port", port, "--allow-private-addresses"]
        process = await Process.start(name, *words, log=self.root / f"{name}.log")
        try:
            await process.url()
            yield
        finally:
            await process.kill()

    def write(self, name: str, content: object) -> None:
        temporary = self.root / f".{name}"
        temporary.write_text(str(content))
        temporary.rename(self.data / name)

    async def follow(self, url: str, copy: str) -> int | None:
        process = await rsnotify("follow", url, self.root / copy, "--once", "--via", "poll")
        code, _, errors = await outcome(process)
        assert code in (0, 1), errors
        return code

    async def repair(self, url: str, copy: str, *options: str) -> None:
        process = await rsnotify("audit", url, self.root / copy, "--repair", *options)
        code, output, errors = await outcome(process)
        assert code in (0, 1), output + errors

    async def caught_up(self, url: str, copy: str) -> None:
        """Follow until the copy is reported to be right, and check that it is."""
        async with asyncio.timeout(90):
            while await self.follow(url, copy) != 0:
                pass
        code, output, errors = await outcome(await rsnotify("audit", url, self.root / copy))
        assert code == 0, output + errors
        assert contents(self.root / copy) == contents(self.data)

    async def back_up(self, state: str, command: str = "backup") -> None:
        paths = [self.root / state, self.root / f"{state}.backup"]
        order = paths if command == "backup" else reversed(paths)
        code, _, errors = await outcome(await rsnotify(command, *order))
        assert code == 0, errors
