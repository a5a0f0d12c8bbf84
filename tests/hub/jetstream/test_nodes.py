"""Nodes of a hub as processes, which an administrator lists and drains."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from rsnotify.errors import FetchError
from rsnotify_hub.admin.client import AdminClient
from rsnotify_hub.store.nodes import NodeList
from tests.hub.jetstream.fast_node import start_fast
from tests.hub.jetstream.hubs import SHARDS
from tests.hub.jetstream.nodes import part_of
from tests.nats_servers import NatsCluster
from tests.waiting import PATIENCE


async def test_a_node_that_is_drained_gives_its_work_to_the_others(
    nats_server: NatsCluster, tmp_path: Path
):
    store = f"{nats_server.url}?prefix={part_of(tmp_path)}"
    processes = [
        await start_fast("hub", "--port", "0", "--store", store, log=tmp_path / f"{number}.log")
        for number in range(2)
    ]
    try:
        one, two = [await process.url() for process in processes]
        await shared(AdminClient(one, None), nodes=2)
        await AdminClient(one, None).call("drain")
        await shared(AdminClient(two, None), nodes=1)
        async with aiohttp.ClientSession() as session:
            assert (await session.get(one + "readyz")).status == 503
            assert (await session.get(two + "readyz")).status == 200
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await session.ws_connect(one + "ws")
        with pytest.raises(FetchError, match="no other node could do its work"):
            await AdminClient(two, None).call("drain")
    finally:
        for process in processes:
            await process.stop()


async def shared(admin: AdminClient, *, nodes: int) -> None:
    """Wait until all shards are owned, by so many nodes."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found: NodeList = await admin.call("nodes")
            counts = [row.shards for row in found.rows if row.shards]
            if len(counts) == nodes and sum(counts) == SHARDS:
                return
            await asyncio.sleep(0.1)
