"""Subscriptions on three NATS servers, of which one crashes."""

from __future__ import annotations

from rsnotify_jetstream.settings import parse_nats_url
from tests.hub.helpers import Clock
from tests.hub.jetstream.callbacks import callback_ports
from tests.hub.jetstream.hubs import owner_of, running_hubs, settled
from tests.nats_servers import NatsCluster


async def test_nothing_is_lost_when_a_nats_server_crashes(cluster: NatsCluster, clock: Clock):
    settings = parse_nats_url(f"{cluster.url}?replicas=3")
    async with running_hubs(settings, clock) as hubs, callback_ports(8) as callbacks:
        one, two = await hubs.start("one"), await hubs.start("two")
        await settled([one, two])
        for url in callbacks.urls:
            await owner_of(url, [one, two]).subscribe(url)
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
