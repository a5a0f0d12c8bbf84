"""A relay that follows by WebSub, with callbacks at its own server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec.structs import replace

from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration
from rsnotify_subscriber import PushState, Via
from tests.relay.running import Running
from tests.subscriber.destination import PACE
from tests.subscriber.source import SmallSource, status
from tests.subscriber.websub.desk import open_desk


async def test_hubs_reach_a_relay_below_its_base_url(
    source: SmallSource, start: Callable[..., Awaitable[Running]], tmp_path: Path
) -> None:
    source.put("a", b"a")
    settings = {"port": 0, "data": str(tmp_path / "hub"), "allow_private_addresses": True}
    rare = replace(PACE, poll=600, poll_with_push=600)
    async with serve(load_configuration(None, **settings)) as hub, open_desk() as desk:
        source.hubs = [hub + "websub"]
        relay = await start(source.url, via=Via.WEBSUB, pace=rare)
        await relay.until(lambda: relay.relay.subscriber.status.push is PushState.UP)
        await relay.until_equal(source)
        await desk.subscriptions_at(hub, 1)
        source.answers["/data/changelist.xml"] = status(503)
        before = source.last
        change = source.put_inline("b", b"pushed")
        fragment = source.fragment([change], before)
        await desk.publish_at(hub, source.base + "channel.xml", fragment, "application/xml")
        await relay.until_equal(source)
        assert (await relay.get("b"))[2] == b"pushed"
