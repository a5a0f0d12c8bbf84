"""Hubs that are there, and do not bring what they should."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from rsnotify_subscriber import PushDown, PushState
from rsnotify_subscriber.following import push_monitor as push_intake
from rsnotify_subscriber.push import push_subscription as push_module
from tests.subscriber.destination import PACE, Destination
from tests.subscriber.hub import SmallHub, push
from tests.subscriber.push.failing_over.scene import LIST, beat, followed, sum_up
from tests.subscriber.source import SmallSource, status

#: Polls are frequent only without push.
DOWN_ALONE = replace(PACE, poll=0.1, poll_with_push=600)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only for a moment for a hub to send the changes that a list has."""
    monkeypatch.setattr(push_module, "SILENCE_GRACE", 0.1)


@pytest.fixture
def short_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Miss the heartbeats of a hub after a moment."""
    monkeypatch.setattr(push_intake, "HEARTBEAT_TIMEOUT", 0.2)


@pytest.mark.usefixtures("short_grace")
async def test_the_lists_reveal_a_hub_that_the_source_does_not_reach(
    source: SmallSource, two: list[SmallHub], destination: Destination
) -> None:
    hub, other = two
    async with followed(destination, pace=replace(PACE, poll_with_push=0.2)) as subscriber:
        await destination.until_by(hub.url)
        while subscriber.status.way != (other.url,):
            source.put("unheard", b"%d" % len(source.changes))
            await destination.until_equal()
        reasons = [one.reason for one in destination.events_of(PushDown)]
        assert reasons == [f"{hub.url}: it does not send changes that the lists show"]
        await other.subscribed()
        source.answers[LIST] = status(503)
        source.put_inline("new", b"by the other")
        await push(source, other)
        await destination.until_equal()
        source.put_inline("newer", b"by both")
        await push(source, *two)
        await destination.until_by(hub.url)


@pytest.mark.usefixtures("short_grace")
async def test_the_lists_are_polled_as_without_push_where_the_only_hub_is_silent(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    source.hubs = [hub.url]
    async with followed(destination, pace=replace(PACE, poll_with_push=0.2)) as subscriber:
        while subscriber.status.push is PushState.UP:
            source.put("unheard", b"%d" % len(source.changes))
            await destination.until_equal()
        assert subscriber.status.way == ()
        assert len(hub.sockets) == 1
        source.put("r0", b"by a poll")
        await destination.until_equal()
        source.put_inline("new", b"by the hub")
        await push(source, hub)
        await destination.until_by(hub.url)


@pytest.mark.usefixtures("short_quiet")
@pytest.mark.parametrize("tell", [beat, sum_up])
async def test_the_lists_are_polled_as_without_push_where_heartbeats_stop(
    tell: Callable[[SmallSource, SmallHub], Awaitable[None]],
    source: SmallSource,
    hub: SmallHub,
    destination: Destination,
) -> None:
    source.hubs = [hub.url]
    async with followed(destination, pace=DOWN_ALONE):
        await destination.until_by(hub.url)
        await tell(source, hub)
        for n in range(3):
            source.put("unheard", b"%d" % n)
            await destination.until_equal()
        assert len(hub.sockets) == 1


@pytest.mark.usefixtures("short_quiet")
async def test_the_offer_is_read_soon_where_heartbeats_stop(
    source: SmallSource, hub: SmallHub, other: SmallHub, destination: Destination
) -> None:
    source.hubs = [hub.url]
    async with followed(destination, pace=DOWN_ALONE):
        await destination.until_by(hub.url)
        source.hubs = [other.url]
        await beat(source, hub)
        await destination.until_by(other.url)
