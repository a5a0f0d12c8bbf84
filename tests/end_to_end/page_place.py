"""Where a page of the documentation is tried: its commands and programs, as a reader runs them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from watchfiles import awatch

from tests.ports import free_port
from tests.publisher.helpers import PATIENCE


class PagePlace:
    """A folder with a resource, and the programs that run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.hub_port = free_port(), free_port()
        self.base = f"http://127.0.0.1:{self.port}/"
        (folder / "data").mkdir()
        (folder / "data/one.ttl").write_text("<a> <b> <c> .\n")

    @asynccontextmanager
    async def run(self, *arguments: str, **environ: str) -> AsyncIterator[None]:
        process = await asyncio.create_subprocess_exec(
            *arguments, cwd=self.folder, env=os.environ | environ
        )
        try:
            yield
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(PATIENCE):
                await process.wait()

    async def arrives(self, content: str) -> None:
        """Change the Source, and wait until the mirror has it."""
        copy = self.folder / "mirror/two.ttl"
        (self.folder / "data/two.ttl").write_text(content)
        async with asyncio.timeout(PATIENCE):
            # What was there before the watch began is found at its first timeout.
            async for _ in awatch(self.folder, rust_timeout=500, yield_on_timeout=True):
                if copy.exists() and copy.read_text() == content:
                    break
