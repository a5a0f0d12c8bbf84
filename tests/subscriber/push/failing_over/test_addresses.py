"""A hub whose name has several addresses: each is a node, and some are dead."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rsnotify_subscriber import PushState
from rsnotify_subscriber.events import Event, PushDown
from rsnotify_subscriber.push import websocket_transport as websocket
from tests.resolving import hanging, not_answering, resolve
from tests.subscriber.destination import Destination
from tests.subscriber.hub import SmallHub
from tests.subscriber.push.failing_over.scene import LIST, RARE, followed, push
from tests.subscriber.source import SmallSource, status

NAME = "hub.example"


@pytest.fixture
async def second(hub: SmallHub) -> AsyncIterator[SmallHub]:
    """A second node, at the same port of another address."""
    node = SmallHub("127.0.0.2", hub.server.port)
    await node.server.start()
    yield node
    await node.stop()


@pytest.fixture
def named(source: SmallSource, hub: SmallHub) -> str:
    """The URL of the hub by its name, which the Source names."""
    url = hub.url.replace("127.0.0.1", NAME)
    source.hubs = [url]
    return url


async def test_another_address_takes_over_and_replays_what_came_meanwhile(
    source: SmallSource,
    hub: SmallHub,
    second: SmallHub,
    named: str,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve(monkeypatch, NAME, "127.0.0.1", "127.0.0.2")
    async with followed(destination, allow_private_addresses=True) as subscriber:
        source.put_inline("before", b"by the first")
        await push(source, hub, second)
        await destination.until_equal()
        assert second.subscriptions == []
        source.answers[LIST] = status(503)
        source.put_inline("meanwhile", b"by the second")
        await push(source, second)
        await hub.stop()
        await second.subscribed()
        await destination.until_equal()
        assert subscriber.status.way == (named,)
    since = second.subscriptions[0]["since"]
    assert isinstance(since, str)


async def test_an_address_that_does_not_answer_is_passed_over(
    source: SmallSource,
    hub: SmallHub,
    second: SmallHub,
    named: str,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve(monkeypatch, NAME, "127.0.0.3", "127.0.0.1", "127.0.0.2")
    await hub.stop()
    with not_answering("127.0.0.3", hub.server.port):
        async with followed(destination, allow_private_addresses=True):
            await second.subscribed()


async def test_an_address_that_accepts_and_never_answers_comes_last_in_the_next_attempt(
    source: SmallSource,
    hub: SmallHub,
    named: str,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "TIMEOUT", 0.5)
    resolve(monkeypatch, NAME, "127.0.0.3", "127.0.0.1")
    with hanging("127.0.0.3", hub.server.port):
        async with followed(destination, allow_private_addresses=True):
            await hub.subscribed()


async def test_none_of_the_addresses_is_dialled_if_all_are_private(
    source: SmallSource,
    hub: SmallHub,
    second: SmallHub,
    named: str,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve(monkeypatch, NAME, "127.0.0.1", "127.0.0.2")
    events: list[Event] = []
    async with destination.subscriber(pace=RARE, on_event=events.append) as subscriber:
        await destination.until(lambda: any(isinstance(one, PushDown) for one in events))
        assert subscriber.status.push is PushState.DOWN
    (down,) = [one for one in events if isinstance(one, PushDown)]
    assert "not public" in down.reason
    assert hub.subscriptions == second.subscriptions == []
