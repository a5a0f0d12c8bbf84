"""Two hubs of one Source, and a hub that says nothing; all in a hurry."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from rsnotify_subscriber.push import endpoint_failover as failover
from rsnotify_subscriber.push import mqtt_transport as mqtt
from rsnotify_subscriber.push import websub_transport as transport
from tests.subscriber.destination import PATIENCE
from tests.subscriber.hub import SmallHub
from tests.subscriber.source import SmallSource


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch, some_content: None) -> None:
    monkeypatch.setattr(failover, "HOLD_TIME", 0.1)
    monkeypatch.setattr(mqtt, "RETAINED_WAIT", 0.1)
    # The machine may have much to do.
    monkeypatch.setattr(failover, "CONNECT_GRACE", PATIENCE)
    monkeypatch.setattr(transport, "_UNSUBSCRIBE_TIMEOUT", PATIENCE)


@pytest.fixture
async def other() -> AsyncIterator[SmallHub]:
    async with SmallHub() as hub:
        yield hub


@pytest.fixture
def two(source: SmallSource, hub: SmallHub, other: SmallHub) -> list[SmallHub]:
    """Two hubs, the better one first."""
    source.hubs = [hub.url, other.url]
    return [hub, other]


@pytest.fixture
def silent() -> Iterator[str]:
    """A hub that is connected to, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}/ws"
