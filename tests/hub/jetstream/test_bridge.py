"""A bridge to a broker runs on one node of a cluster at a time, and loses nothing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from rsnotify.errors import Unavailable
from rsnotify.runtime.mqtt_broker import channel_topic, parse_broker
from rsnotify.runtime.mqtt_connection import connect
from rsnotify_xmpp.xmpp_connection import connect as connect_xmpp
from rsnotify_xmpp.xmpp_service import parse_service
from tests.hub.helpers import TOPIC, fragment, seconds_of
from tests.hub.jetstream.fast_node import FastNode, bridging, fast_node
from tests.hub.mqtt.listeners import BrokerListener
from tests.mosquitto import Mosquitto
from tests.nats_servers import NatsCluster
from tests.prosody import Prosody
from tests.waiting import PATIENCE


class Heard(BrokerListener):
    """A subscriber at the broker.

    Attributes:
        seconds: The seconds of all changes that it received, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    async def up_to(self, second: float) -> None:
        while second not in self.seconds:
            self.seconds += seconds_of((await self.next()).payload)

    def check(self, last: int) -> None:
        """Check that every change arrived, and each after those before it."""
        reached = 0.0
        for second in self.seconds:
            assert second <= reached + 1, self.seconds
            reached = max(reached, second)
        assert reached == last, self.seconds


async def test_the_bridge_runs_on_one_node_at_a_time_and_moves_when_that_one_fails(
    nats_server: NatsCluster, mosquitto: Mosquitto, tmp_path: Path
):
    settings = tmp_path / "mqtt.toml"
    settings.write_text(f'mqtt_url = "{mosquitto.url}"\n')
    nats = f"{nats_server.url}?prefix=bridge"
    async with AsyncExitStack() as stack:

        async def started(name: str, *options: str) -> FastNode:
            return await stack.enter_async_context(fast_node(nats, tmp_path, name, *options))

        # A node without MQTT settings never runs the bridge.
        plain = await started("plain")
        one = await started("one", "--config", str(settings))
        two = await started("two", "--config", str(settings))
        # Only now, since the start of processes may keep this one too busy to ping the broker.
        listener = Heard()
        listener.connection = await stack.enter_async_context(
            connect(parse_broker(mosquitto.url), on_message=listener.messages.put_nowait)
        )
        await listener.connection.subscribe(channel_topic(TOPIC))
        published = 0

        async def publish(node: FastNode) -> None:
            nonlocal published
            await node.client.accepted(fragment(published, published + 1))
            published += 1

        first = await bridging([one, two])
        for node in (plain, one, two, plain):
            await publish(node)
        await listener.up_to(published)

        first.suspend()
        other = two if first is one else one
        await publish(plain)
        await bridging([other])
        await publish(other)
        await listener.up_to(published)
        first.resume()
        # It has the shard again once it has renewed its lease, and continues at the cursor.
        await bridging([other, first])
        await publish(first)
        await listener.up_to(published)
        assert listener.seconds.count(published - 1) == 1
        assert listener.seconds.count(published - 2) == 1

        dying = await bridging([one, two])
        await publish(dying)
        await dying.kill()
        other = two if dying is one else one
        await publish(plain)
        await bridging([other])
        await listener.up_to(published)

        three = await started("three", "--config", str(settings))
        await publish(three)
        await (await bridging([other, three])).drain()
        await publish(plain)
        await bridging([other, three])
        await listener.up_to(published)
        listener.check(published)


async def test_another_node_continues_with_xmpp_where_one_was_killed(
    nats_server: NatsCluster, prosody: Prosody, tmp_path: Path
):
    settings = tmp_path / "xmpp.toml"
    settings.write_text("".join(prosody.hub_settings(tmp_path / "password")))
    nats = f"{nats_server.url}?prefix=xmpp"
    service = parse_service(prosody.url)
    seconds: list[float] = []

    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(
                fast_node(nats, tmp_path, name, "--config", str(settings))
            )
            for name in ("one", "two")
        ]
        dying = await bridging([one, two], "xmpp")
        other = two if dying is one else one
        await dying.client.accepted(fragment(0, 1))
        reader = await stack.enter_async_context(
            connect_xmpp(
                prosody.login("reader"), lambda item: seconds.extend(seconds_of(item.payload))
            )
        )
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(Unavailable):  # there is no node yet
                    newest = await reader.subscribe(service, TOPIC)
                    break
        assert newest is not None
        assert seconds_of(newest) == [1]
        await dying.client.accepted(fragment(1, 2))
        await dying.kill()
        await other.client.accepted(fragment(2, 3))
        assert await bridging([other], "xmpp") is other
        await other.client.accepted(fragment(3, 4))
        async with asyncio.timeout(PATIENCE):
            while 4 not in seconds:
                await reader.request("get", "xmpp.example", '<ping xmlns="urn:xmpp:ping"/>')
    # The other node may send again what was sent shortly before the kill.
    assert [each for each in dict.fromkeys(seconds) if each > 1] == [2, 3, 4]
