"""Hubs that do not notice, or not at once, that their leases have ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rsnotify_hub.store.interface import NotOwner
from rsnotify_hub.urls import authority_of
from rsnotify_jetstream.bucket import Bucket
from rsnotify_jetstream.cluster_records import CursorsRecord, decode
from rsnotify_jetstream.nats_settings import NatsSettings
from tests.hub.helpers import TOPIC, Clock
from tests.hub.jetstream.callbacks import CallbackPorts, callback_ports
from tests.hub.jetstream.hub_process import two_hubs
from tests.hub.jetstream.hubs import SHORT_LEASES, ClusterHub, running_hubs, settled, subscribe
from tests.waiting import until


async def test_a_hub_that_was_stopped_delivers_nothing_that_another_hub_has(
    settings: NatsSettings, clock: Clock
):
    async with callback_ports(12) as callbacks, two_hubs(settings, clock, callbacks) as both:
        here, process, second = both.here, both.process, both.published
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # noqa: ASYNC222
        await here.publish(second + 1)
        await settled([here])
        assert here.urls == set(callbacks.urls)
        await callbacks.all_have(second + 1)
        counts = {url: len(callbacks.hubs[url]) for url in callbacks.urls}

        process.send_signal(signal.SIGCONT)
        await settled([here], both.other)
        await here.publish(second + 2)
        await callbacks.all_have(second + 2)
        for url in both.theirs:
            # What it had in its buffers when it continued was delivered by the other hub.
            assert callbacks.received[url].count(second + 1) == 1
            assert len(callbacks.hubs[url]) == counts[url] + 1
            assert callbacks.hubs[url][-1] == "http://other.example/websub"
        assert callbacks.overlaps == set()


async def stop_ticking(hub: ClusterHub) -> None:
    """Keep a hub from renewing its lease, and from finding that it has ended."""
    loops = hub.store.node._loops
    for task in loops:
        task.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


@asynccontextmanager
async def two_that_deliver(
    settings: NatsSettings, clock: Clock
) -> AsyncIterator[tuple[ClusterHub, ClusterHub, CallbackPorts]]:
    """Run two hubs whose callbacks have received a change, and of which one does not tick."""
    async with running_hubs(settings, clock, SHORT_LEASES) as hubs, callback_ports(8) as callbacks:
        one, two = await hubs.start_all("one", "two")
        await subscribe(callbacks.urls, one, two)
        await one.publish(1)
        await callbacks.all_have(1)
        await stop_ticking(one)
        yield one, two, callbacks
        await one.kill()


async def test_a_hub_whose_lease_has_ended_delivers_and_writes_nothing(
    settings: NatsSettings, clock: Clock
):
    async with two_that_deliver(settings, clock) as (one, two, callbacks):
        mine = one.urls
        await until(lambda: not one.shards)
        # It does not know yet that it has lost them, and nobody has taken them.
        assert one.urls == mine
        await one.publish(2)
        await settled([two])
        await two.publish(3)
        await callbacks.all_have(3)
        assert all(seconds == [1, 2, 3] for seconds in callbacks.received.values())
        for url in mine:
            assert callbacks.hubs[url][1:] == ["http://two.example/websub"] * (
                len(callbacks.hubs[url]) - 1
            )
            with pytest.raises(NotOwner):
                await one.subscribe(url)
            with pytest.raises(NotOwner):
                await one.deliveries.channel.remove(TOPIC, url)


async def test_what_a_hub_writes_that_sees_nothing_of_the_others_is_refused(
    settings: NatsSettings, clock: Clock
):
    async with two_that_deliver(settings, clock) as (one, two, _):
        # Its clock stands still, too, so that its lease does not end by its own opinion.
        await one.store.node._records.close()
        now = one.store.node._clock()
        one.store.node._clock = lambda: now
        mine = one.urls
        await until(lambda: len(two.shards) == two.store.node.sharding.count)
        cursors = Bucket(two.store.connection, "cursors")
        shard_of = one.store.node.sharding.shard_of
        for shard, url in {shard_of(authority_of(url)): url for url in mine}.items():
            assert one.owns(url)
            before = await cursors.get(shard)
            one.store.move_cursor(TOPIC, url, 0)
            await until(lambda url=url: not one.owns(url))
            after = await cursors.get(shard)
            assert before is not None
            assert after is not None
            assert after.value is not None
            epoch = two.store.node.membership._views[shard].epoch
            assert decode(after.value, CursorsRecord).epoch == epoch
            positions = {each[1] for each in decode(after.value, CursorsRecord).cursors.values()}
            assert 0 not in positions
