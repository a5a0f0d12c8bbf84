"""All kinds of transports, each in place of a better one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration
from rsnotify_subscriber.push import endpoint_failover as failover
from rsnotify_subscriber.push import websub_transport as transport
from tests.mosquitto import Mosquitto
from tests.subscriber.destination import Destination
from tests.subscriber.hub import SmallHub, push
from tests.subscriber.push.failing_over.scene import LIST, RARE, followed
from tests.subscriber.source import SmallSource, status
from tests.subscriber.test_mqtt import publish
from tests.subscriber.websub.blog import open_blog
from tests.subscriber.websub.desk import TERMS, Desk, open_desk


async def test_a_websub_subscription_ends_when_a_better_transport_is_back(
    source: SmallSource, hub: SmallHub, destination: Destination, tmp_path: Path
) -> None:
    settings = {"port": 0, "data": str(tmp_path / "hub"), "allow_private_addresses": True}
    async with serve(load_configuration(None, **settings)) as slow, open_desk() as desk:
        source.hubs = [slow + "websub", hub.url]
        async with followed(destination, callbacks=desk.callbacks):
            await destination.until_by(hub.url)
            assert await desk.any_subscriptions_at(slow) == []
            await hub.stop()
            await destination.until_by(slow + "websub")
            await desk.subscriptions_at(slow, 1)
            await hub.server.start()
            await hub.subscribed(2)
            source.put_inline("new", b"by the first")
            await push(source, hub)
            await destination.until_by(hub.url)
            await desk.subscriptions_at(slow, 0)
            await desk.all_left()
            source.answers[LIST] = status(503)
            source.put_inline("newer", b"by the first alone")
            await push(source, hub)
            await destination.until_equal()


async def test_stopping_while_one_hub_hangs_and_another_has_not_answered_takes_no_time(
    source: SmallSource, silent: str, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "CONNECT_GRACE", 0.1)
    monkeypatch.setattr(transport, "_UNSUBSCRIBE_TIMEOUT", 1.0)
    async with open_blog() as blog, open_desk() as desk:
        source.hubs = [silent, blog.hub]
        blog.answering.clear()
        async with destination.subscriber(callbacks=desk.callbacks):
            await blog.until_confirmed(1)
        assert len(desk.callbacks) == 0
        assert blog.confirmed == {}
        blog.answering.set()


async def test_each_transport_takes_over_from_the_better_one_until_it_is_back(
    source: SmallSource,
    hub: SmallHub,
    mosquitto: Mosquitto,
    destination: Destination,
    tmp_path: Path,
    unused_tcp_port: int,
) -> None:
    settings = {"port": unused_tcp_port, "allow_private_addresses": True}
    slow = f"http://127.0.0.1:{unused_tcp_port}/"
    source.hubs = [slow + "websub", mosquitto.url, hub.url]
    pace = replace(RARE, poll=0.1)  # while no push is there, and only then

    async with AsyncExitStack() as life, open_desk(replace(TERMS, quiet=0.3)) as desk:

        async def begin_slow(folder: str) -> None:
            configuration = load_configuration(None, **settings, data=str(tmp_path / folder))
            await life.enter_async_context(serve(configuration))

        async def arrives(way: str | None) -> None:
            """Deliver a change over one transport, while no other can."""
            await destination.until(lambda: best() == way)
            if way is not None:
                source.answers[LIST] = status(503)
            source.put_inline(f"by{len(source.changes)}", b"x")
            await bring(way)
            await destination.until_equal()
            await destination.until_by(*([way] if way else []))
            source.answers.pop(LIST, None)

        def best() -> str | None:
            return next(iter(destination.current.status.way), None)

        async def bring(way: str | None) -> None:
            if way == hub.url:
                await push(source, hub)
            elif way == mosquitto.url:
                await publish(mosquitto, source)
            elif way is not None:
                await desk.subscriptions_at(slow, 1)
                await say(desk, slow, source)

        await begin_slow("first")
        async with followed(destination, pace=pace, callbacks=desk.callbacks):
            await arrives(hub.url)
            await hub.stop()
            await arrives(mosquitto.url)
            await mosquitto.stop()
            await arrives(slow + "websub")
            await life.aclose()
            await arrives(None)
            await begin_slow("second")
            await arrives(slow + "websub")
            await mosquitto.start()
            await arrives(mosquitto.url)
            await hub.server.start()
            await arrives(hub.url)


async def say(desk: Desk, hub: str, source: SmallSource) -> None:
    """Publish the last change at a real hub."""
    topic = source.base + "channel.xml"
    await desk.publish_at(hub, topic, source.latest()[0], "application/xml")
