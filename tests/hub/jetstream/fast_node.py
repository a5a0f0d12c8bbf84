"""Nodes of a hub as processes, whose shards move sooner than in production."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import aiohttp

from rsnotify.runtime.processes import Process
from rsnotify_jetstream import jetstream_store as store
from tests.hub.helpers import Client
from tests.hub.jetstream.hubs import PACE, SHARDS, SHORT_LEASES
from tests.namespaces import Namespace
from tests.waiting import PATIENCE

#: The variable that gives the nodes long leases, for tests that kill none.
LONG_LEASES = "RSNOTIFY_TESTS_LONG_LEASES"


class FastNode:
    """A process of `rsnotify hub` with a store in NATS.

    Args:
        process: The process, which serves.
        client: A client of it.
    """

    def __init__(self, process: Process, client: Client) -> None:
        self._process = process
        self.client = client

    async def bridges(self, way: str) -> bool:
        """Return whether it is connected to a broker."""
        return (await self.client.metrics())[f"{way}_connected"] == 1

    def suspend(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    async def drain(self) -> None:
        await self.client.admin("POST", "drain")

    async def kill(self) -> None:
        """Kill -9 it."""
        self.resume()
        await self._process.kill()


async def start_fast(*arguments: str, log: Path, machine: Namespace | None = None) -> Process:
    """Start `rsnotify ARGUMENTS` as `Process.start` does, with short leases."""
    with log.open("ab") as messages:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.hub.jetstream.fast_node", *arguments),
            cwd=Path(__file__).parents[3],
            stdout=asyncio.subprocess.PIPE,
            stderr=messages,
            preexec_fn=machine.enter if machine is not None else None,
        )
    return Process(arguments[0], process, log)


@asynccontextmanager
async def fast_node(nats: str, folder: Path, name: str, *options: str) -> AsyncIterator[FastNode]:
    """Run a node until the end of the block; its log is in a file of its name."""
    where = ("--store", nats, "--port", "0", "--allow-private-addresses")
    process = await start_fast("hub", *where, *options, log=folder / f"{name}.log")
    try:
        async with aiohttp.ClientSession() as session:
            url = await process.url()
            async with Client(url, session) as client:
                node = FastNode(process, client)
                yield node
    finally:
        with suppress(ProcessLookupError):  # the test may have killed it
            await process.kill()


async def bridging(nodes: Sequence[FastNode], way: str = "mqtt") -> FastNode:
    """Wait until one of the nodes is connected to a broker, and return it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = [node for node in nodes if await node.bridges(way)]
            if len(found) == 1:
                return found[0]
            await asyncio.sleep(0.05)


def main() -> None:
    from rsnotify.runtime.command_line import main as rsnotify

    pace = PACE if LONG_LEASES in os.environ else SHORT_LEASES
    store.open_jetstream = partial(store.open_jetstream, shards=SHARDS, pace=pace)
    rsnotify()


if __name__ == "__main__":
    main()
