"""A hub whose name has several addresses: each is a node, and some are dead."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rsnotify_subscriber import PushDown, PushState
from rsnotify_subscriber.push import websocket_transport as websocket
from tests.resolving import hanging, not_answering, resolve
from tests.subscriber.destination import Destination
from tests.subscriber.hub import SmallHub, push
from tests.subscriber.push.failing_over.scene import LIST, RARE, followed
from tests.subscriber.source import SmallSource, status

NAME = "hub.example"


@pytest.fixture
async def second(hub: SmallHub) -> AsyncIterator[SmallHub]:
    """A second node, at the same port of another address."""
    async with SmallHub("127.0.0.2", hub.server.port) as node:
        yield node


@pytest.fixture
def named(source: SmallSource, hub: SmallHub, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the hub by its name, which the Source names, and which has two addresses."""
    url = hub.url.replace("127.0.0.1", NAME)
    source.hubs = [url]
    resolve(monkeypatch, NAME, "127.0.0.1", "127.0.0.2")
    return url


async def test_another_address_takes_over_and_replays_what_came_meanwhile(
    source: SmallSource, hub: SmallHub, second: SmallHub, named: str, destination: Destination
) -> None:
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
    assert isinstance(second.subscriptions[0]["since"], str)


@pytest.mark.usefixtures("named")
async def test_an_address_that_does_not_answer_is_passed_over(
    hub: SmallHub, second: SmallHub, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, NAME, "127.0.0.3", "127.0.0.1", "127.0.0.2")
    await hub.stop()
    with not_answering("127.0.0.3", hub.server.port):
        async with followed(destination, allow_private_addresses=True):
            await second.subscribed()


@pytest.mark.usefixtures("named")
async def test_an_address_that_accepts_and_never_answers_comes_last_in_the_next_attempt(
    hub: SmallHub, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "TIMEOUT", 0.5)
    resolve(monkeypatch, NAME, "127.0.0.3", "127.0.0.1")
    with hanging("127.0.0.3", hub.server.port):
        async with followed(destination, allow_private_addresses=True):
            await hub.subscribed()


async def test_none_of_the_addresses_is_dialled_if_all_are_private(
    hub: SmallHub, second: SmallHub, named: str, destination: Destination
) -> None:
    async with destination.subscriber(pace=RARE) as subscriber:
        await destination.until(lambda: bool(destination.events_of(PushDown)))
        assert subscriber.status.push is PushState.DOWN
    (down,) = destination.events_of(PushDown)
    assert "not public" in down.reason
    assert hub.subscriptions == second.subscriptions == []
