"""Several nodes of a hub on three real NATS servers, which crash and stop."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from rsnotify_jetstream import jetstream_log
from rsnotify_jetstream.nats_settings import NatsSettings
from tests.hub.helpers import TOPIC, Clock
from tests.hub.jetstream.callbacks import callback_ports
from tests.hub.jetstream.hubs import SHORT_LEASES, running_hubs, settled, subscribe
from tests.hub.jetstream.load import loaded
from tests.hub.jetstream.lossy_proxy import lossy_proxy
from tests.hub.jetstream.nodes import Node, caught_up, running_node
from tests.hub.storing import made
from tests.nats_servers import NatsCluster, NatsServer
from tests.waiting import PATIENCE


async def leader(cluster: NatsCluster, node: Node) -> NatsServer:
    """Return the server that leads the stream."""
    return cluster.servers[(await node.log.stream.info())["cluster"]["leader"]]


async def server_that(cluster: NatsCluster, node: Node, which: str) -> NatsServer:
    """Return the server that leads the stream, or another."""
    leading = await leader(cluster, node)
    following = next(one for one in cluster.servers.values() if one is not leading)
    return leading if which == "leader" else following


def connected_to(cluster: NatsCluster, node: Node) -> NatsServer:
    """Return the server to which a node is connected."""
    url = node.log.connection.client.connected_url
    assert url is not None
    return next(one for one in cluster.servers.values() if one.port == url.port)


async def test_three_nodes_append_to_the_same_topics_at_once(
    three_copies: NatsSettings, clock: Clock
):
    async with loaded(three_copies, clock, count=3, topics=4) as load:
        await load.reached(100)
    assert load.retries == 0


@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_what_is_acknowledged_survives_a_server_that_is_killed(
    cluster: NatsCluster, three_copies: NatsSettings, clock: Clock, which: str
):
    async with loaded(three_copies, clock, count=2, topics=2) as load:
        await load.reached(50)
        killed = await server_that(cluster, load.nodes[0], which)
        killed.stop()
        await load.reached(50)
        killed.start()
        await asyncio.to_thread(cluster.wait)
        await load.reached(50)


@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_a_batch_whose_server_is_killed_in_the_middle_is_stored_once(
    cluster: NatsCluster, three_copies: NatsSettings, clock: Clock, which: str
):
    fragments = [made(number, number + 1, padding=10_000) for number in range(6)]
    async with running_node(three_copies, clock) as other:
        await other.append(TOPIC, made(0, 0.5))
        killed = await server_that(cluster, other, which)
        async with (
            lossy_proxy(killed.port) as (proxy, url),
            running_node(replace(three_copies, servers=(url,)), clock) as node,
        ):
            proxy.left = 35_000
            appending = asyncio.create_task(node.append(TOPIC, *fragments))
            async with asyncio.timeout(PATIENCE):
                await proxy.is_cut.wait()
            killed.stop()
            await appending
            assert await node.kept(TOPIC) == [made(0, 0.5), *fragments]
            await caught_up(other)
            assert await other.kept(TOPIC) == [made(0, 0.5), *fragments]
            assert other.listener.order == sorted(set(other.listener.order))


async def test_what_is_acknowledged_survives_a_restart_of_all_servers(
    cluster: NatsCluster, three_copies: NatsSettings, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    # Many appends fail, of which some are stored nevertheless, and are repeated.
    monkeypatch.setattr(jetstream_log, "APPEND_SECONDS", 0.5)
    async with loaded(three_copies, clock, count=2, topics=2) as load:
        await load.reached(50)
        cluster.stop()
        await asyncio.to_thread(cluster.start)
        await load.reached(50)


@pytest.mark.slow
# The library leaves a connection open that a suspended server does not answer.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("which", ["leader", "connected"])
async def test_a_server_that_is_suspended_is_left(
    cluster: NatsCluster, three_copies: NatsSettings, clock: Clock, which: str
):
    async with loaded(three_copies, clock, count=2, topics=2) as load:
        await load.reached(50)
        suspended = await leader(cluster, load.nodes[0])
        if which == "connected":
            suspended = connected_to(cluster, load.nodes[0])
        suspended.pause()
        await load.reached(50)
        suspended.resume()
        await load.reached(50)


async def test_nothing_is_lost_when_a_nats_server_crashes(
    cluster: NatsCluster, three_copies: NatsSettings, clock: Clock
):
    async with (
        running_hubs(three_copies, clock, SHORT_LEASES) as hubs,
        callback_ports(8) as callbacks,
    ):
        one, two = await hubs.start_all("one", "two")
        await subscribe(callbacks.urls, one, two)
        await one.publish(1)
        await callbacks.all_have(1)
        crashed = cluster.servers["n0"]
        crashed.stop()
        await one.publish(2)
        await two.publish(3)
        await callbacks.all_have(3)
        await settled([one, two])
        crashed.start()
        await one.publish(4)
        await callbacks.all_have(4)
        callbacks.check(4)
        assert one.urls | two.urls == set(callbacks.urls)
