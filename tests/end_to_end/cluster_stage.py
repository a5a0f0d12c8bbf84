"""Three nodes of a hub that share NATS, with a Source, a broker and a Destination."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from pathlib import Path

import aiohttp

from rsnotify.runtime.processes import Process
from tests.end_to_end.counting import counting
from tests.end_to_end.stage import PATIENCE, Stage
from tests.hub.helpers import Client
from tests.hub.jetstream.fast_node import start_fast
from tests.hub.jetstream.hubs import SHARDS
from tests.nats_servers import NatsCluster

NODES = ("node1", "node2", "node3")


class ClusterStage(Stage):
    """A Source, three nodes of a hub with a broker, and a Destination."""

    def __init__(self, root: Path, nats: NatsCluster, *, fast: bool) -> None:
        follow = counting("--via", "websocket")
        super().__init__(root, (*NODES, "mqtt"), follow, nats.url)
        self._fast = fast

    @property
    def nodes(self) -> list[str]:
        return [f"http://{at}/" for at in self._hubs.values()]

    async def _start(self, *arguments: str, name: str | None = None) -> Process:
        if not self._fast or arguments[0] != "hub":
            return await super()._start(*arguments, name=name)
        assert name is not None
        log = self.root / f"{name}.log"
        self._processes[name] = process = await start_fast(*arguments, log=log)
        return process

    async def restart(self, name: str) -> None:
        await self._processes[name].stop()
        await self.revive(name)
        await self.shared()

    async def shared(self) -> None:
        """Wait until all shards have owners, and each node has some."""
        async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
            while True:
                rows = (await Client(self.nodes[0], session).admin("GET", "nodes"))["rows"]
                counts = [row["shards"] for row in rows if row["shards"]]
                if len(counts) == len(NODES) and sum(counts) == (SHARDS if self._fast else 64) + 1:
                    return
                await asyncio.sleep(0.1)


def hashes_of(folder: Path) -> Counter[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return Counter("sha-256:" + hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
