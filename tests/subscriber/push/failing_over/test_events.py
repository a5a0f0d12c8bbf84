"""The events that an application receives about its endpoints."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from rsnotify_subscriber import Via
from rsnotify_subscriber.events import (
    Behind,
    Event,
    GapSeen,
    LevelReached,
    Pulling,
    PushDown,
    PushUp,
)
from tests.subscriber.destination import PATIENCE, Destination
from tests.subscriber.hub import SmallHub, push
from tests.subscriber.push.failing_over.scene import (
    followed,
)
from tests.subscriber.source import SmallSource


def ways(destination: Destination) -> list[Event]:
    """Return what is told of ways; when it is level again is told beside that."""
    return [one for one in destination.events if isinstance(one, PushUp | PushDown)]


async def test_an_application_receives_events_about_its_endpoints(
    source: SmallSource, two: list[SmallHub], destination: Destination
) -> None:
    hub, other = two
    events = destination.events
    async with followed(destination) as subscriber:
        await hub.subscribed()
        topic = source.base + "channel.xml"
        assert PushUp(Via.WEBSOCKET, hub.url, topic) in events
        assert isinstance([one for one in events if not isinstance(one, PushUp)][-1], LevelReached)
        names = [type(one).__name__ for one in events]
        baseline = [name for name in names if name.startswith("Base")]
        assert baseline == ["BaselineBegun", "BaselineComplete"]
        rungs = [one.kind.value for one in destination.events_of(Pulling)]
        assert rungs[:2] == ["Resource List", "Change List"]
        events.clear()
        source.put("lost", b"1")
        source.put("seen", b"2")
        await push(source, hub)
        await destination.until_equal()
        await destination.until(lambda: subscriber.status.level)
        kinds = [type(one) for one in events if not isinstance(one, Behind | LevelReached)]
        assert kinds == [GapSeen, Pulling]
        events.clear()
        await hub.stop()
        await destination.until_by(other.url)
        (down,) = destination.events_of(PushDown)
        assert (down.hub, down.left) == (hub.url, 0)
        assert hub.url in down.reason
        assert PushUp(Via.WEBSOCKET, other.url, topic) in events
        await hub.server.start()
        await hub.subscribed(2)
        source.put_inline("newest", b"by the first")
        await push(source, hub)
        await destination.until_by(hub.url)
        assert ways(destination)[-1] == PushDown(Via.WEBSOCKET, other.url, topic, "", 1)
    assert ways(destination)[-1] == PushDown(Via.WEBSOCKET, hub.url, topic, "", 0)


async def test_an_event_handler_may_fail_and_may_stop_the_subscriber(
    two: list[SmallHub], destination: Destination, caplog: pytest.LogCaptureFixture
) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, PushUp):
            destination.current.stop()
        raise ZeroDivisionError

    async with asyncio.timeout(PATIENCE):
        with suppress(asyncio.CancelledError):
            await destination.subscriber(on_event=on_event).run()
    assert "on_event failed at PushUp" in caplog.text
