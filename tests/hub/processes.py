"""A real `rsnotify hub`, in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.hub.helpers import Client
from tests.waiting import PATIENCE

Process = asyncio.subprocess.Process
COMMAND = (sys.executable, "-m", "rsnotify", "hub")


@asynccontextmanager
async def hub_process(
    data: Path, *options: str, command: Sequence[str] = COMMAND
) -> AsyncIterator[tuple[Client, Process]]:
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--port", "0", "--data", str(data), "--allow-private-addresses", *options),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            line = (await process.stdout.readline()).decode().strip()
        greeting, _, url = line.rpartition(" ")
        assert greeting == "rsnotify hub listening on"
        async with aiohttp.ClientSession() as session, Client(url, session) as client:
            yield client, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
