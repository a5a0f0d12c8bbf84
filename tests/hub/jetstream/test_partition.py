"""Machines with a hub node and a NATS server each, of which one is cut off from the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rsnotify.runtime.tasks import cancel
from tests.hub.helpers import TOPIC, Client, fragment, seconds_of
from tests.hub.jetstream.callbacks import CallbackPorts, callbacks_without_ports
from tests.hub.jetstream.fast_node import start_fast
from tests.hub.jetstream.hubs import SHARDS
from tests.namespaces import Namespace, Network, network
from tests.nats_servers import NatsServer
from tests.ports import free_port
from tests.waiting import PATIENCE, until

_ROUTES = 6222


class Machine:
    """A machine with a node and a server.

    Args:
        namespace: Its network.
        client: A client of the node.
    """

    def __init__(self, namespace: Namespace, client: Client) -> None:
        self.namespace = namespace
        self.client = client

    async def serves(self, *, within: float = PATIENCE) -> None:
        """Wait until the node is ready."""
        async with asyncio.timeout(within):
            while (await self.client.get("readyz"))[0] != 200:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)

    async def shards(self) -> list[int]:
        """Return how many shards each node has, as this one sees it."""
        rows = (await self.client.admin("GET", "nodes"))["rows"]
        return [row["shards"] for row in rows]


def client_of(namespace: Namespace) -> aiohttp.ClientSession:
    """Return a client within a namespace."""

    def make(info: Any) -> socket.socket:
        return namespace.call(lambda: socket.socket(info[0], info[1], info[2]))

    connector = aiohttp.TCPConnector(socket_factory=make, limit=0)
    return aiohttp.ClientSession(connector=connector)


@asynccontextmanager
async def machines(net: Network, folder: Path) -> AsyncIterator[list[Machine]]:
    urls: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        for namespace in net.machines:
            routes = [
                f"nats://{other.address}:{_ROUTES}"
                for other in net.machines
                if other is not namespace
            ]
            server = NatsServer(
                folder / f"nats-{namespace.address}",
                f"n{namespace.address[-1]}",
                settings=f"cluster {{ name: test, listen: '{namespace.address}:{_ROUTES}', "
                f"routes: [{', '.join(routes)}] }}",
                host=namespace.address,
                enter=namespace.enter,
            )
            server.start()
            stack.callback(server.stop)
            urls[namespace.address] = server.url
        found = []
        for namespace in net.machines:
            process = await start_fast(
                *("hub", "--store", urls[namespace.address], "--port", "0"),
                "--allow-private-addresses",
                log=folder / f"node-{namespace.address}.log",
                machine=namespace,
            )
            stack.push_async_callback(process.kill)
            session = await stack.enter_async_context(client_of(namespace))
            client = Client(await process.url(), session)
            found.append(Machine(namespace, await stack.enter_async_context(client)))
        yield found


@asynccontextmanager
async def callbacks_everywhere(net: Network, number: int) -> AsyncIterator[CallbackPorts]:
    """Run callbacks that all machines reach, even if they are cut off."""
    async with callbacks_without_ports() as callbacks:
        for _ in range(number):
            port = free_port()
            for namespace in net.machines:
                await web.SockSite(callbacks.runner, namespace.listen(port)).start()
            callbacks.urls.append(f"http://127.0.0.1:{port}/callback")
        yield callbacks


@pytest.mark.slow
async def test_the_majority_goes_on_and_the_minority_refuses_until_the_partition_heals(
    tmp_path: Path,
):
    with network(3) as net:
        async with (
            machines(net, tmp_path) as nodes,
            callbacks_everywhere(net, 12) as callbacks,
            AsyncExitStack() as stack,
        ):
            second = 0

            async def publish(node: Machine) -> None:
                nonlocal second
                await until_accepted(node, fragment(second, second + 1))
                second += 1

            await shared(nodes)
            for url in callbacks.urls:
                form = {"mode": "subscribe", "topic": TOPIC, "callback": url}
                assert (await nodes[0].client.form(**form))[0] == 202
            await nodes[0].client.subscriptions(lambda rows: len(rows) == len(callbacks.urls))
            sockets = [await node.client.listen() for node in nodes]
            heard: list[list[float]] = [[] for _ in nodes]
            for socket_, seconds in zip(sockets, heard, strict=True):
                stack.push_async_callback(cancel, [asyncio.create_task(hear(socket_, seconds))])
            for node in nodes:
                await publish(node)
            await callbacks.all_have(second)
            # One of them has the leader of the log.
            for cut in nodes:
                others = [node for node in nodes if node is not cut]
                net.cut_off(cut.namespace)
                own_link = f"{cut.client.url}websub"
                await publish(others[0])
                await publish(others[1])
                status, text = await cut.client.publish(fragment(second, second + 1))
                assert status == 503, text
                assert (await cut.client.get("readyz"))[0] == 503
                await publish(others[0])
                await callbacks.all_have(second)
                # Nothing comes from the one that is cut off, since it cannot have read this.
                assert all(hubs[-1] != own_link for hubs in callbacks.hubs.values())
                net.heal(cut.namespace)
                await cut.serves()
                await shared(nodes)
                await publish(cut)
                await callbacks.all_have(second)
            callbacks.check(second)
            assert callbacks.overlaps == set()
            rows = await nodes[0].client.subscriptions()
            assert len(rows) == len(callbacks.urls)
            # The WebSockets of each node have the same, also those of nodes that were cut off.
            await until(lambda: all(second in seconds for seconds in heard))
            assert all(seconds == list(range(1, second + 1)) for seconds in heard), heard


async def hear(socket_: aiohttp.ClientWebSocketResponse, seconds: list[float]) -> None:
    while True:
        seconds += seconds_of(await socket_.receive_str())


async def until_accepted(node: Machine, body: bytes) -> None:
    """Publish, again as a Source does while there is no majority."""
    async with asyncio.timeout(PATIENCE):
        while True:
            status, text = await node.client.publish(body)
            if status == 202:
                return
            assert status == 503, text


async def shared(nodes: list[Machine]) -> None:
    """Wait until each node has shards, and all see that."""
    async with asyncio.timeout(PATIENCE):
        for node in nodes:
            while True:
                with suppress(AssertionError):
                    shards = await node.shards()
                    if sum(shards) == SHARDS and len(shards) == len(nodes) and all(shards):
                        break
                await asyncio.sleep(0.1)
