"""The number of WebSockets of a hub."""

from __future__ import annotations

import asyncio

import aiohttp

from tests.publisher.helpers import PATIENCE


async def until_websockets(hub: str, count: int) -> None:
    """Wait until the hub has so many WebSockets, of which no event tells here."""
    async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
        while True:
            async with session.get(hub + "metrics") as response:
                lines = (await response.text()).splitlines()
            (gauge,) = [line for line in lines if line.startswith("rsnotify_hub_websockets ")]
            if float(gauge.split()[-1]) == count:
                return
            await asyncio.sleep(0.02)
